"""Drivers whose older versions are dangerous: a connection of such a one is refused wherever it is taken."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from importlib import metadata
from typing import Any, Final

from freshness.errors import SourceUnsuitable

LEAST: Final = {
    "asyncmy": ("0.2.12", "write the keys of parameters into the SQL unescaped (CVE-2025-65896)"),
    "aiomysql": ("0.3.2", "send a server any file of this machine that it asks for (CVE-2025-62611)"),
}
"""By package: the first version that is taken, and what older ones do."""


def require_safe(connection: Any) -> None:
    """Raise `SourceUnsuitable` if the driver of this connection is of a dangerous version. ``connection``: the
    driver's own."""
    _require(type(connection).__module__.partition(".")[0])


@cache
def _require(name: str) -> None:
    least, does = LEAST.get(name, ("", ""))
    found = _find_version(name) if least else ""
    if _parse(found) < _parse(least):
        raise SourceUnsuitable(
            f"{name} {found} is installed; versions before {least} {does}", hint=f"pip install '{name}>={least}'"
        )


def _find_version(module: str) -> str:
    """Version of the package that brings it, perhaps a fork of another name."""
    for package in (module, *metadata.packages_distributions().get(module, ())):
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    raise SourceUnsuitable(f"no version of {module} is known", hint="install it with the metadata of its package")


def _parse(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
