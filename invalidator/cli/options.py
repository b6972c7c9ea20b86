"""Options that several verbs take, and that no option is empty."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from freshness.errors import ConfigError

DEFAULT_CONFIG: Final = Path("freshness.toml")

ConfigPath = Annotated[Path, typer.Option("--config", "-c", help="The configuration file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
KeyspaceName = Annotated[str | None, typer.Option("--keyspace", help="Needed where there are several.")]
Since = Annotated[
    str | None,
    typer.Option("--since", help='"now", a resume text, an event token, or a time such as 2026-01-31T12:00:00Z.'),
]


TableNames = Annotated[
    str | None,
    typer.Option("--tables", help='Names and patterns, such as "orders,order_*"; default: tables of cached objects.'),
]


class Verb(TyperCommand):
    """A verb whose options and single arguments are never empty: an unset variable of the shell would mean the
    default, or the current folder. A key may be empty."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raises `ConfigError` for an empty one."""
        given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        for parameter in self.params:
            found = given.get(parameter.name)
            texts = found if isinstance(found, list) else [found]
            if parameter.nargs == 1 and any(isinstance(text, str) and not text.strip() for text in texts):
                is_option = parameter.param_type_name == "option"
                name = parameter.opts[0] if is_option else (parameter.metavar or parameter.name.upper())
                raise ConfigError(f"{name} is empty", hint="is a variable of the shell not set?")
        return super().parse_args(ctx, args)
