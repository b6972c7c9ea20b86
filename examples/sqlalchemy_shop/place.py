"""The servers, which come from the environment as in production: reads go to the replica, writes to the primary."""

from __future__ import annotations

import os
from typing import Any, Final

from sqlalchemy import URL

CACHE: Final = os.environ["SHOP_CACHE"]
PRIMARY_PORT: Final = int(os.environ["SHOP_PRIMARY_PORT"])
REPLICA_PORT: Final = int(os.environ["SHOP_REPLICA_PORT"])


def url_of(driver: str, port: int) -> URL:
    return URL.create(f"mysql+{driver}", "app", "app", "127.0.0.1", port, "shop", {"charset": "utf8mb4"})


PLAIN: Final[dict[str, Any]] = {"ssl_disabled": True}
"""Connections of PyMySQL without TLS, which only costs on loopback."""
