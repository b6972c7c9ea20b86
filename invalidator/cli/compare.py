"""``invalidator compare``: the order of two event tokens."""

from __future__ import annotations

from typing import Annotated

import typer

from freshness.position.token import EventToken
from freshness.position.token import compare as compare_tokens
from invalidator.cli.options import AsJson
from invalidator.cli.output import print_json


def compare(
    one: Annotated[str, typer.Argument(metavar="TOKEN")],
    two: Annotated[str, typer.Argument(metavar="TOKEN")],
    as_json: AsJson = False,
) -> None:
    """How the first event token stands to the second: older, equal, newer or unknown."""
    tokens = EventToken.parse(one), EventToken.parse(two)
    order = compare_tokens(*tokens).value
    if not as_json:
        typer.echo(order)
        return
    described = [
        {
            "lineage": token.lineage,
            "shard": token.shard,
            "epoch": token.epoch,
            "timestamp": token.timestamp_us / 1e6,
            "position": str(token.position),
        }
        for token in tokens
    ]
    print_json({"order": order, "tokens": described})
