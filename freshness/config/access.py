"""How a program logs in to a server, as plain data: the source of the password, and whom TLS trusts.

Passwords are not kept but named by their source, so that each connection can read the present one. Nothing here
opens a socket or runs a program; ``freshness.login`` does. No repr shows a password, or a text that may hold one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

from freshness.config.hostport import read_password
from freshness.errors import ConfigError

VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

TLS_OPTIONS: Final = ("tls", "tls_ca", "tls_cert", "tls_key")


@dataclass(frozen=True, slots=True)
class PasswordFile:
    """The first line of a file. ``path``: absolute, as it is read long after a program has changed its folder."""

    path: Path


@dataclass(frozen=True, slots=True)
class PasswordVariable:
    """A text with variables of this process's environment in it: text, name, text, name, ..., text."""

    parts: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class PasswordCommand:
    """The first line that a program prints. ``{host}``, ``{port}``, ``{user}`` in its arguments are the server's."""

    arguments: tuple[str, ...] = field(repr=False)


Password: TypeAlias = str | PasswordFile | PasswordVariable | PasswordCommand
"""A text is the password itself; empty: none."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files, absolute. ``ca``: the only trusted authorities; None: those that the system trusts. ``cert`` and
    ``key``: the client's own certificate; both or neither."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class NodeLogin:
    """How a program logs in to a cache node. ``tls``: None for a plain connection."""

    user: str = ""
    password: Password = field(default="", repr=False)
    tls: Tls | None = None


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """All that is needed to open a cache node, but its name. ``backend``: see `CacheConfig`."""

    backend: str
    login: NodeLogin = NodeLogin()


def expand(text: str, environ: Mapping[str, str]) -> str:
    """The text with its variables replaced, verbatim. Raises `ConfigError` with all that are not set."""
    return join_variables(tuple(VARIABLE.split(text)), environ)


def join_variables(parts: tuple[str, ...], environ: Mapping[str, str]) -> str:
    """The text of a `PasswordVariable`. Raises `ConfigError` for a variable that is not set."""
    missing = sorted({name for name in parts[1::2] if name not in environ})
    if missing:
        raise ConfigError(f"environment variable not set: {', '.join(missing)}")
    return "".join(environ[part] if place % 2 else part for place, part in enumerate(parts))


def variable_password(parts: tuple[str, ...], environ: Mapping[str, str]) -> Password:
    """The password that these parts are now, or where to read it again, if they are of the process's environment.

    Raises `ConfigError` for a variable that is not set.
    """
    text = join_variables(parts, environ)
    return PasswordVariable(parts) if environ is os.environ and len(parts) > 1 and text else text


def file_password(path: Path) -> PasswordFile:
    """Raises `ConfigError` if the file holds no password."""
    read_password(path)
    return PasswordFile(path.absolute())  # links stay: a rotation may exchange them


def read_tls(options: Mapping[str, str | bool], folder: Path) -> Tls | Literal[False] | None:
    """TLS as the options `TLS_OPTIONS` say it, with files relative to ``folder``; None if they say nothing, False if
    it is off.

    Raises `ConfigError` for options that contradict each other, and for a file that cannot be read now.
    """
    named = {name: options[name] for name in TLS_OPTIONS if name in options}
    wanted = named.pop("tls", None)
    if wanted not in (None, True, False, "true", "false"):
        raise ConfigError("tls is neither true nor false")
    if not named:
        return None if wanted is None else Tls() if wanted in (True, "true") else False
    if wanted in (False, "false"):
        raise ConfigError("tls is false, and certificates are named; leave one of them out")
    if ("tls_cert" in named) != ("tls_key" in named):
        raise ConfigError("a client certificate needs both tls_cert and tls_key")
    paths = {name: (folder / str(path)).absolute() for name, path in named.items()}
    for name, path in paths.items():
        try:
            path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{name}: the file {path} cannot be read: {error.strerror}") from None
    return Tls(paths.get("tls_ca"), paths.get("tls_cert"), paths.get("tls_key"))
