"""A job whose closures carry passwords runs where Spark encrypts them, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from freshness.config.access import NodeLogin, PasswordFile
from freshness.config.server import ServerAddress
from freshness.errors import ConfigError
from spark.session import VERSIONS, require_encryption, using_session

ENCRYPTED: Final = {
    "spark.master": "spark://127.0.0.1:7077",
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.io.encryption.enabled": "true",
}
SECRET: Final = ServerAddress("db", password="secret")
OPEN: Final = ServerAddress("db")
SESSION: Final[Any] = object()


class Session:
    """A session with these settings."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.conf: Any = dict(settings)


@pytest.mark.parametrize("version", ["4.1.4", "4.4.0", "4.20.0", "5.2.0"])
def test_a_version_that_nobody_tested_is_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr("pyspark.__version__", version)
    with (
        pytest.raises(ConfigError, match=re.escape(f"Spark {version} was not tested")),
        using_session(SESSION, "", ""),
    ):
        pass


def test_a_version_that_was_tested_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in VERSIONS:
        monkeypatch.setattr("pyspark.__version__", f"{version}.1")
        with using_session(SESSION, "", "") as used:
            assert used is SESSION


@pytest.mark.parametrize("name", [name for name in ENCRYPTED if name != "spark.master"])
@pytest.mark.parametrize("value", [None, "false"])
def test_each_setting_that_is_missing_is_told(name: str, value: str | None) -> None:
    settings = {**ENCRYPTED, name: value} if value else {k: v for k, v in ENCRYPTED.items() if k != name}
    session: Any = Session(settings)
    with pytest.raises(ConfigError, match=name) as raised:
        require_encryption(session, [OPEN, SECRET])
    assert "secret" not in str(raised.value)
    require_encryption(session, [OPEN, NodeLogin("cache", PasswordFile(Path("secret")))])
    with pytest.raises(ConfigError, match=name):
        require_encryption(session, [NodeLogin("cache", "secret")])


@pytest.mark.parametrize(
    "settings",
    [
        ENCRYPTED,
        {**ENCRYPTED, "spark.network.crypto.enabled": "false", "spark.ssl.rpc.enabled": "TRUE"},
        {"spark.master": "local[*]"},
    ],
)
def test_a_cluster_that_encrypts_gets_passwords(settings: dict[str, str]) -> None:
    session: Any = Session(settings)
    require_encryption(session, [SECRET])
