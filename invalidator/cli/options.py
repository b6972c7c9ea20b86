"""Options that several verbs take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

DEFAULT_CONFIG: Final = Path("freshness.toml")

ConfigPath = Annotated[Path, typer.Option("--config", "-c", help="The configuration file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
KeyspaceName = Annotated[str | None, typer.Option("--keyspace", help="Needed where there are several.")]
Since = Annotated[
    str | None,
    typer.Option(
        "--since", help='"now", a resume text, an event token, or a time such as 2026-01-31T12:00:00Z.'
    ),
]
