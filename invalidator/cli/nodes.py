"""``invalidator nodes``: the nodes of the cache are changed while hits go on, step by step."""

from __future__ import annotations

from dataclasses import asdict
from difflib import unified_diff
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from freshness.config.config import load_config
from freshness.errors import ConfigError
from invalidator.cli.options import DEFAULT_CONFIG, AsJson, ConfigPath
from invalidator.cli.output import print_json


class NodesAction(StrEnum):
    STATUS = "status"
    ADD = "add"
    DISCOVER = "discover"
    REMOVE = "remove"
    REPLACE = "replace"
    FINISH = "finish"
    RENEW = "renew"


def nodes(
    action: Annotated[NodesAction, typer.Argument(help="Print the step that is due, or do it.")] = NodesAction.STATUS,
    names: Annotated[list[str] | None, typer.Argument(metavar="NODE", help="HOST:PORT, as in cache.nodes.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the change of the file, and write nothing.")
    ] = False,
    after_ttl: Annotated[
        bool, typer.Option("--after-ttl", help="For finish: value_ttl_seconds have passed since nodes were removed.")
    ] = False,
    as_json: AsJson = False,
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    """Add and remove cache nodes while hits go on: write the next file, and say which step is due."""
    from invalidator.reshard import nodes as change
    from invalidator.reshard.guide import replace_file

    given = names or []
    _require_names(action, given)
    present = load_config(config)
    text = None
    match action:
        case NodesAction.ADD:
            text = change.change_nodes(present, partial(change.add, nodes=given))
        case NodesAction.DISCOVER:
            text = change.discover(present)
        case NodesAction.REMOVE:
            text = change.change_nodes(present, partial(change.remove, nodes=given))
        case NodesAction.REPLACE:
            text = change.change_nodes(present, partial(change.replace_node, previous=given[0], node=given[1]))
        case NodesAction.FINISH:
            text = change.finish(present, is_after_ttl=after_ttl)
        case NodesAction.RENEW if not dry_run:
            change.renew(present, given[0])
    if text is not None:
        previous = present.path.read_text("utf-8").splitlines(keepends=True)
        if dry_run:
            lines = unified_diff(previous, text.splitlines(keepends=True), str(config), f"{config}, next")
            typer.echo("".join(lines), nl=False)
            return
        replace_file(present.path, text)
        typer.echo(f"invalidator: {config} was written", err=True)
    step = change.read_step(config)
    if as_json:
        print_json(asdict(step))
        return
    typer.echo(f"{step.name}: {step.title}")
    for line in step.missing:
        typer.echo(f"    missing: {line}")
    typer.echo(f"    do: {step.todo}")


def _require_names(action: NodesAction, names: list[str]) -> None:
    counts = {
        NodesAction.REPLACE: (2, 2),
        NodesAction.RENEW: (1, 1),
        NodesAction.ADD: (1, 999),
        NodesAction.REMOVE: (1, 999),
    }
    least, most = counts.get(action, (0, 0))
    if not least <= len(names) <= most:
        wanted = {0: "no node", 1: "a node" if most == 1 else "nodes", 2: "OLD NEW"}[least]
        raise ConfigError(f"nodes {action.value} got {len(names)} names", hint=f"give {wanted}")
