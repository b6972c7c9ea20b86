"""The parts of every address: a host with its port, and a password from a file.

Used where configuration is read. Its messages never repeat a text that may hold a password.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Final

from freshness.errors import ConfigError

_HOST: Final = re.compile(r"[A-Za-z0-9_.:%-]+")


def read_password(path: Path) -> str:
    """The first line of a file. Raises `ConfigError` if it cannot be read or is empty."""
    try:
        password = path.read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"the password file {path} cannot be read: {reason}") from None
    if not password:
        raise ConfigError(f"the first line of the password file {path} is empty")
    return password


def parse_host_port(text: str, *, port_default: int | None = None) -> tuple[str, int]:
    """``host:port`` or ``[IPv6]:port``. Raises `ConfigError` that says what is wrong, without the text."""
    if text.startswith("["):
        host, bracket, tail = text[1:].partition("]")
        if not bracket or ":" not in host:
            raise ConfigError("an IPv6 address belongs in brackets: [::1]:PORT")
    else:
        host, colon, port_text = text.partition(":")
        tail = colon + port_text
        if ":" in port_text:
            raise ConfigError("more than one colon; an IPv6 address belongs in brackets: [::1]:PORT")
    if not _HOST.fullmatch(host):
        raise ConfigError("the host is empty or holds a character that no host name has")
    if not tail and port_default is not None:
        return host, port_default
    digits = tail.removeprefix(":")
    if not tail.startswith(":") or not (digits.isascii() and digits.isdigit() and len(digits) <= 5):
        raise ConfigError("no port: expected HOST:PORT with a number from 1 to 65535")
    if not 1 <= int(digits) <= 65_535:
        raise ConfigError(f"port {int(digits)} is not from 1 to 65535")
    return host, int(digits)


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
