"""The command line of the invalidator. A file for each verb, or for two about keys; the work is done elsewhere.

A mistake of the user's ends with one line and the exit code of its error, never with a traceback (exit codes:
0 ok, 1 bug, 2 usage or configuration, 3 upstream unavailable, 4 an operator is needed). The answer goes to stdout,
everything else to stderr. A verb imports its own subsystem when it is called, so that no verb waits for another's.
"""

from __future__ import annotations

import sys
from typing import Annotated

from freshness import __version__
from freshness.errors import FreshnessError, required_packages

with required_packages("invalidator", "invalidator"):
    import typer

    from invalidator.cli import (
        check,
        compare,
        completion,
        keys,
        nodes,
        probe,
        publish,
        record,
        replay,
        reshard,
        run,
        schema,
        status,
        stream,
    )
    from invalidator.cli.options import Verb

app = typer.Typer(
    help="Keeps a cache of MySQL data fresh: follows the binlog and invalidates.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for verb in (
    run.run,
    check.check,
    status.status,
    keys.inspect_key,
    keys.invalidate,
    probe.probe,
    stream.stream,
    schema.schema,
    record.record,
    publish.publish,
    replay.replay,
    reshard.reshard,
    nodes.nodes,
    compare.compare,
    completion.completion,
):
    app.command(verb.__name__.removesuffix("_key"), cls=Verb)(verb)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"freshness {__version__}")
        raise typer.Exit


@app.callback()
def _take_common_options(
    _: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options that stand before a verb."""


def main() -> None:
    """The console script. Errors of ours become one line and their exit code."""
    with required_packages("invalidator", "invalidator"):
        try:
            app()
        except FreshnessError as error:
            typer.echo(f"invalidator: {error.message}", err=True)
            if error.hint:
                typer.echo(f"  → {error.hint}", err=True)
            sys.exit(error.exit_code)
