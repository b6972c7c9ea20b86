"""The servers that `invalidator check` looks at, as `run` would follow them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from freshness.config.config import load_config
from freshness.config.server import ServerAddress
from freshness.errors import SourceUnavailable
from freshness.position import parse_position
from invalidator.process import checkup
from invalidator.replica import promotion
from invalidator.replica.server import ServerState
from invalidator.rules.rule import Rule

NOTHING = parse_position("mysql", "")
PRIMARY = ServerState("a", NOTHING, NOTHING, False, "", "", {})
READ_ONLY = replace(PRIMARY, identity="b", is_read_only=True)


@pytest.mark.parametrize("adopts", [True, False])
def test_the_primary_that_run_would_adopt_is_checked_as_the_primary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adopts: bool
) -> None:
    """Else its advice is to write to the previous one, or to have the present one follow somebody."""
    path = tmp_path / "freshness.toml"
    path.write_text(
        '[cache]\nbackend = "memory"\nnodes = ["a"]\nnamespace = "shop"\n[keyspaces.shop]\nflavor = "mysql"\n'
        '[[keyspaces.shop.shards]]\nprimary = "mysql://app:app@127.0.0.1:1/shop"\n'
        f'replicas = ["mysql://reader:reader@127.0.0.1:2/shop"]\nadopt_promotions = {str(adopts).lower()}\n'
        '[objects.customer]\ntable = "customers"\n'
    )
    asked: list[tuple[int, str]] = []

    def connect(address: ServerAddress) -> NoReturn:
        asked.append((address.port, address.user))
        raise SourceUnavailable("it is down")

    monkeypatch.setattr(checkup, "connect", connect)
    monkeypatch.setattr(promotion, "look_at", lambda address, *_, **__: READ_ONLY if address.port == 1 else PRIMARY)
    looked = checkup.Checkup(load_config(path))
    looked.run()
    found = [each.message for each in looked.findings if each.rule is Rule.PRIMARY_READ_ONLY]
    assert asked == [(2, "app") if adopts else (1, "app")]
    told = "127.0.0.1:2 is the primary of shop/- now; 127.0.0.1:1 is read-only"
    assert found == ([told] if adopts else [])
