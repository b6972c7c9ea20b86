"""The steps of a reshard (docs/topology.md): who does each, what shows that it is done, and the doing of ours.

The present step is the first one that does not show as done, so a step is never done before those ahead of it, and a
call that was killed is continued by the next one. A step that nothing shows, since it is the application's or
Vitess's, takes the operator's word. Only the invalidators' file is written here, in one piece, and never one of a
previous stage.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from freshness.config.keyspace import Shard
from freshness.database.connection import connected
from freshness.database.schema import load_registry
from freshness.errors import ConfigError, StepRefused
from freshness.history.durable import publish
from invalidator.reshard.plan import ReshardPlan, Stage
from invalidator.reshard.sight import Sight, take_sight
from invalidator.rules.finding import require
from invalidator.rules.primary import check_shard

LOOK_AGAIN_SECONDS: Final = 0.5
DRAFT_SUFFIX: Final = ".draft"

_ORDER: Final = tuple(Stage)
_CLOSED: Final = ("closed", "lapsed", "unknown")
"""States of a node in which no reader hits or fills; see ``invalidator status``."""


@dataclass(frozen=True, slots=True)
class ReshardStep:
    """``stage``: the file to put in force if the step is this program's; else ``todo`` is the operator's.
    ``find_missing``: yields the signs that the step is not done. ``needs_word``: True if no sign shows that it is;
    then it counts as done if the file is already of a later stage, or at the operator's word."""

    name: str
    title: str
    find_missing: Callable[[Sight], Iterator[str]]
    stage: Stage | None = None
    todo: tuple[str, ...] = ()
    needs_word: bool = False
    before: Stage | None = None

    @property
    def actor(self) -> str:
        return "operator" if self.stage is None else "invalidator reshard next"


def _is_from(sight: Sight, stage: Stage) -> bool:
    return _ORDER.index(sight.stage) >= _ORDER.index(stage)


@dataclass(frozen=True, slots=True)
class Guide:
    """``path``: the invalidators' own file."""

    plan: ReshardPlan
    path: Path

    def __post_init__(self) -> None:
        for stage in (Stage.PREVIOUS, Stage.FINAL):
            given = self.plan.given[stage]
            if self.path.exists() and given.samefile(self.path):
                raise ConfigError(
                    f"{given} is the invalidators' own file, which this reshard writes",
                    hint=f"copy it, to previous.toml say, and name the copy; --config names {self.path}",
                )
            if given.resolve().parent != self.path.resolve().parent:
                raise ConfigError(
                    f"{given} is not in the folder of {self.path}",
                    hint="put it there: paths of passwords start at the folder of the file",
                )

    def list_steps(self) -> tuple[ReshardStep, ...]:
        plan = self.plan
        return (
            ReshardStep(
                "follow",
                f"{self._file(Stage.FOLLOWED)}; every invalidator follows {_names(plan.destinations)}",
                self._find_unfollowed,
                Stage.FOLLOWED,
            ),
            *(self._list_vitess_copy() if plan.flavor == "vitess" else self._list_copy()),
            ReshardStep(
                "swap",
                f"{self._file(Stage.SWAPPED)}, topology = {plan.topology}; {_names(plan.sources)} are closed on all "
                "nodes",
                self._find_open_sources,
                Stage.SWAPPED,
            ),
            ReshardStep(
                "switch",
                "let writes go to the destinations, then let applications load the last file",
                self._find_unready,
                todo=(*self._switch_commands(), f"give the applications {plan.given[Stage.FINAL]}"),
                needs_word=True,
                before=Stage.FINAL,
            ),
            ReshardStep(
                "retire",
                f"{self._file(Stage.FINAL)}; nobody follows {_names(plan.sources)} any more",
                self._find_unretired,
                Stage.FINAL,
            ),
            ReshardStep(
                "stop",
                "stop the servers of the sources",
                self._find_readers,
                todo=("let these sessions load the last file, or end them",),
            ),
        )

    def _file(self, stage: Stage) -> str:
        return f"{self.path} says: {stage.value}"

    def _list_copy(self) -> Iterator[ReshardStep]:
        plan = self.plan
        option = "super_read_only" if plan.flavor == "mysql" else "read_only"
        yield ReshardStep(
            "close",
            "move the data; then stop the writes to the sources",
            self._find_writable,
            todo=tuple(f"{_client(each)} -e 'SET GLOBAL {option} = 1'" for each in plan.sources),
        )
        replicated = [each for each in plan.destinations if each.continues]
        if replicated:
            yield ReshardStep(
                "promote",
                "the destinations have all that the sources executed; then they follow nobody and are writable",
                self._find_unpromoted,
                todo=tuple(
                    f"{_client(each)} -e '{_PROMOTION[plan.flavor]}', then delete the rows outside of {each.name}"
                    for each in replicated
                ),
            )
        if len(replicated) < len(plan.destinations):
            yield ReshardStep(
                "compare",
                "the destinations that were copied have all rows of the sources, and are writable",
                self._find_read_only,
                todo=("copy the last changes, and compare the rows: nothing shows here that none is missing",),
                needs_word=True,
                before=Stage.SWAPPED,
            )

    def _list_vitess_copy(self) -> Iterator[ReshardStep]:
        keyspace = self.plan.keyspace
        yield ReshardStep(
            "copy",
            "Vitess has copied the rows and replicates the changes",
            lambda _: iter(()),
            todo=(f"vtctldclient Reshard --workflow NAME --target-keyspace {keyspace} status, and VDiff",),
            needs_word=True,
            before=Stage.SWAPPED,
        )

    def _switch_commands(self) -> tuple[str, ...]:
        if self.plan.flavor != "vitess":
            return ("route the writes of the application to the destinations",)
        return (
            f"vtctldclient Reshard --workflow NAME --target-keyspace {self.plan.keyspace} SwitchTraffic",
            "vtctldclient Reshard ... complete, once retire is done",
        )

    def _find_unfollowed(self, sight: Sight) -> Iterator[str]:
        if sight.stage is Stage.PREVIOUS:
            yield f"{self.path} does not name {_names(self.plan.destinations)}"
            return
        if _is_from(sight, Stage.SWAPPED):
            return
        for shard in self.plan.destinations:
            look = sight.primaries.get(shard.lineage)
            if getattr(look, "is_read_only", False):
                continue  # no heartbeat can be written there, so no node can show it
            for entry in sight.records_of([shard]):
                if entry["state"] not in ("open", "closed"):
                    yield f"{_place(entry)}: no invalidator follows it yet{_cause(entry)}"

    def _find_writable(self, sight: Sight) -> Iterator[str]:
        if sight.stage is Stage.FINAL:
            return  # they may be used for something else
        for shard in self.plan.sources:
            look = sight.primaries[shard.lineage]
            if isinstance(look, Exception):
                if not _is_from(sight, Stage.SWAPPED):
                    yield f"the primary of {shard.lineage} cannot be asked: {look}"
            elif not look.is_read_only:
                yield f"the primary of {shard.lineage}, {shard.primary}, is writable"

    def _find_unpromoted(self, sight: Sight) -> Iterator[str]:
        if _is_from(sight, Stage.SWAPPED):
            return  # from now on it has more, and its sources may be stopped
        for shard in self.plan.destinations:
            if not shard.continues:
                continue
            look = sight.primaries[shard.lineage]
            if isinstance(look, Exception):
                yield f"the primary of {shard.lineage} cannot be asked: {look}"
                continue
            for source in self.plan.sources_of(shard):
                previous = sight.primaries[source.lineage]
                if isinstance(previous, Exception):
                    yield f"the primary of {source.lineage} cannot be asked: {previous}"
                elif not look.executed.contains(previous.executed):
                    yield (
                        f"{shard.lineage} has not executed all of {source.lineage}; if that goes on, somebody writes "
                        f"to {source.primary} in spite of read_only"
                    )
            if look.follows:
                yield f"{shard.lineage} still follows another server"
            if look.is_read_only:
                yield f"{shard.lineage} is read-only"

    def _find_read_only(self, sight: Sight) -> Iterator[str]:
        for shard in self.plan.destinations:
            look = sight.primaries.get(shard.lineage)
            if isinstance(look, Exception):
                yield f"the primary of {shard.lineage} cannot be asked: {look}"
            elif look is not None and look.is_read_only:
                yield f"{shard.lineage} is read-only: no heartbeat can be written, so no node would open"

    def _find_open_sources(self, sight: Sight) -> Iterator[str]:
        if not _is_from(sight, Stage.SWAPPED):
            yield f"{self.path} still lets {_names(self.plan.sources)} serve"
            return
        for entry in sight.records_of(self.plan.sources):
            if entry["state"] not in _CLOSED:
                yield f"{_place(entry)}: {entry['state']}{_cause(entry)}"
            elif entry["state"] == "closed" and entry["topology"] < self.plan.topology:
                yield f"{_place(entry)}: closed, and still of topology {entry['topology']}"

    def _find_unready(self, sight: Sight) -> Iterator[str]:
        yield from self._find_read_only(sight)
        for entry in sight.records_of(self.plan.destinations):
            if entry["state"] != "open":
                yield f"{_place(entry)}: {entry['state']}, not open yet{_cause(entry)}"

    def _find_unretired(self, sight: Sight) -> Iterator[str]:
        if sight.stage is not Stage.FINAL:
            yield f"{self.path} still names {_names(self.plan.sources)}"
            return
        for entry in sight.records_of(self.plan.sources):
            if entry["state"] not in ("lapsed", "unknown"):
                yield f"{_place(entry)}: {entry['state']}, an invalidator still follows it{_cause(entry)}"

    def _find_readers(self, sight: Sight) -> Iterator[str]:
        for name, count in sight.sessions.items():
            yield f"{count} session{'s' if count > 1 else ''} of {name}"

    def find_present(self, sight: Sight, *, word: bool = False) -> tuple[ReshardStep | None, list[str]]:
        """The first step that does not show as done, and what is missing; None after the last. ``word``: the operator
        says that the step that nothing shows is done; between two such steps lies one of ours."""
        for step in self.list_steps():
            missing = list(step.find_missing(sight))
            is_past = step.before is not None and _is_from(sight, step.before)
            if step.needs_word and not missing and not is_past and not word:
                missing = ["nothing here shows that it is done: say so with --done"]
            if missing:
                return step, missing
        return None, []

    def do_next(
        self, *, word: bool = False, reload: str = "", wait_seconds: float = 60, tell: Callable[[str], None]
    ) -> ReshardStep | None:
        """Do the current step, and return it when it shows as done; None if all are. ``reload``: a command that makes
        every invalidator load the file. Raises `StepRefused` if the step is the operator's, or does not show as done
        within ``wait_seconds``, and what the file and the servers raise. A repeated call continues."""
        sight = take_sight(self.plan, self.path)
        step, missing = self.find_present(sight, word=word)
        if step is None:
            return None
        if step.stage is None:
            raise StepRefused(
                f"the step {step.name!r} is the operator's: {step.title}. Missing: {'; '.join(missing)}",
                hint="; ".join(step.todo),
            )
        if step.stage is Stage.FOLLOWED:
            self._check_destinations()
        self._put_in_force(step.stage, sight, reload, tell)
        return self._wait(step, wait_seconds)

    def _wait(self, step: ReshardStep, wait_seconds: float) -> ReshardStep:
        deadline = time.monotonic() + wait_seconds
        while missing := list(step.find_missing(take_sight(self.plan, self.path))):
            if time.monotonic() >= deadline:
                raise StepRefused(
                    f"the step {step.name!r} does not show as done after {wait_seconds:g} s: {'; '.join(missing)}",
                    hint="has every invalidator got the file, and loaded it (SIGHUP)? The same again continues",
                )
            time.sleep(LOOK_AGAIN_SECONDS)
        return step

    def _check_destinations(self) -> None:
        """Refuse what would keep `run` from following them. Raises `SourceUnavailable` and `SourceUnsuitable`."""
        config = self.plan.configs[Stage.PREVIOUS]
        keyspace = config.keyspaces[self.plan.keyspace]
        tables = {
            table for each in load_registry(config, [keyspace.name]).values() for table in each.columns_by_table
        }
        for shard in self.plan.destinations:
            with connected(shard.writable, "checking it") as connection:
                findings = check_shard(connection, shard, keyspace.gtid_flavor, sorted(tables))
            require(findings)

    def _put_in_force(self, stage: Stage, sight: Sight, reload: str, tell: Callable[[str], None]) -> None:
        if not _is_from(sight, stage):
            replace_file(self.path, self.plan.texts[stage])
            tell(f"{self.path} was written: {stage.value}")
        if not reload:
            tell("give it to every invalidator, and make it load it (SIGHUP)")
            return
        tell(f"running {reload}")
        done = subprocess.run(shlex.split(reload), check=False)
        if done.returncode:
            raise StepRefused(
                f"{reload!r} ended with exit code {done.returncode}",
                hint=f"{self.path} is in place; correct the command, and do the same again",
            )


_PROMOTION: Final = {
    "mysql": "STOP REPLICA; RESET REPLICA ALL; SET GLOBAL super_read_only = 0, GLOBAL read_only = 0",
    "mariadb": "STOP ALL SLAVES; RESET SLAVE ALL; SET GLOBAL read_only = 0",
}


def replace_file(path: Path, text: str) -> None:
    """In one piece, with the rights that the file has: it may hold passwords."""
    draft = path.with_name(path.name + DRAFT_SUFFIX)
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    shutil.copymode(path, draft)
    publish(draft, path)


def _names(shards: Iterable[Shard]) -> str:
    return ", ".join(shard.lineage for shard in shards)


def _client(shard: Shard) -> str:
    return f"mysql -h {shard.primary.host} -P {shard.primary.port}"


def _place(entry: Mapping[str, Any]) -> str:
    return f"{entry['lineage']} on {entry['node']}"


def _cause(entry: Mapping[str, Any]) -> str:
    return f" ({entry['error']})" if entry.get("error") else ""
