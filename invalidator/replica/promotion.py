"""Which of a shard's servers is the primary now, as the servers themselves show it (docs/adr/0035).

Used only if the operator allows it (``adopt_promotions``). Exactly one of the listed servers may be writable. If
several are, nothing is followed and nothing is cached. If one other than the current primary is, it must follow
nobody, have executed everything that was streamed or acknowledged, and have had no transaction of its own while it
was a replica (F53). Runs in the threads of the worker.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from freshness.config.config import Config
from freshness.config.keyspace import Shard
from freshness.config.server import ServerAddress
from freshness.database.cluster import ClusterRefused
from freshness.errors import FreshnessError, SourceUnavailable
from freshness.position import Position, empty_position
from invalidator.replica.candidate import Look
from invalidator.replica.server import APART, ServerState, find_foreign, look_at

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
"""Pause between two looks, and how long a server may take for each answer."""

PATIENT_SECONDS: Final = 10.0
"""How long a server may take for each answer if only one look is taken."""

LOOKS: Final = 3
"""Looks in a row that must show the same before the stream is left for it."""


class PrimaryMoved(SourceUnavailable):
    """Another server is the shard's primary now. ``address``: its own, with the primary's account."""

    def __init__(self, message: str, address: ServerAddress) -> None:
        super().__init__(message, hint="it is adopted; name it in the configuration when you like")
        self.address = address

    def __reduce__(self) -> tuple[type[PrimaryMoved], tuple[str, ServerAddress]]:
        return type(self), (self.message, self.address)


def with_primary(shard: Shard, address: ServerAddress) -> Shard:
    """The shard with this one of its servers as the primary; the previous one becomes a replica."""
    listed = [each for each in shard.replicas if (each.host, each.port) == (address.host, address.port)]
    if not listed:
        return shard
    others = [each for each in shard.replicas if each not in listed]
    return replace(shard, primary=_with_account(shard.primary, listed[0]), replicas=(*others, shard.primary))


def with_primaries(config: Config, adopted: Mapping[str, ServerAddress]) -> Config:
    """The configuration with these servers as primaries, by lineage, if it allows that and lists them."""
    keyspaces = {
        name: replace(
            keyspace,
            shards=tuple(
                with_primary(shard, adopted[shard.lineage])
                if shard.adopt_promotions and shard.lineage in adopted
                else shard
                for shard in keyspace.shards
            ),
        )
        for name, keyspace in config.keyspaces.items()
    }
    return replace(config, keyspaces=keyspaces) if adopted else config


@dataclass(slots=True)
class PromotionWatch:
    """Looks at all servers of a shard. ``read_streamed``: everything that was streamed or acknowledged. ``errant``:
    transactions that each replica had and its primary lacked, by server. `look` belongs to one thread at a time."""

    shard: Shard
    flavor: str
    read_streamed: Callable[[], Position]
    look_at: Callable[[ServerAddress], ServerState] | None = None
    errant: dict[str, str] = field(default_factory=dict)
    _apart: set[ServerAddress] = field(default_factory=set)

    def require_primary(self, pause: Callable[[float], None]) -> None:
        """Return if the current primary is the only writable server, or if none is. Raises `SourceUnavailable`, and
        `PrimaryMoved` only after several looks that show it."""
        for _ in range(LOOKS):
            verdict = self.look()
            if not isinstance(verdict, PrimaryMoved):
                break
            pause(LOOK_SECONDS)
        if verdict is not None:
            raise verdict

    def watch(self, is_stopping: threading.Event, leave: Callable[[FreshnessError], None]) -> None:
        """Look until the event is set; call ``leave`` once, with what ends the stream."""
        shown: object = None
        seen = 0
        while not is_stopping.wait(LOOK_SECONDS):
            verdict = self.look()
            key = verdict.address if isinstance(verdict, PrimaryMoved) else verdict and verdict.message
            shown, seen = key, seen + 1 if key == shown else 1
            if verdict is not None and seen >= LOOKS:
                leave(verdict)
                return

    def look(self) -> FreshnessError | None:
        """None if the stream may go on, else the error that must end it."""
        # Replicas first: a transaction that one has executed is known to its primary by that one's later look
        looks: dict[ServerAddress, Look] = {}
        streamed = self.read_streamed()
        for address in (*self.shard.replicas, self.shard.primary):
            looks[address] = self._look_at(address)
        return self._judge(looks, streamed)

    def _look_at(self, address: ServerAddress) -> Look:
        try:
            if self.look_at is not None:
                return self.look_at(address)
            return look_at(address, self.flavor, timeout_seconds=LOOK_SECONDS)
        except FreshnessError as error:
            return error

    def _judge(self, looks: Mapping[ServerAddress, Look], streamed: Position) -> FreshnessError | None:
        for look in looks.values():
            if isinstance(look, ClusterRefused):
                return SourceUnavailable(look.message, hint=look.hint)  # it may be so for a moment
        states = {address: look for address, look in looks.items() if isinstance(look, ServerState)}
        self._name_apart(states)
        counting = {(state.domain, state.identity) for state in states.values() if state.domain}
        if len(counting) > 1:
            named = ", ".join(f"{domain}-{server}" for domain, server in sorted(counting))
            return SourceUnavailable(
                f"nodes of the Galera cluster of {self.shard.lineage} give different GTIDs: {named}",
                hint="set one wsrep_gtid_domain_id and one server_id on all nodes; until then nothing is cached",
            )
        writable = [address for address, state in states.items() if not state.is_read_only]
        servers = {_server(states[address], address) for address in writable}
        if len(servers) > 1:
            return SourceUnavailable(
                f"{len(servers)} servers of {self.shard.lineage} are writable at a time: {_names(writable)}",
                hint="set read_only on all but the primary; until then nothing is cached from this shard",
            )
        for address in writable:
            reason = self._find_refusal(address, states[address], streamed)
            if reason:
                return SourceUnavailable(
                    f"{_names([address])} is writable and cannot be the primary of {self.shard.lineage}: {reason}",
                    hint="until that is mended, nothing is cached from this shard; see docs/operations.md",
                )
        if self.shard.primary in writable:
            self._note_errant(states)
            return None
        if not writable:
            return None  # in the middle of a switchover, or all are gone: leases run out
        candidate = writable[0]
        present = looks[self.shard.primary]
        state = "is read-only" if isinstance(present, ServerState) else f"does not answer: {present}"
        return PrimaryMoved(
            f"{_names([candidate])} is the primary of {self.shard.lineage} now; "
            f"{_names([self.shard.primary])} {state}",
            candidate,
        )

    def _find_refusal(self, address: ServerAddress, state: ServerState, streamed: Position) -> str:
        if address != self.shard.primary:  # else opening the stream compares what was streamed
            if state.follows:
                return "it follows another server"
            if not state.executed.contains(streamed):
                return "it has not executed everything that was streamed from the previous primary (F28)"
        errant = self.errant.get(_server(state, address), "")
        return f"it had errant transactions while it was a replica: {errant[:200]} (F53)" if errant else ""

    def _name_apart(self, states: Mapping[ServerAddress, ServerState]) -> None:
        apart = {address for address, state in states.items() if any(map(state.is_apart, states.values()))}
        for address in apart - self._apart:
            log.warning("%s of %s %s", _names([address]), self.shard.lineage, APART)
        self._apart = apart

    def _note_errant(self, states: Mapping[ServerAddress, ServerState]) -> None:
        """Remember what each replica has and its primary lacks, while there is a primary to compare it with."""
        primary, nothing = states[self.shard.primary], empty_position(self.flavor)
        for address, state in states.items():
            if (server := _server(state, address)) != _server(primary, self.shard.primary):
                self.errant[server] = find_foreign(state, primary, nothing)


def find_move(shard: Shard, flavor: str) -> PrimaryMoved | None:
    """The move of the primary that `run` would adopt now, for what reads beside it. None in any doubt."""
    if not shard.adopt_promotions:
        return None
    patient = partial(look_at, flavor=flavor, timeout_seconds=PATIENT_SECONDS)
    found = PromotionWatch(shard, flavor, lambda: empty_position(flavor), patient).look()
    return found if isinstance(found, PrimaryMoved) else None


def find_present(config: Config) -> Config:
    """The configuration with the primaries that `run` would adopt now."""
    moves = {
        shard.lineage: find_move(shard, keyspace.gtid_flavor)
        for keyspace in config.keyspaces.values()
        for shard in keyspace.shards
    }
    return with_primaries(config, {lineage: move.address for lineage, move in moves.items() if move is not None})


def _server(state: ServerState, address: ServerAddress) -> str:
    """The name of a server: a proxy is the one behind it."""
    return state.server or str(address)


def _with_account(primary: ServerAddress, address: ServerAddress) -> ServerAddress:
    """The account of a replica's URL may be the application's: the primary's account is the invalidator's."""
    return replace(primary, host=address.host, port=address.port, tls=address.tls)


def _names(addresses: Sequence[ServerAddress]) -> str:
    return ", ".join(f"{each.host}:{each.port}" for each in addresses)
