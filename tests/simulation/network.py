"""The nodes and the connections to them: what is carried out, what is lost, what comes late."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from freshness.algorithm.envelope import STUB, record_key, resume_key
from freshness.algorithm.request import CONFLICT, Add, Append, Cas, Get, Reply, Request
from freshness.errors import NodeUnavailable
from freshness.nodes.memory import MemoryStore
from tests.simulation.actor import Actor
from tests.simulation.history import show

if TYPE_CHECKING:
    from tests.simulation.world import World

REQUEST_FAULT_SHARE: Final = 0.2
"""How many of the faults that a request could suffer it does suffer: one ends a whole membership."""

REFUSED_SHARE: Final = 0.1
"""The share of appends that are refused, if they can be."""

BOUND_ANYWHERE: Final = "a bound item is added to any data"
"""A planted bug, see `tests.simulation.bugs`."""

REQUEST_FAULTS: Final = ("lose_request", "lose_reply", "delay_request")


@dataclass(slots=True, eq=False)
class Late:
    """A request on its way although its sender has given up."""

    at: float
    node: str
    connection: tuple[int, int]
    request: Request
    who: str


class RedisStore(MemoryStore):
    """It can have an earlier memory of its own again. Versions never repeat."""

    def restart(self) -> None:
        last = self._last_version
        super().restart()
        self._last_version = last

    def come_back(self, earlier: Any, bound: Iterable[bytes]) -> None:
        """``bound``: keys of items that are shown as absent, as they are of another process or promotion."""
        last, down = self._last_version, self.down
        self.restore(earlier)
        self._last_version, self.down = last, down
        for key in bound:
            self.evict(key)


@dataclass(slots=True, eq=False)
class Earlier:
    """The memory of a server, which it has again later. ``is_silent``: its connections live on."""

    at: float
    store: RedisStore
    memory: Any
    is_silent: bool


@dataclass(slots=True, eq=False)
class Network:
    """``stores``: the server that each name means. ``servers``: the one that is meant to have the name.

    ``incarnations`` counts the restarts of each node, ``data`` how often its memory was replaced; ``back_at``: when a
    node that is cut off is back.
    """

    world: World
    servers: dict[str, MemoryStore]
    stores: dict[str, MemoryStore] = field(init=False)
    incarnations: dict[str, int] = field(init=False)
    data: dict[str, int] = field(init=False)
    late: list[Late] = field(default_factory=list)
    earlier: list[Earlier] = field(default_factory=list)
    back_at: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stores = dict(self.servers)
        self.incarnations = dict.fromkeys(self.servers, 0)
        self.data = dict.fromkeys(self.servers, 0)

    def names_of(self, node: str) -> list[str]:
        """All names of the server that ``node`` means now."""
        return [name for name, store in self.stores.items() if store is self.stores[node]]

    def resolve(self, name: str, server: str) -> None:
        """``name`` means another server from now on; nothing that was stored under the name is there."""
        self.stores[name] = self.servers[server]
        self.incarnations[name] += 1
        self.world.checker.node_emptied(name)

    def carry_out(self, actor: Actor, node: str, request: Request) -> Reply:
        world = self.world
        if self.stores[node].down or self.is_closed(actor, node):
            actor.connections.pop(node, None)
            if world.trace is not None:
                world.note(f"{actor.name} → {node} {show(request)}: no answer")
            raise NodeUnavailable(f"{node} does not answer")
        actor.connections.setdefault(node, (self.incarnations[node], self.data[node]))
        if world.has_stalls:
            kind = kind_of(request)
            actor.has_struck = kind == "strike" or (actor.has_struck and kind != "record")
        if actor.connections[node][1] != self.data[node] and self._is_bound_elsewhere(request):
            world.note(f"{actor.name} → {node} {show(request)}: refused, other data")
            return CONFLICT
        if self._refuses(request):
            world.count("refuse_append")
            world.note(f"{actor.name} → {node} {show(request)}: refused for memory")
            world.checker.executed(actor.name, node, request, CONFLICT)
            return CONFLICT
        fault = self._draw_fault()
        if fault == "delay_request":
            wait = world.random.choice((0.01, 0.5, 5.0, 40.0))
            self.late.append(Late(world.now + wait, node, actor.connections[node], request, actor.name))
        if fault is None or fault == "lose_reply":
            reply = self.execute(actor.name, node, request)
            if fault is None:
                return reply
        actor.connections.pop(node, None)
        world.note(f"{actor.name} → {node} {show(request)}: {fault}")
        raise NodeUnavailable(f"{node}: {fault}")

    def is_closed(self, actor: Actor, node: str) -> bool:
        """Whether the node has closed a connection."""
        known = actor.connections.get(node)
        return known is not None and known[0] != self.incarnations[node]

    def confirm(self, actor: Actor, node: str, requests: Sequence[Request]) -> None:
        """The last answer of a flow that reads says of which data they all are (F129)."""
        if actor.connections[node][1] != self.data[node] and any(isinstance(request, Get) for request in requests):
            del actor.connections[node]
            self.world.note(f"{actor.name} → {node}: other data than when the connection was opened")
            raise NodeUnavailable(f"{node} has other data")

    def _is_bound_elsewhere(self, request: Request) -> bool:
        """Whether a node that has other data than those of the connection does not take it (F100)."""
        return isinstance(request, Add) and request.is_bound and self.world.bug != BOUND_ANYWHERE

    def execute(self, who: str, node: str, request: Request) -> Reply:
        world, store = self.world, self.stores[node]
        if world.bug == "blind set" and is_fill(request):
            assert isinstance(request, Cas)
            store.evict(request.key)
            reply = store.answer(Add(request.key, request.value, request.ttl_seconds))
        else:
            reply = store.answer(request)
        if world.trace is not None:
            world.note(f"{who} → {node} {show(request)}: {show(reply)}")
        world.checker.executed(who, node, request, reply)
        return reply

    def abandon(self, actor: Actor, node: str, requests: list[Request]) -> None:
        """Some of what was in the pipe may be carried out after all."""
        if self.world.calm or self.stores[node].down:
            return
        for request in requests:
            if self.world.random.random() < 0.5:
                return
            self.execute(actor.name, node, request)

    def deliver(self) -> None:
        """What comes late, and nodes that come back."""
        now = self.world.now
        if self.back_at:
            for node in [node for node, at in self.back_at.items() if at <= now]:
                del self.back_at[node]
                self.stores[node].down = False
                self.world.note(f"{node} is back")
        for earlier in [each for each in self.earlier if each.at <= now]:
            self.earlier.remove(earlier)
            self._bring_back(earlier)
        if self.late:
            due = [late for late in self.late if late.at <= now]
            for late in due:
                self.late.remove(late)
                incarnation, data = late.connection
                if (
                    incarnation == self.incarnations[late.node]
                    and not self.stores[late.node].down
                    and (data == self.data[late.node] or not self._is_bound_elsewhere(late.request))
                ):
                    self.execute(f"{late.who} (late)", late.node, late.request)

    def _bring_back(self, earlier: Earlier) -> None:
        lineages = [shard.lineage for shard in self.world.shards]
        keys = [key("sim", lineage) for lineage in lineages for key in (record_key, resume_key)]
        earlier.store.come_back(earlier.memory, keys)
        how = "under its connections" if earlier.is_silent else "and closes its connections"
        for name in [name for name, store in self.stores.items() if store is earlier.store]:
            self.data[name] += 1
            self.incarnations[name] += not earlier.is_silent
            self.world.checker.memory_returned(name)
            self.world.note(f"{name} has an earlier memory, {how}")

    def _refuses(self, request: Request) -> bool:
        world = self.world
        is_struck = "refuse_append" in world.options.faults and not world.calm
        return is_struck and kind_of(request) == "strike" and world.random.random() < REFUSED_SHARE

    def _draw_fault(self) -> str | None:
        world = self.world
        if world.calm or world.random.random() >= world.options.fault_share * REQUEST_FAULT_SHARE:
            return None
        kind = world.random.choice(REQUEST_FAULTS)
        return world.count(kind) if kind in world.options.faults else None


def kind_of(request: Request) -> str:
    """What a request is about, as `Options.stall_at` names it."""
    part = part_of(request.key)
    match request:
        case Cas() | Add() if part in ("resume", "record"):
            return part
        case Append() if part == "stripe":
            return "strike"
        case Cas() | Add() if part == "stripe":
            return "put back"
        case Cas() if part == "entry" and request.value != STUB:
            return "fill"
        case Get() if part == "stripe":
            return "guard"
    return ""


@lru_cache(4096)
def part_of(key: bytes) -> str:
    """What is stored under a key."""
    if b":!" not in key:
        return "entry"
    if b":!!" in key:
        return "part"
    _, _, part = key.partition(b":!")[2].partition(b"!")
    return {b"": "record", b"resume": "resume", b"wanted": "wanted"}.get(part, "stripe")


def is_fill(request: Request) -> bool:
    return kind_of(request) == "fill"
