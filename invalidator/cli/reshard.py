"""``invalidator reshard``: shards that take the place of others, step by step."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freshness.errors import ConfigError
from invalidator.cli.options import DEFAULT_CONFIG, AsJson, ConfigPath
from invalidator.cli.output import print_json

if TYPE_CHECKING:
    from invalidator.reshard.guide import Guide


class ReshardAction(StrEnum):
    PLAN = "plan"
    STATUS = "status"
    NEXT = "next"


def reshard(
    action: Annotated[ReshardAction, typer.Argument(help="Print the steps, where they stand, or do the next.")],
    previous: Annotated[Path, typer.Argument(metavar="FROM", help="The file before: the sources serve.")],
    final: Annotated[Path, typer.Argument(metavar="TO", help="The file after: the destinations serve.")],
    done: Annotated[bool, typer.Option("--done", help="The operator's step that nothing shows is done.")] = False,
    reload: Annotated[
        str | None, typer.Option(help="Command that makes every invalidator load the file again.")
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds until a step must show as done.")] = 60.0,
    as_json: AsJson = False,
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    """Guide a reshard from one file to another. Each step is checked before the next; the same again continues."""
    from invalidator.reshard.guide import Guide
    from invalidator.reshard.plan import read_plan
    from invalidator.reshard.sight import take_sight

    if action is not ReshardAction.NEXT and (done or reload):
        raise ConfigError(f"reshard {action.value} does nothing", hint="--done and --reload belong to next")
    guide = Guide(read_plan(previous, final), config)
    if action is ReshardAction.PLAN:
        _print(guide, None, "", [], as_json)
        return
    if action is ReshardAction.NEXT:
        step = guide.do_next(
            word=done,
            reload=reload or "",
            wait_seconds=wait,
            tell=lambda text: typer.echo(f"invalidator: {text}", err=True),
        )
        typer.echo("all steps are done" if step is None else f"done: {step.name}", err=True)
    sight = take_sight(guide.plan, config)
    present, missing = guide.find_present(sight)
    _print(guide, present.name if present else "", sight.stage.name.lower(), missing, as_json)


def _print(guide: Guide, present: str | None, stage: str, missing: list[str], as_json: bool) -> None:
    """``present``: the name of the step that is due, "" after the last, None where nobody looked."""
    state, steps = "done", []
    for step in guide.list_steps():
        if present is None:
            state = ""
        elif step.name == present:
            state = "due"
        elif state == "due":
            state = "later"
        entry: dict[str, Any] = {"step": step.name, "actor": step.actor, "state": state, "title": step.title}
        steps.append(entry | {"todo": list(step.todo), "missing": missing if state == "due" else []})
    if as_json:
        print_json({"file": stage, "steps": steps})
        return
    for entry in steps:
        mark = f" [{entry['state']}]" if entry["state"] else ""
        typer.echo(f"{entry['step']}{mark} ({entry['actor']}): {entry['title']}")
        for line in () if entry["state"] == "done" else entry["todo"]:
            typer.echo(f"    do: {line}")
        for line in entry["missing"]:
            typer.echo(f"    missing: {line}")
