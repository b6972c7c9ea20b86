"""The visible state of a reshard: the invalidators' file, the records of the nodes, the servers of its shards.

Nothing is kept between two calls: these alone show how far a reshard is. Changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from freshness.config.keyspace import Shard
from freshness.config.server import ServerAddress
from freshness.errors import FreshnessError, SourceUnavailable
from invalidator.process.status import read_nodes
from invalidator.replica.candidate import Look
from invalidator.replica.server import find_sessions, look_at
from invalidator.reshard.plan import ReshardPlan, Stage

LOOK_SECONDS: Final = 5.0
"""How long a server may take for each answer."""


@dataclass(frozen=True, slots=True)
class Sight:
    """``stage``: stage of the file. ``nodes``: result of `read_nodes`. ``primaries``: primaries of sources and
    destinations, by lineage; none behind a vtgate. ``sessions``: number of others' sessions on the sources' servers,
    by name; only if the sources are gone from the file."""

    stage: Stage
    nodes: Sequence[Mapping[str, Any]]
    primaries: Mapping[str, Look]
    sessions: Mapping[str, int]

    def records_of(self, shards: Iterable[Shard]) -> list[Mapping[str, Any]]:
        """The entries of these shards on all nodes."""
        lineages = {shard.lineage for shard in shards}
        return [entry for entry in self.nodes if entry["lineage"] in lineages]


def take_sight(plan: ReshardPlan, path: Path) -> Sight:
    """Look at everything now. ``path``: the invalidators' file. Raises `ConfigError` if it is not of the plan; a
    server or node that does not answer is a part of the sight."""
    stage = plan.find_stage(path)
    is_asked = plan.flavor != "vitess"
    shards = (*plan.sources, *plan.destinations) if is_asked else ()
    gone = plan.sources if is_asked and stage is Stage.FINAL else ()
    return Sight(
        stage,
        read_nodes(plan.configs[Stage.SWAPPED]),
        # Each destination after its sources, whose end it is compared with
        {shard.lineage: _look(shard, plan.flavor) for shard in shards},
        Counter(
            f"{session} on {server.host}:{server.port}"
            for shard in gone
            for server in (shard.primary, *shard.replicas)
            for session in _find_sessions(server)
        ),
    )


def _look(shard: Shard, flavor: str) -> Look:
    try:
        return look_at(shard.primary, flavor, timeout_seconds=LOOK_SECONDS)
    except FreshnessError as error:
        return error


def _find_sessions(server: ServerAddress) -> list[str]:
    try:
        return find_sessions(server)
    except SourceUnavailable:
        return []  # it is stopped
    except FreshnessError as error:
        return [f"perhaps somebody, since it does not tell ({error.message}),"]
