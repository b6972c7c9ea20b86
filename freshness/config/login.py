"""How ``freshness.toml`` says to log in: to the cache nodes, and which keys name a password."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from freshness.config.access import (
    VARIABLE,
    NodeLogin,
    Password,
    PasswordCommand,
    file_password,
    read_tls,
    variable_password,
)
from freshness.config.setting import setting
from freshness.config.table import Table
from freshness.errors import ConfigError

_PASSWORDS = {
    "password": "the password, or ${VARIABLE}",
    "password_file": "a file whose first line is the password",
    "password_command": "a program and its arguments",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginConfig:
    """The keys of ``[cache]`` that say how to log in to the nodes. They become a `NodeLogin`."""

    tls: bool = setting("Whether the nodes are reached over TLS. `tls_ca` and `tls_cert` imply it.", False)
    tls_ca: str | None = setting(
        "PEM file of the authorities that vouch for the nodes. Left out: those of the system.", None
    )
    tls_cert: str | None = setting("PEM file of this program's own certificate, if the nodes ask for one.", None)
    tls_key: str | None = setting("PEM file of its key, not encrypted.", None)
    username: str | None = setting(
        "The user of memcached's auth file (`-Y`), or of Redis's ACL. Left out with a password: Redis's "
        "default user.",
        None,
    )
    password: str | None = setting(
        "The password; ${VARIABLE} is replaced from the environment.", None, is_secret=True
    )
    password_file: str | None = setting("File whose first line is the password.", None)
    password_command: tuple[str, ...] = setting(
        "A program and its arguments; the first line that it prints is the password. {host}, {port} and {user} in "
        "the arguments are those of the node.",
        (),
        is_secret=True,
    )


def read_login(table: Table, backend: str) -> NodeLogin:
    """The login of the nodes. ``table``: the keys of ``[cache]`` that `LoginConfig` has."""
    values = table.values(LoginConfig)
    if backend == "memory" and values:
        table.report(next(iter(values)), "a setting", 'none with backend "memory", which has no server')
        return NodeLogin()
    password, user = read_password(table, values), values.get("username", "")
    if user and not any(name in table for name in _PASSWORDS):
        table.report("username", "a user without a password", f"one of {', '.join(_PASSWORDS)} beside it")
    if backend == "memcached" and password and not user:
        table.report("username", "nothing", "the user: memcached's auth file has USER:PASSWORD")
    if backend == "memcached" and re.search(r"[\s:]", user):
        table.report("username", "a blank or a colon", "a user as in memcached's auth file, USER:PASSWORD")
    tls = None
    try:
        tls = read_tls(values, table.folder)
    except ConfigError as error:
        table.report("tls", error.message, "tls = true, or PEM files")
    return NodeLogin(user, password, tls or None)


def read_password(table: Table, values: Mapping[str, Any]) -> Password:
    """The password that a table names; empty if it names none."""
    named = [name for name in _PASSWORDS if name in values]
    if not named:
        return ""
    key, *others = named
    if others:
        table.report(others[0], f"a {key} beside it", f"one of {', '.join(_PASSWORDS)}")
        return ""
    value = values[key]
    try:
        if key == "password_command":
            if not all(part.strip() for part in value) or not value:
                table.report(key, "an empty array or text", "a program and its arguments")
            return PasswordCommand(value)
        if key == "password_file":
            return file_password(table.folder / value)
        password = variable_password(tuple(VARIABLE.split(value)), table.reading.environ)
    except ConfigError as error:
        table.report(key, error.message, _PASSWORDS[key])
        return ""
    if not password:
        table.report(key, "an empty text", _PASSWORDS[key])
    return password
