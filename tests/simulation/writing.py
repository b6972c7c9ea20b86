"""Readers that write: a session commits on the primary, and asks its later reads for its own commits (I9)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final

from freshness.algorithm.request import Wait
from freshness.algorithm.state import NO_DEMAND, Demand
from freshness.position.commit import CommitToken
from freshness.position.token import EventToken
from freshness.stream.source import RowChange
from tests.simulation.database import Commit, Shard

if TYPE_CHECKING:
    from tests.simulation.world import World

FORGETS_SHARE: Final = 0.1
"""How often a session drops its token before it reads: its cookie has expired."""

PREVIOUS_EPOCH_SHARE: Final = 0.2
"""How often a token has the epoch that a replica shows."""

WAIT_SECONDS: Final = 0.02


@dataclass(slots=True)
class OwnCommits:
    """The commits of one reader's session that have returned, and their token. ``chance`` is its own, so that worlds
    without such sessions stay as they were."""

    world: World
    name: str
    commits: list[tuple[Shard, Commit, int]] = field(default_factory=list)
    token: CommitToken | None = None
    chance: Random = field(init=False)

    def __post_init__(self) -> None:
        options = self.world.options
        self.chance = Random(f"writes of {self.name} {options.seed} {options.chance}")

    def demand(self) -> Demand:
        if self.token is None:
            return NO_DEMAND
        return Demand(at_least={each.lineage: each for each in self.token.tokens})

    def write(self) -> Generator[Any, Any, int | None]:
        """Change a row, and wait until the commit returns: the primary shows it. Return the key, or None if nothing
        was changed, or if nobody knows because the primary is gone."""
        world, chance = self.world, self.chance
        if chance.random() < FORGETS_SHARE:
            self.commits, self.token = [], None
        if world.calm or chance.random() >= world.options.writes_share:
            return None
        shard = chance.choice(world.shards)
        key, table = chance.randrange(world.options.keys), chance.choice(shard.tables)
        primary = shard.primary
        image = {"id": world.kind.stored[key]}
        commit = shard.write(world.now, (RowChange(table, "update", image, image),))
        world.note(f"{shard.lineage}: commit {commit.number} of {self.name} changes {table}[{key}]")
        while commit not in primary.applied:
            if shard.primary is not primary:
                return None
            yield Wait(WAIT_SECONDS)
        if shard.primary is not primary:
            return None
        of_replica = chance.random() < PREVIOUS_EPOCH_SHARE
        epoch = chance.choice(shard.replicas).epoch if of_replica else primary.epoch
        token = CommitToken.of([EventToken(shard.lineage, "-", epoch, 0, commit.position)])
        self.token = token if self.token is None else self.token.union(token)
        self.commits.append((shard, commit, epoch))
        world.count("own commit")
        return key
