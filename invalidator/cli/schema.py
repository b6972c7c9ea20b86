"""``invalidator schema``: the schemas that a recorded stream tells, for a library of JSON Schema or Avro."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from freshness.errors import ConfigError
from invalidator.cli.output import to_plain
from invalidator.stream.schema_format import SchemaFormat


def schema(
    path: Annotated[Path, typer.Argument(help="A file of JSON lines, as `invalidator stream` prints them.")],
    schema_id: Annotated[
        str | None, typer.Option("--id", help="Of one schema, as a line names it; default: all.")
    ] = None,
    form: Annotated[
        SchemaFormat, typer.Option("--format", help="As the stream tells it, or for a library.")
    ] = "json-schema",
) -> None:
    """Print the schemas that a recorded stream tells, each once: one JSON document in each line."""
    from invalidator.stream.json_lines import read_schemas
    from invalidator.stream.schema_format import format_schema

    found = {line.id: line for line in read_schemas(path) if schema_id in (None, line.id)}
    if schema_id is not None and not found:
        raise ConfigError(
            f"{path} tells no schema {schema_id!r}",
            hint="it stands before the first row that names it: record the stream from before that row",
        )
    for line in found.values():
        typer.echo(to_plain(format_schema(line, form)))
