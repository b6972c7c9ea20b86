"""``invalidator invalidate``: keys that an operator names, invalidated by hand."""

from __future__ import annotations

from typing import Annotated

import typer

from freshness.config.config import load_config
from invalidator.cli.options import DEFAULT_CONFIG, AsJson, ConfigPath
from invalidator.cli.output import print_json


def invalidate(
    name: Annotated[str, typer.Argument(metavar="OBJECT")],
    key: Annotated[list[str], typer.Argument(metavar="KEY...")],
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Remove what the cache holds of these keys; nothing older than the primary is now can be stored again."""
    from freshness.database.schema import load_object
    from invalidator.process.by_hand import invalidate_keys

    settings = load_config(config)
    invalidated = invalidate_keys(settings, load_object(settings, name), name, key)
    if as_json:
        print_json([{"object": name, "node": each.node, "item": each.item.decode()} for each in invalidated])
        return
    for each in invalidated:
        typer.echo(f"{each.item.decode()} on {each.node}: invalidated")
