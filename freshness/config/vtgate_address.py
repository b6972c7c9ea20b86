"""The address of a vtgate, its options, and its login: ``vitess://USER:PASSWORD@HOST:PORT/KEYSPACE?option=…``.

Plain data without grpcio, so that reading a configuration needs no package of its own. The password is in no repr, no
message and no log. Used by ``freshness.config.keyspace`` and ``invalidator.vstream.source``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

from freshness.config.access import Password, file_password, variable_password
from freshness.config.hostport import parse_host_port
from freshness.errors import ConfigError

TabletType: TypeAlias = Literal["primary", "replica", "rdonly"]

PORT_DEFAULT: Final = 15991
MESSAGE_BYTES_MAX: Final = 64 << 20
"""The largest response that is accepted. vtgate's own limit is 16 MiB unless it was raised."""

KEEPALIVE_SECONDS: Final = 20.0
KEEPALIVE_SECONDS_MIN: Final = 10.0
"""vtgate ends connections of clients that ping more often than this."""

SECONDS_MAX: Final = 3600.0
BYTES_MAX: Final = (1 << 31) - 1

_BLANK = re.compile(r"[\x00-\x20\x7f]")
_EXPECTED: Final = "expected vitess://USER:PASSWORD@HOST:PORT/KEYSPACE?tablet_type=replica&tls_ca=ca.pem"


@dataclass(frozen=True, slots=True)
class VtgateAddress:
    """``tls_ca``, ``tls_cert``, ``tls_key``: PEM files; ``tls`` without ``tls_ca`` trusts what the system trusts.

    ``cells``: cells of the tablets, comma separated; empty leaves them to vtgate. ``chunk_bytes``: transactions
      beyond that size come in pieces, so that vtgate need not hold them; 0 is vtgate's default, whole ones.
    """

    host: str
    keyspace: str
    port: int = PORT_DEFAULT
    user: str = ""
    password: Password = field(default="", repr=False)
    tablet_type: TabletType = "replica"
    tls: bool = False
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    cells: str = ""
    chunk_bytes: int = 0
    connect_seconds: float = 10.0
    keepalive_seconds: float = KEEPALIVE_SECONDS
    message_bytes_max: int = MESSAGE_BYTES_MAX

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("a client certificate needs both tls_cert and tls_key", hint=_EXPECTED)
        if (self.tls_ca or self.tls_cert) and not self.tls:
            object.__setattr__(self, "tls", True)
        if not KEEPALIVE_SECONDS_MIN <= self.keepalive_seconds <= SECONDS_MAX:
            raise ConfigError(
                f"keepalive_seconds is {self.keepalive_seconds:g}",
                hint=f"from {KEEPALIVE_SECONDS_MIN:g} to {SECONDS_MAX:g}: vtgate drops clients that ping more often",
            )
        if not 0 < self.connect_seconds <= SECONDS_MAX:
            raise ConfigError(f"connect_seconds is {self.connect_seconds}", hint=f"above 0, at most {SECONDS_MAX:g}")
        if not 0 <= self.chunk_bytes <= BYTES_MAX or not 0 < self.message_bytes_max <= BYTES_MAX:
            raise ConfigError(f"chunk_bytes is 0 or above, message_bytes_max above 0, both at most {BYTES_MAX}")

    def __str__(self) -> str:
        return f"{self.target}/{self.keyspace}@{self.tablet_type}"

    @property
    def target(self) -> str:
        """``host:port``, as gRPC takes it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @classmethod
    def parse(cls, url: str, environ: Mapping[str, str] = os.environ, folder: Path = Path()) -> VtgateAddress:
        """Read a ``vitess://`` URL. Options: tablet_type, tls, tls_ca, tls_cert, tls_key, password_file, cells,
        chunk_bytes, connect_seconds, keepalive_seconds, message_bytes_max.

        A password that is ``${VARIABLE}`` comes from ``environ``; files are relative to ``folder``. Raises
        `ConfigError`, which never repeats what may be a password.
        """
        if _BLANK.search(url):
            raise ConfigError("the URL holds a blank or a control character; percent-encode it")
        try:
            parts = urlsplit(url)
            options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        except ValueError as error:
            raise ConfigError("not a vitess:// URL that can be read", hint=_EXPECTED) from error
        keyspace = unquote(parts.path.removeprefix("/"))
        if parts.scheme != "vitess" or not keyspace or "/" in keyspace or ":" in keyspace or parts.fragment:
            raise ConfigError("the URL does not name one keyspace behind vitess://HOST:PORT/", hint=_EXPECTED)
        login, _, place = parts.netloc.rpartition("@")
        user, _, password = login.partition(":")
        host, port = parse_host_port(place, port_default=PORT_DEFAULT)
        text = unquote(password)
        is_variable = text.startswith("${") and text.endswith("}")
        secret = variable_password(("", text[2:-1], "") if is_variable else (text,), environ)
        if "password_file" in options:
            if secret:
                raise ConfigError("the URL has a password and a password_file; one is needed")
            secret = file_password(folder / options.pop("password_file"))
        if bool(user) != bool(secret):
            raise ConfigError("vtgate wants a user and a password, or neither", hint=_EXPECTED)
        return cls(host, keyspace, port, unquote(user), secret, **_read_options(options, folder))


def _read_options(options: Mapping[str, str], folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for name, text in options.items():
        if name == "tablet_type":
            if text not in get_args(TabletType):
                raise ConfigError(f"tablet_type is {text[:40]!r}", hint=f"one of {', '.join(get_args(TabletType))}")
            read[name] = text
        elif name == "tls":
            if text not in ("true", "false"):
                raise ConfigError(f"tls is {text[:40]!r}", hint="true or false")
            read[name] = text == "true"
        elif name in ("tls_ca", "tls_cert", "tls_key"):
            read[name] = folder / text
        elif name == "cells":
            read[name] = text
        elif name in ("chunk_bytes", "message_bytes_max", "connect_seconds", "keepalive_seconds"):
            try:
                read[name] = float(text) if name.endswith("seconds") else int(text)
            except ValueError as error:
                raise ConfigError(f"{name} is {text[:40]!r}", hint="expected a number") from error
        else:
            raise ConfigError(
                f"the URL has an unknown option {name[:40]!r}",
                hint="known: tablet_type, tls, tls_ca, tls_cert, tls_key, password_file, cells, chunk_bytes,"
                " connect_seconds, keepalive_seconds, message_bytes_max",
            )
    if read.get("tls") is False and {"tls_ca", "tls_cert"} & read.keys():
        raise ConfigError("tls=false, and certificates are named", hint="leave one of them out")
    return read
