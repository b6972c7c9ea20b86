"""``invalidator inspect``: one key in the cache, beside its row on the primary; ``invalidate``: keys, by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from freshness.config.config import load_config
from invalidator.cli.options import DEFAULT_CONFIG, AsJson, ConfigPath
from invalidator.cli.output import print_json, to_plain

ObjectName = Annotated[str, typer.Argument(metavar="OBJECT")]
KeyValues = Annotated[list[str], typer.Argument(metavar="KEY...")]


def inspect_key(
    name: ObjectName, key: KeyValues, config: ConfigPath = DEFAULT_CONFIG, as_json: AsJson = False
) -> None:
    """Show what the cache holds of one object, and whether it is what the primary has."""
    from freshness.database.schema import load_object
    from invalidator.process.status import inspect, locate_key
    from invalidator.replica.promotion import find_present

    settings = load_config(config)
    present = find_present(settings)
    answer = inspect(settings, locate_key(settings, load_object(present, name), name, key), present)
    if as_json:
        print_json(answer)
        return
    for title, value in answer.items():
        shown = to_plain(value) if isinstance(value, Mapping | list) else value
        typer.echo(f"{title + ':':16}{shown}")


def invalidate(
    name: ObjectName, key: KeyValues, config: ConfigPath = DEFAULT_CONFIG, as_json: AsJson = False
) -> None:
    """Remove what the cache holds of these keys; nothing older than the primary is now can be stored again."""
    from freshness.database.schema import load_object
    from invalidator.process.by_hand import invalidate_keys
    from invalidator.replica.promotion import find_present

    settings = load_config(config)
    invalidated = invalidate_keys(settings, load_object(find_present(settings), name), name, key)
    if as_json:
        print_json([{"object": name, "node": each.node, "item": each.item.decode()} for each in invalidated])
        return
    for each in invalidated:
        typer.echo(f"{each.item.decode()} on {each.node}: invalidated")
