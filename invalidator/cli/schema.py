"""``invalidator schema``: of the configuration, for an editor; of a recorded stream, for a library."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from freshness.errors import ConfigError
from invalidator.cli.output import print_json, to_plain
from invalidator.stream.schema_format import SchemaFormat


def schema(
    path: Annotated[
        Path | None, typer.Argument(help="A file of JSON lines, as `invalidator stream` prints them.")
    ] = None,
    schema_id: Annotated[
        str | None, typer.Option("--id", help="Of one schema, as a line names it; default: all.")
    ] = None,
    form: Annotated[
        SchemaFormat, typer.Option("--format", help="As the stream tells it, or for a library.")
    ] = "json-schema",
) -> None:
    """Print the JSON Schema of freshness.toml; with PATH the schemas that this recorded stream tells, a line each."""
    from freshness.config.schema import describe_file
    from invalidator.stream.json_lines import read_schemas
    from invalidator.stream.schema_format import format_schema

    if path is None:
        if schema_id is not None or form != "json-schema":
            raise typer.BadParameter("--id and --format need the PATH of a recorded stream")
        print_json(describe_file())
        return
    found = {line.id: line for line in read_schemas(path) if schema_id in (None, line.id)}
    if schema_id is not None and not found:
        raise ConfigError(
            f"{path} tells no schema {schema_id!r}",
            hint="it stands before the first row that names it: record the stream from before that row",
        )
    for line in found.values():
        typer.echo(to_plain(format_schema(line, form)))
