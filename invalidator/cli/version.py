"""``invalidator version``: the version of the program."""

from __future__ import annotations

import typer

from freshness import __version__


def version() -> None:
    """Print the version."""
    typer.echo(f"freshness {__version__}")
