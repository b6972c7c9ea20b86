"""``invalidator status``: the record and the stripes of every cache node."""

from __future__ import annotations

from typing import Final

from freshness.config.config import load_config
from invalidator.cli.options import DEFAULT_CONFIG, AsJson, ConfigPath
from invalidator.cli.output import print_json

PIPE_WIDTH: Final = 100_000
"""Columns of a line for a program: it wants each row on one, also with a long GTID set."""


def status(config: ConfigPath = DEFAULT_CONFIG, as_json: AsJson = False) -> None:
    """Show what every cache node says of itself. Needs no running invalidator."""
    from rich.console import Console
    from rich.table import Table

    from invalidator.process.status import read_status

    answer = read_status(load_config(config))
    if as_json:
        print_json(answer)
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("node", "lineage", "state", "lease s", "age s", "stripes %"):
        table.add_column(title, no_wrap=True)
    for title in ("progress", "floor"):
        table.add_column(title, overflow="fold", min_width=len(title))
    for node in answer["nodes"]:
        table.add_row(
            node["node"],
            node["lineage"],
            node["state"],
            str(node.get("lease_seconds_left", "")),
            str(node.get("heartbeat_age_seconds") or ""),
            str(node.get("stripes_there_percent", "")),
            node.get("progress", ""),
            node.get("floor", ""),
        )
    console = Console(soft_wrap=True)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(table, soft_wrap=False)
    for node in answer["nodes"]:
        if node.get("problem"):
            console.print(f"{node['node']} of {node['lineage']}: {node['problem']}", highlight=False)
    for server in answer["servers"]:
        share = server.get("refused_percent")
        found = (
            server["error"]
            if share is None
            else f"a fill is refused for a neighbour's sake in about {share} % of cases"
        )
        advice = f"; {server['advice']}" if server.get("advice") else ""
        console.print(f"{server['server']} of {server['lineage']}: {found}{advice}", highlight=False)
