"""``invalidator version`` and ``invalidator --version``: the version of the program."""

from __future__ import annotations

import typer

from freshness import __version__


def version() -> None:
    """Print the version."""
    typer.echo(f"freshness {__version__}")


def print_version(is_wanted: bool) -> None:
    """The same as an option, after which nothing else is done."""
    if is_wanted:
        version()
        raise typer.Exit
