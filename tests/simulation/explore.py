"""Exhaustive mode: every interleaving of small worlds, so that for those sizes the claim is not a sample.

A state is what the node holds, the clock, how far the database is, what faults are left, and for each actor all
the answers it has had. The latter stands for its local state: a procedure is a function of its answers, so equal
answers mean equal states, and its pending step is found by feeding them to a fresh one. States are hashed and
visited once, breadth first; a violation comes with the shortest history that leads to it.

The procedures are the production ones; the invalidators run ``invalidator.loop.loop``. A world leaves
out other nodes, other keys and clocks that run differently, unless its docstring names them.
"""

from __future__ import annotations

import ast
import contextlib
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice, pairwise
from typing import Any, Final, Literal, NamedTuple
from unittest.mock import patch

from freshness.algorithm import invalidate
from freshness.algorithm.applier import Applier, create_members
from freshness.algorithm.envelope import (
    STUB,
    Filled,
    NodeRecord,
    Stripe,
    find_stripe,
    record_key,
    resume_key,
    stripe_key,
    stripe_number,
    wanted_key,
)
from freshness.algorithm.lookup import Loaded, Lookup
from freshness.algorithm.membership import NodePolicy
from freshness.algorithm.parts import Manifest
from freshness.algorithm.read import read_through
from freshness.algorithm.refill import LoggedRow
from freshness.algorithm.request import (
    CONFLICT,
    NO_TOKENS,
    STORED,
    Add,
    Append,
    Delete,
    Flow,
    Flows,
    Get,
    Head,
    Item,
    Load,
    Procedure,
    ReadHead,
    ReadStream,
    Request,
    Stored,
    Streamed,
    Wait,
)
from freshness.algorithm.restore import Restorer
from freshness.algorithm.rule import ObjectPolicy, ReadOutcome
from freshness.algorithm.shortway import find_hit, find_hits
from freshness.algorithm.state import Demand, Read, ReadContext, ServedState
from freshness.algorithm.together import read_together
from freshness.algorithm.view import Sightings
from freshness.config.cache import PART_BYTES, CacheConfig
from freshness.config.object import ObjectConfig
from freshness.errors import FreshnessError, NodeUnavailable, StateChanged
from freshness.keys.cachekey import KeyBuilder
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.keys.placement import Placement
from freshness.nodes.memory import MemoryStore
from freshness.objects.keyfinder import KeyFinder
from freshness.objects.registry import ObjectDefinition
from freshness.position import MysqlGtidSet, Position
from freshness.position.token import EventToken
from freshness.stream.source import Heartbeat, Operation, RowChange, Transaction
from invalidator.loop.loop import LoopObserver, OpenStream, Poll, run_loop
from invalidator.loop.shard import ShardInvalidator, no_rows
from tests.simulation.actor import Cancelled
from tests.simulation.history import STRIPE_HEAD, show

NODE: Final = "n0"
LINEAGE: Final = "s0"
SID: Final = "00000000-0000-0000-0000-000000000001"
L_SECONDS: Final = 3
REFRESH_SECONDS: Final = 1.0
SKEW_SECONDS: Final = 5.0
NOTHING: Final = MysqlGtidSet()
START: Final = 1000.0
STRAY: Final = 10**9
"""Added to the numbers of heartbeats that go to another primary."""
MOMENT_SECONDS: Final = 1.1
"""Longer than a copy of a record is trusted."""
INSTANT: Final = 1e-6
"""Between two entries of the log, by the clock of a process: time itself stands still but for `SmallWorld.ticks`."""


@dataclass(frozen=True, slots=True)
class SmallWorld:
    """What one exhaustive world holds.

    ``commits``: changes of all rows, the first of them before anything is explored, so that the node is open.
    ``beats``: how often all processes write a heartbeat besides those that travel with the commits. ``keys``: rows;
    reader n reads row n modulo ``keys``. ``polls``: how often each invalidator looks at the stream after the start,
    and ``looks``: how often the restorers of the first ``restorers`` of them look at the node; if ``restorers`` is 0,
    no restorer looks after its process has started again. ``is_missing``: the stripes are not there at the start.
    ``is_filled``: the entries are. ``ticks``: lengths of time that may pass, each once, at any moment.
    ``evictions`` of an entry, ``stripe_evictions``, ``record_evictions`` (with the resume copy), ``restarts``,
    ``crashes``, ``lost_replies``, ``late`` writes whose sender has given up, ``doubles`` of an append, ``refusals``
    of an append for memory: how often each may strike. ``shows_late``: the primary may show a commit
    after it was streamed.
    ``in_order``: the first of the ``ticks`` comes first. ``stops``: like ``ticks``, but the node's clock stands
    still. ``stalls``: polls at which the stream gives nothing. ``late_beats``: heartbeats whose answer is lost, and
    which come into the log at any later moment.
    ``shorten_share``: see ``freshness.algorithm.invalidate``. ``fills_from_log``: the log holds whole rows, and the
    invalidators replace entries by them. ``asks``: each read asks for the last change that has returned, as a session
    does that has made it. ``reads_primary``: a miss goes to the primary if the replica lacks what its row must show;
    in all other worlds it may not. ``in_parts``: every value is in two parts, of which ``part_evictions`` may go.
    ``returns``: the node has the memory of an earlier moment again, without bound items, and its connections break;
    with ``is_silent`` they end with their next read only, as those of a Redis. ``cancels``: a reader is interrupted,
    and its connection closed. ``way``: each read is tried by the short way first, for one key or for many.
    ``rings``: nodes of each ring; ``path``: the node of the key by each. ``files``: topology, rings and definition of
    each file, the present ring first; by another definition than 1 no key is sent. ``posts``: node and first file
    of each invalidator, which goes on with the next file when it has crashed. ``reads_by``: file of each reader.
    ``spread``: the node of each key, in place of ``path``; the first reader reads all keys together, and with
    ``reads_on`` one after the other.
    ``past``: actions before anything is explored, in the place of the usual start, see `Explorer._relive`.
    ``accepts``: the staleness that each read accepts. ``strays``: heartbeats of the first invalidator that go to
    another primary, whose log it reads from the start on.
    ``rows``: after each commit, the key of each row, which is unique and not its primary key; None: the row does not
    exist. In the other worlds each commit changes the row of every key. ``is_list``: several rows can have a key, and
    an entry is the list of them. ``spellings``: the keys as text, which the database takes for equal.
    """

    name: str
    commits: int = 2
    beats: int = 1
    readers: int = 1
    reads: int = 1
    keys: int = 1
    stripes: int = 1
    invalidators: int = 1
    restorers: int = 1
    polls: int = 2
    looks: int = 0
    is_missing: bool = False
    is_filled: bool = False
    ticks: tuple[float, ...] = ()
    in_order: bool = False
    stops: tuple[float, ...] = ()
    stalls: int = 0
    late_beats: int = 0
    evictions: int = 0
    part_evictions: int = 0
    stripe_evictions: int = 0
    record_evictions: int = 0
    restarts: int = 0
    lost_replies: int = 0
    late: int = 0
    doubles: int = 0
    refusals: int = 0
    crashes: int = 0
    shows_late: bool = False
    shorten_share: int = 1_000_000
    fills_from_log: bool = False
    in_parts: bool = False
    asks: bool = False
    reads_primary: bool = False
    returns: int = 0
    is_silent: bool = False
    cancels: int = 0
    way: Literal["", "one", "many"] = ""
    accepts: float | None = None
    strays: int = 0
    rows: tuple[tuple[int | None, ...], ...] = ()
    is_list: bool = False
    spellings: tuple[str, ...] = ()
    rings: tuple[tuple[str, ...], ...] = ((NODE,),)
    path: tuple[str, ...] = (NODE,)
    files: tuple[tuple[int, tuple[int, ...], int], ...] = ((1, (0,), 1),)
    posts: tuple[tuple[str, int], ...] = ()
    reads_by: tuple[int, ...] = ()
    spread: tuple[str, ...] = ()
    reads_on: bool = False
    past: tuple[tuple[str, int], ...] = ()
    lease_seconds: int = L_SECONDS
    max_staleness_seconds: float = 11.0
    states_max: int = 2_000_000

    @property
    def heartbeat_age_max_seconds(self) -> float:
        return CacheConfig(
            nodes=(NODE,),
            namespace="sim",
            lease_seconds=self.lease_seconds,
            max_staleness_seconds=self.max_staleness_seconds,
            node_refresh_seconds=REFRESH_SECONDS,
        ).heartbeat_age_max_seconds


GROWING: Final = (("n0",), ("n0", "n1")), ("n0", "n1")
"""Rings, of which the second places the key on another node, and its nodes."""
SHRINKING: Final = (("n0", "n1"), ("n0",)), ("n1", "n0")
THERE_AND_BACK: Final = (1, (0,), 1), (2, (1, 0), 1), (3, (1,), 1), (4, (0, 1), 1), (5, (0,), 1)
"""Topology and rings of each file, while the second ring takes the place of the first, and the first comes back."""
ANOTHER_AND_BACK: Final = (1, (0,), 1), (2, (0,), 2), (3, (0,), 1)
"""The same of a definition of the object."""
ALTERED_AND_BACK: Final = (1, (0,), 1), (1, (0,), 2), (1, (0,), 1)
"""The same of the columns of its key: the number of the file stays."""
OPENED: Final = ("run", 0), ("look", 0), ("beat", 0), ("run", 0), ("look", 0), ("apply", 0)
FILLED_BY_THE_FIRST: Final = (*OPENED, ("read", 0), ("exchange", 0), ("run", 0), ("beat", 0), ("run", 0))
"""The entry is there by the first ring, and both rings are served."""
TOGETHER: Final[dict[str, Any]] = {
    "rings": (("n0", "n1"),), "spread": ("n0", "n1"), "keys": 2, "invalidators": 2, "posts": (("n0", 0), ("n1", 0)),
    "beats": 0, "polls": 1,
}  # fmt: skip
"""Each node has one of two keys, and an invalidator of its own."""

WORLDS: Final = (
    SmallWorld("entry and stripe are evicted", beats=0, commits=3, evictions=1, stripe_evictions=1),
    SmallWorld("two readers, the stripe is evicted", beats=0, readers=2, polls=1, stripe_evictions=1),
    SmallWorld("a stripe is put back", readers=0, looks=2, stripe_evictions=1),
    SmallWorld("a stripe is put back among three commits", readers=0, looks=2, commits=3, stripe_evictions=1),
    SmallWorld(
        "two invalidators, paused anywhere, and a put-back",
        readers=0, invalidators=2, looks=2, polls=1, is_missing=True,
    ),
    SmallWorld("a reader beside a put-back", looks=2, polls=1, is_missing=True),
    SmallWorld("the node restarts, its versions repeat", reads=2, restarts=1),
    SmallWorld("the node restarts and its stripes are put back", readers=0, looks=3, restarts=1),
    SmallWorld("a reply is lost after the effect", readers=0, looks=2, polls=1, stripe_evictions=1, lost_replies=1),
    SmallWorld("a write arrives late", readers=0, looks=2, polls=1, stripe_evictions=1, late=1),
    SmallWorld("an append arrives twice", readers=0, looks=2, polls=1, stripe_evictions=1, doubles=1),
    SmallWorld("an append is refused for memory", beats=0, polls=1, refusals=1),
    SmallWorld("two keys in one stripe", readers=2, keys=2, beats=0, polls=1, stripe_evictions=1),
    SmallWorld("two keys in two stripes", keys=2, stripes=2, beats=0, polls=1, stripe_evictions=1),
    SmallWorld("the lease lapses, the node is revived", polls=3, ticks=(4.0,)),
    SmallWorld("the record is evicted, the primary shows late", is_filled=True, record_evictions=1, shows_late=True),
    SmallWorld("the invalidator crashes anywhere", beats=0, polls=1, crashes=1),
    SmallWorld(
        "two invalidators shorten a stripe",
        readers=0, invalidators=2, beats=0, commits=3, shorten_share=1,
    ),
    SmallWorld("the clock of the node stands still", is_filled=True, beats=0, reads=2, polls=1, stops=(20.0,)),
    SmallWorld("entries are filled from the log", is_filled=True, beats=0, fills_from_log=True, evictions=1),
    SmallWorld(
        "two invalidators fill from the log, paused anywhere",
        invalidators=2, beats=0, commits=3, polls=1, fills_from_log=True,
    ),
    SmallWorld(
        "entries are filled from the log, and a stripe is evicted",
        is_filled=True, beats=0, polls=1, stripe_evictions=1, late=1, fills_from_log=True,
    ),
    SmallWorld(
        "the node restarts while entries are filled from the log",
        is_filled=True, beats=0, reads=2, polls=1, restarts=1, fills_from_log=True,
    ),
    SmallWorld("a session asks for its commits", is_filled=True, beats=0, reads=2, commits=3, asks=True),
    SmallWorld("two sessions ask for their commits", is_filled=True, beats=0, readers=2, polls=1, asks=True),
    SmallWorld(
        "stripe and record are evicted while a session asks",
        is_filled=True, beats=0, reads=2, polls=1, stripe_evictions=1, record_evictions=1, asks=True,
    ),
    SmallWorld(
        "the node restarts while a session asks",
        is_filled=True, beats=0, reads=2, polls=1, restarts=1, asks=True,
    ),
    SmallWorld("the lease lapses while a session asks", is_filled=True, beats=0, ticks=(4.0,), asks=True),
    SmallWorld(
        "entries are filled from the log while a session asks",
        is_filled=True, beats=0, reads=2, commits=3, fills_from_log=True, asks=True,
    ),
    SmallWorld(
        "misses are read from a primary that shows late",
        beats=0, reads=2, shows_late=True, reads_primary=True,
    ),
    SmallWorld(
        "misses are read from the primary, and a stripe is evicted",
        beats=0, reads=2, polls=1, stripe_evictions=1, reads_primary=True,
    ),
    SmallWorld("values in parts, one of them is evicted", is_filled=True, in_parts=True, beats=0, part_evictions=1),
    SmallWorld("values in parts, two readers", is_filled=True, in_parts=True, readers=2, beats=0, polls=1),
    SmallWorld(
        "values in parts, the node restarts", is_filled=True, in_parts=True, beats=0, reads=2, polls=1, restarts=1
    ),
    SmallWorld("values in parts, a write arrives late", in_parts=True, beats=0, reads=2, polls=1, late=1),
    SmallWorld("the answer of a heartbeat is lost", is_filled=True, beats=0, late_beats=1, polls=1, ticks=(2.0,)),
    SmallWorld("an earlier memory comes back", is_filled=True, beats=0, reads=2, polls=1, returns=1),
    SmallWorld(
        "an earlier memory comes back, and reads are of many keys",
        is_filled=True, beats=0, reads=2, polls=1, returns=1, way="many",
    ),
    SmallWorld(
        "an earlier memory comes under living connections",
        is_filled=True, beats=0, reads=2, polls=1, returns=1, is_silent=True, way="one",
    ),
    SmallWorld(
        "an earlier memory comes back, and a reader is cancelled",
        is_filled=True, beats=0, reads=2, polls=1, returns=1, cancels=1,
    ),
    SmallWorld(
        "stripes are put back while an earlier memory comes under living connections",
        readers=0, looks=2, polls=1, stripe_evictions=1, returns=1, is_silent=True,
    ),
    SmallWorld(
        "two primaries take writes",
        readers=0, invalidators=2, beats=0, polls=1, looks=2, is_missing=True, strays=1,
    ),
    SmallWorld("calls accept little staleness", is_filled=True, beats=0, reads=2, polls=1, ticks=(2.0,), accepts=1.5),
    SmallWorld(
        "a second ring is served",
        rings=GROWING[0], path=GROWING[1], files=THERE_AND_BACK, posts=((NODE, 0),), past=FILLED_BY_THE_FIRST,
        reads_by=(0,), reads=3, beats=0, polls=1,
    ),
    SmallWorld(
        "a ring leaves",
        rings=GROWING[0], path=GROWING[1], files=THERE_AND_BACK, posts=((NODE, 0),),
        past=(*FILLED_BY_THE_FIRST, ("exchange", 0)), reads_by=(0,), reads=2, beats=0, polls=1,
        ticks=(MOMENT_SECONDS,),
    ),
    SmallWorld(
        "a key comes back to its first node",
        rings=GROWING[0], path=GROWING[1], files=THERE_AND_BACK, posts=((NODE, 0),),
        past=(*FILLED_BY_THE_FIRST, ("exchange", 0), ("run", 0), ("commit", 0), ("run", 0)),
        readers=2, reads_by=(0, 3), polls=1, crashes=1,
    ),
    *(
        world
        for leaves, comes_back, files in (
            ("a definition leaves", "a definition comes back", ANOTHER_AND_BACK),
            ("the keys of an object are altered", "keys are altered, and altered back", ALTERED_AND_BACK),
        )
        for world in (
            SmallWorld(
                leaves,
                files=files, past=(*OPENED, ("read", 0), ("exchange", 0)),
                reads=2, beats=0, polls=1, ticks=(MOMENT_SECONDS,),
            ),
            SmallWorld(
                comes_back,
                files=files, past=(*FILLED_BY_THE_FIRST, ("commit", 0), ("run", 0)),
                readers=2, polls=1, crashes=1,
            ),
        )
    ),
    SmallWorld(
        "another invalidator has not seen that keys are altered",
        files=ALTERED_AND_BACK[:2], posts=((NODE, 0), (NODE, 0)),
        past=(
            ("run", 0), ("run", 1), ("look", 0), ("beat", 0), ("run", 0), ("run", 1), ("look", 0), ("apply", 0),
            ("read", 0), ("exchange", 1),
        ),
        invalidators=2, restorers=0, reads=2, beats=0, polls=1, ticks=(MOMENT_SECONDS,),
    ),
    SmallWorld(
        "an invalidator of the previous file goes on",
        rings=SHRINKING[0], path=SHRINKING[1], files=((1, (0,), 1), (1, (1, 0), 1)), posts=((NODE, 0), (NODE, 0)),
        past=(
            ("run", 0), ("run", 1), ("look", 0), ("beat", 0), ("run", 0), ("run", 1), ("look", 0), ("apply", 0),
            ("exchange", 1), ("run", 1), ("beat", 0), ("run", 1),
        ),
        invalidators=2, reads_by=(1,), reads=2, beats=0, polls=1,
    ),
    SmallWorld(
        "an entry moves to another node",
        rings=GROWING[0], path=GROWING[1], files=THERE_AND_BACK, posts=((NODE, 0), ("n1", 1)),
        past=(
            *OPENED, ("read", 0), ("exchange", 0), ("run", 0), ("run", 1), ("look", 1), ("beat", 0), ("run", 0),
            ("run", 1), ("look", 1), ("beat", 0), ("run", 0), ("run", 1),
        ),
        invalidators=2, readers=2, reads_by=(0, 1), beats=0, polls=1,
    ),
    SmallWorld(
        "another ring leaves while readers are waited for",
        rings=GROWING[0], path=GROWING[1], files=((1, (0, 1), 1), (2, (0,), 1), (3, (1,), 1)), posts=((NODE, 0),),
        past=(
            *OPENED, ("read", 0), ("exchange", 0), ("run", 0), ("beat", 0), ("wait", 0), ("exchange", 0), ("run", 0),
        ),
        reads_by=(1,), reads=3, restorers=0, beats=0, polls=1, ticks=(MOMENT_SECONDS, MOMENT_SECONDS),
    ),
    SmallWorld(
        "a ring comes back while readers are waited for",
        rings=GROWING[0], path=GROWING[1], files=((1, (0,), 1), (2, (1,), 1), (3, (0,), 1)), posts=((NODE, 0),),
        past=(*OPENED, ("read", 0), ("exchange", 0), ("run", 0), ("commit", 0), ("wait", 0)),
        reads=3, restorers=0, polls=1, ticks=(MOMENT_SECONDS,), crashes=1,
    ),
    SmallWorld(
        "a row moves between two unique keys",
        rows=((0,), (1,)), keys=2, readers=2, is_filled=True, beats=0, polls=1, evictions=1,
    ),
    SmallWorld(
        "a unique key moves between two rows",
        rows=((0, None), (1, None), (1, 0)), keys=2, commits=3, is_filled=True, beats=0, reads=2, asks=True,
    ),
    SmallWorld(
        "a unique key comes back in another spelling",
        rows=((0,), (None,), (1,)), keys=2, spellings=("s", "ß"), commits=3, is_filled=True, beats=0, reads=2,
    ),
    SmallWorld(
        "rows move between two lists",
        rows=((0, 0), (1, 0), (1, 1)), is_list=True, keys=2, stripes=2, readers=2, commits=3, is_filled=True,
        beats=0, polls=1, stripe_evictions=1,
    ),
    SmallWorld("two keys on two nodes are read together", **TOGETHER),
    SmallWorld("keys are read together, and a node restarts", restarts=1, **TOGETHER),
    SmallWorld(
        "keys are read together, and entries are filled from the log",
        is_filled=True, commits=3, fills_from_log=True, **TOGETHER,
    ),
    SmallWorld("keys are read together beside another reader", readers=2, is_filled=True, **TOGETHER),
    SmallWorld("two keys are read one after the other as one state", is_filled=True, reads_on=True, **TOGETHER),
)  # fmt: skip


Move = tuple[int | None, int | None]
"""The key of a row before and after a change; None: the row does not exist."""

Label = str | tuple[Any, Any, Any]
"""What happened between two states: a text, or who sent which request and what was answered; or such a label, and
what became of it."""


class ActorState(NamedTuple):
    """``history``: identifies all answers so far. ``replies``: the replies of the current flow. ``connection``: the
    node's incarnation it is connected to, -1 for none. ``seen``: the entry that its last get returned, the changes
    acknowledged then, and the time; ``elsewhere``: the same of a previous node. ``generation``: how often the process
    was restarted."""

    history: int
    replies: tuple[Any, ...]
    connection: int
    generation: int
    seen: tuple[bytes, frozenset[tuple[bytes, int]], float] | None
    elsewhere: tuple[bytes, frozenset[tuple[bytes, int]], float] | None = None


class LastChange:
    """A reader's own step: its session has made the last change that the primary shows. Answer: its number."""


class Entry(NamedTuple):
    """One transaction of the log: a change, by its number among the changes, or 0 for a heartbeat, and when it was
    committed. ``is_stray``: it stands in another primary's log."""

    change: int
    at: float
    is_stray: bool = False


class State(NamedTuple):
    """``behind``: by how much the node's clock is late. ``begun``: heartbeats on their way, by when they were begun.
    ``shown``: how much of the log the primary shows. ``attempted``: the changes that each actor appended to each
    stripe, even an absent one, since it last published. ``removed``: (item, number) of the log, removed later.
    ``saved``: number of the memory that may come back, or -1. ``model``: see ``tests.proof.tie``."""

    now: float
    behind: float
    store: int
    incarnation: int
    log: tuple[Entry, ...]
    begun: tuple[float, ...]
    shown: int
    applied: int
    actors: tuple[ActorState, ...]
    ticks: tuple[float, ...]
    stops: tuple[float, ...]
    left: tuple[tuple[str, int], ...]
    late: tuple[tuple[int, Request], ...]
    acknowledged: frozenset[tuple[bytes, int]]
    attempted: frozenset[tuple[int, bytes, int]]
    removed: frozenset[tuple[bytes, int]]
    saved: int = -1
    model: int = 0

    def has(self, fault: str) -> bool:
        return any(name == fault for name, _ in self.left)

    def without(self, fault: str) -> State:
        """One fault of that kind less is to come."""
        left = [(name, count - (name == fault)) for name, count in self.left]
        return self._replace(left=tuple((name, count) for name, count in left if count))

    @property
    def changes(self) -> int:
        return sum(entry.change > 0 for entry in self.log)


FAULTS: Final = (
    "beats", "late_beats", "stalls", "evictions", "part_evictions", "stripe_evictions", "record_evictions",
    "restarts", "lost_replies", "late", "doubles", "refusals", "crashes", "returns", "cancels", "strays",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Done:
    """A procedure's result instead of a pending step."""

    result: Any


@dataclass(slots=True)
class Result:
    """``violation``: empty where every state is sound."""

    name: str
    states: int = 0
    violation: str = ""
    history: list[str] = field(default_factory=list)


Program = tuple[Generator[Any, Any, Any], Applier | None]


class _Histories:
    """The answers an actor has had, as numbers; its pending step after them, and how far its stream is then."""

    def __init__(self, explorer: Explorer, program: Callable[[], Program]) -> None:
        self._explorer = explorer
        self._program = program
        self._numbers: dict[tuple[int, float, Any], int] = {}
        self._entries: list[tuple[int, float, Any]] = []
        self._steps: list[Any] = []
        self._passed: list[Streamed | None] = []
        self.looks: list[int] = []
        self._alive: dict[int, Program] = {}
        self.delivered: dict[int, set[int]] = {}
        self.root = self._add(-1, START, None)

    def step(self, history: int) -> Any:
        return self._steps[history]

    def entry(self, history: int) -> tuple[int, float, Any]:
        """The history before, when the last answer came, and that."""
        return self._entries[history]

    def answered_at(self, history: int) -> float:
        return self._entries[history][1]

    def forget_programs(self) -> None:
        """From here on each is made again, and fed with its answers."""
        self._alive.clear()

    def passed(self, history: int) -> Streamed | None:
        return self._passed[history]

    def extended(self, history: int, now: float, answer: Any) -> int:
        key = (history, now, _freeze(answer))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._add(history, now, answer)
        return number

    def _add(self, parent: int, now: float, answer: Any) -> int:
        number = len(self._entries)
        self._entries.append((parent, now, answer))
        program = self._alive.pop(parent, None) or self._rebuilt(parent)
        generator, applier = program
        self._explorer.actor_now = now
        self._steps.append(_advance(generator, answer))
        self._passed.append(None if applier is None else applier.passed)
        self.looks.append((self.looks[parent] if parent >= 0 else 0) + (self._steps[-1] is LOOKED))
        self._alive[number] = program
        return number

    def _rebuilt(self, history: int) -> Program:
        program = self._program()
        chain = []
        while history >= 0:
            chain.append(self._entries[history])
            history = chain[-1][0]
        for _, now, answer in reversed(chain):
            self._explorer.actor_now = now
            _advance(program[0], answer)
        return program


LOOKED: Final = Wait(0.0)
"""A restorer has looked at the node once."""


CANCELLED: Final = Cancelled()


def _advance(generator: Generator[Any, Any, Any], answer: Any) -> Any:
    try:
        if isinstance(answer, FreshnessError | Cancelled):
            return generator.throw(answer)
        return generator.send(answer)
    except StopIteration as stop:
        return Done(stop.value)
    except FreshnessError as error:
        return Done(error)


def _freeze(answer: Any) -> Any:
    freeze = _FREEZE.get(type(answer))
    if freeze is not None:
        return freeze(answer)
    return type(answer).__name__ if isinstance(answer, FreshnessError) else answer


_FREEZE: Final[dict[type, Callable[[Any], Any]]] = {
    list: lambda answer: tuple([_freeze(each) for each in answer]),
    Loaded: lambda answer: (
        answer.value,
        answer.tokens[LINEAGE].position,
        answer.tokens[LINEAGE].until,
        answer.refusal,
    ),
    Transaction: lambda answer: (answer.position, answer.heartbeats[0].sequence, bool(answer.changes)),
    Head: lambda answer: answer.position,
}
"""A hashable form of each answer; two forms are equal exactly if the answers are."""


class _Store(MemoryStore):
    """A node that counts the versions of each key separately. Only equality of versions of one key means anything, so
    this leaves nothing out, and states do not differ by the order of writes to different keys."""

    def __init__(self, name: str, *, clock: Callable[[], float]) -> None:
        super().__init__(name, clock=clock)
        self._versions: dict[bytes, int] = {}

    def restart(self) -> None:
        super().restart()
        self._versions = {}

    def _draw_version(self, key: bytes) -> int:
        version = self._versions[key] = self._versions.get(key, 0) + 1
        return version

    def come_back(self, state: Any) -> None:
        """An earlier memory without its bound items. Versions to come are new ones, as those of Redis."""
        super().restore(state[0])
        self.evict(record_key("sim", LINEAGE))
        self.evict(resume_key("sim", LINEAGE))

    def state(self) -> Hashable:
        return super().state(), tuple(sorted(self._versions.items()))

    def restore(self, state: Any) -> None:
        held, versions = state
        super().restore(held)
        self._versions = dict(versions)


class Explorer:
    """Visits every state of one `SmallWorld`."""

    def __init__(self, world: SmallWorld) -> None:
        self.world = world
        self.now = START
        self.actor_now = START
        self.behind = 0.0
        self.forked_at = 0
        """The length of the log when another primary's began; 0: not yet."""
        self.store = _Store(NODE, clock=lambda: self.now - self.behind)
        self.placements = [Placement(nodes, "sim") for nodes in world.rings]
        self.nodes = sorted({node for nodes in world.rings for node in nodes})
        column = KeyColumn("id", ColumnKind.INTEGER)
        if world.spellings:
            column = KeyColumn("id", ColumnKind.STRING, "utf8mb4_general_ci")
        builder = KeyBuilder("sim", "row", (column,))
        policy = ObjectPolicy("row", 1, ("t",), (LINEAGE,), 3600)
        config = ObjectConfig(name="row", keyspace="sim", table="t")
        self.definition = ObjectDefinition(config, policy, builder, {"t": (column,)})
        self.lookups = []
        self.keys: list[int | str] = []
        paths: list[tuple[str, ...]] = [(node,) for node in world.spread] or [world.path] * world.keys
        for each in world.spellings or range(1000):
            key = builder.build((each,))
            if tuple(placement.node_for(key.item) for placement in self.placements) == paths[len(self.keys)]:
                self.keys.append(each)
                identity = self.definition.identity(key)
                self.lookups.append(Lookup(policy, NODE, key.item, identity, (each,), key.is_exact))
            if len(self.keys) == world.keys:
                break
        self.moves = _find_moves(world)
        keys = {_at(node, each.item): key for key, each in enumerate(self.lookups) for node in self.nodes}
        self.naming = {item: _find_naming(self.moves, {key}) for item, key in keys.items()}
        """By item, the changes whose images name it."""
        self.changing = self.naming
        """By item, the changes after which the database answers its key otherwise."""
        if world.spellings:
            self.changing = dict.fromkeys(keys, _find_naming(self.moves, set(keys.values())))
        # One store has the keys of all nodes, those of the first as they are, and others behind the node's name.
        self.stripes = {
            _at(node, lookup.item): _at(node, stripe_key("sim", LINEAGE, stripe_number(lookup.item, world.stripes)))
            for lookup in self.lookups
            for node in self.nodes
        }
        self.items = frozenset(self.stripes)
        self.records = frozenset(_at(node, record_key("sim", LINEAGE)) for node in self.nodes)
        self.wanted = wanted_key("sim", LINEAGE)
        self.policies = [self._policy_of(number) for number in range(len(world.files))]
        self.node_of: dict[bytes, str] = {}
        """The node of each life."""
        self.polls_used: dict[tuple[int, int], int] = {}
        self.is_past = False
        # One for each actor and each time that it can be started: invalidators, their restorers, readers.
        starts = range(world.crashes + sum(what == "exchange" for what, _ in world.past) + 1)
        self._histories: list[list[_Histories]] = [
            [_Histories(self, self._invalidator(number, each)) for each in starts]
            for number in range(world.invalidators)
        ]
        self._histories += [
            [_Histories(self, self._restorer(number, each)) for each in starts]
            for number in range(world.invalidators)
        ]
        self._histories += [[_Histories(self, self._reader(number))] for number in range(world.readers)]
        self._store_numbers: dict[Any, int] = {}
        self._store_states: list[Any] = []
        self._peeked: dict[tuple[int, float, bytes], Item | None] = {}
        self._protections: dict[tuple[int, float], list[tuple[NodeRecord, Set[bytes], tuple[Position, ...]]]] = {}

    # -- programs -----------------------------------------------------------------------------------------

    def _policy_of(self, number: int) -> NodePolicy:
        topology, rings, definition = self.world.files[number]
        before = {each for of_number, _, each in self.world.files[:number] if of_number == topology}
        placements = [self.placements[ring] for ring in rings]
        return NodePolicy(
            "sim", LINEAGE, placements[0].ring_version, {"row": definition}, self.world.stripes,
            self.world.lease_seconds, self.world.heartbeat_age_max_seconds, REFRESH_SECONDS, topology=topology,
            placements={each.ring_version: each for each in placements} if len(self.placements) > 1 else {},
            altered={("row", each) for each in before - {definition}},
        )  # fmt: skip

    def _post_of(self, number: int, start: int) -> tuple[str, int]:
        """Node and file of an invalidator."""
        node, first = self.world.posts[number] if self.world.posts else (NODE, 0)
        return node, min(first + start, len(self.world.files) - 1)

    def _invalidator(self, number: int, start: int) -> Callable[[], Program]:
        node, of_file = self._post_of(number, start)
        _, rings, definition = self.world.files[of_file]

        def program() -> Program:
            counter = iter(range(1, 1000))
            used = self.polls_used.get((number, start), 0) or len({NODE, *self.world.spread}) + (not self.world.past)
            polls = iter(range(used + self.world.polls - self.world.is_missing))

            def is_stopping() -> bool:
                if self.is_past:
                    self.polls_used[number, start] = self.polls_used.get((number, start), 0) + 1
                elif next(polls, None) is None:
                    raise FreshnessError("this world ends here")  # without the farewell, which only adds states
                return False

            invalidator = ShardInvalidator(
                members=create_members(
                    (node,),
                    self.policies[of_file],
                    lambda: self.actor_now,
                    lambda: bytes((number, start, 0, 0, 0, 0, 0, next(counter))),
                    NOTHING,
                ),
                instance=f"i{number}",
                clock=lambda: self.actor_now,
                find_heartbeat=lambda sequence: START + (sequence % STRAY - 0.5) * INSTANT,
                find_primary=lambda sequence: "another" if sequence > STRAY else "",
                find_rows=self._find_rows if self.world.fills_from_log else no_rows,
                streamed=NOTHING,
                placement=self.placements[rings[0]],
                previous=tuple(self.placements[ring] for ring in rings[1:]),
                finder=KeyFinder({"row": self.definition} if definition == 1 else {}),
            )
            loop = run_loop(invalidator, transactions_max=10, is_stopping=is_stopping, observer=LoopObserver())
            return loop, invalidator

        return program

    def _find_rows(self, transaction: Transaction) -> dict[bytes, LoggedRow]:
        version = repr(self._number(transaction.position)).encode()
        return {lookup.item: LoggedRow(lookup, version) for lookup in self.lookups}

    def _restorer(self, number: int, start: int) -> Callable[[], Program]:
        """The first two looks put the stripes in place, unless they are missing at the start."""

        def run(restorer: Restorer) -> Generator[Any, Any, None]:
            first = 0 if self.world.is_missing else 2
            if self.world.past:
                is_idle = start > 0 and not self.world.restorers
                first = 0 if is_idle else sum(each == ("look", number) for each in self.world.past)
            for _ in range(first + self.world.looks * (number < self.world.restorers)):
                with contextlib.suppress(FreshnessError):
                    yield from restorer.look()
                yield LOOKED

        def program() -> Program:
            counter = iter(range(1, 1000))
            node, of_file = self._post_of(number, start)
            restorer = Restorer(
                node, self.policies[of_file],
                clock=lambda: self.actor_now,
                nonce=lambda: bytes((number, start, 1, 0, 0, 0, 0, next(counter))),
            )  # fmt: skip
            return run(restorer), None

        return program

    def _encode(self, version: int) -> bytes:
        return _twin(version) if self.world.in_parts else repr(version).encode()

    def _reader(self, number: int) -> Callable[[], Program]:
        lookup, rings = self._lookup_of(number)

        def run() -> Generator[Any, Any, None]:
            context = ReadContext(
                "sim", rings[0], (LINEAGE,), lambda: self.actor_now, lambda: 0.0,
                self._encode, lambda data: ast.literal_eval(data.decode()), REFRESH_SECONDS, 4, 0.05, "bypass",
                Sightings(
                    lambda: self.actor_now, lambda: int(self.actor_now * 1e6), self.world.max_staleness_seconds,
                    SKEW_SECONDS,
                ),
                part_bytes=TWIN_PART_BYTES if self.world.in_parts else PART_BYTES,
                previous_ring=rings[-1],
            )  # fmt: skip
            demand = Demand(self.world.accepts)
            if self._is_together(number):
                lookups = [self._lookup_of(each)[0] for each in range(self.world.keys)]
                parts = [[each] for each in lookups] if self.world.reads_on else [lookups]
                for _ in range(self.world.reads):
                    served, reads = ServedState(), list[Read]()
                    with contextlib.suppress(StateChanged):
                        for part in parts:
                            reads += yield from read_together(context, part, Demand(served=served))
                        yield ("together", reads)
                return
            for _ in range(self.world.reads):
                own = (yield LastChange()) if self.world.asks else 0
                asked = {LINEAGE: EventToken(LINEAGE, "-", 1, 0, single(own))} if own else NO_TOKENS
                try:
                    (read,) = yield from self._find_short(context, lookup)
                    if read is None:
                        (read,) = yield from read_through(context, [lookup], replace(demand, at_least=asked))
                except Cancelled:
                    continue
                view = context.views.get(lookup.node)
                yield ("read", read, None if view is None else view.records[LINEAGE], own)

        return lambda: (run(), None)

    def _is_together(self, number: int) -> bool:
        return number == 0 and bool(self.world.spread)

    def _lookup_of(self, number: int) -> tuple[Lookup, Sequence[int]]:
        """The lookup of a reader, and the versions of its rings."""
        lookup = self.lookups[number % len(self.lookups)]
        of_file = self.world.reads_by[number] if self.world.reads_by else 0
        present, *previous = [self.placements[ring] for ring in self.world.files[of_file][1]]
        node, policy, previous_node = present.node_for(lookup.item), lookup.policy, ""
        for each in previous:
            if each.node_for(lookup.item) == node:
                policy = replace(policy, previous_rings=(each.ring_version,))
            else:
                previous_node = each.node_for(lookup.item)
        found = replace(lookup, node=node, policy=policy, previous_node=previous_node)
        return found, [each.ring_version for each in (present, *previous)]

    def _find_short(self, context: ReadContext, lookup: Lookup) -> Procedure[Sequence[Read | None]]:
        """By the short way of the world, whose request is a step for one key, too."""
        if self.world.way == "many":
            return (yield from find_hits(context, [lookup]))
        if self.world.way == "" or lookup.node not in context.views:
            return [None]
        (answer,) = yield Flows((Flow(lookup.node, (Get(lookup.item),)),))

        def get(_: bytes) -> bytes | None:
            if isinstance(answer, FreshnessError):
                raise answer
            return answer[0].value if isinstance(answer[0], Item) else None

        with contextlib.suppress(FreshnessError):
            return [find_hit(context, lookup, get)]
        return [None]

    # -- states -------------------------------------------------------------------------------------------

    def initial(self) -> State:
        """The invalidators have joined and opened the node, the first commit is everywhere, the stripes are there."""
        world = self.world
        actors = tuple(ActorState(starts[0].root, (), -1, 0, None) for starts in self._histories)
        left = tuple((fault, count) for fault in FAULTS if (count := getattr(world, fault)))
        nothing: frozenset[Any] = frozenset()
        state = State(
            START, 0.0, self._saved(), 0, (), (), 0, 0, actors, world.ticks, world.stops, left, (), nothing, nothing,
            nothing,
        )  # fmt: skip
        state = self._committed(state)._replace(applied=1)
        if world.past:
            return self._relive(state)
        for place in range(world.invalidators):
            # Joined one after the other, each up to its first look at a stream that has nothing new.
            state = self._run_to_poll(state, place)
        for place in range(world.invalidators, 0 if world.is_missing else 2 * world.invalidators):
            state = self._run_look(state, place)
            if place == world.invalidators or world.spread:
                state = self._committed(state, is_change=False)
                state = state._replace(applied=len(state.log))
                for invalidator in range(world.invalidators):
                    state = self._run_to_poll(self._moved(state, invalidator), invalidator)
            state = self._run_look(state, place)
        if world.is_filled:
            state = self._filled(state)
        return state

    def _relive(self, state: State) -> State:
        """Do what the world's past says: ``run`` an invalidator to its next look at the stream, which it takes first
        if it is there; ``wait`` until it waits for readers; ``look`` by its restorer; ``exchange`` it for one with
        the next file; ``read``: one read of a reader; ``commit``, ``beat``, ``apply``."""
        invalidators = self.world.invalidators
        self.is_past = True
        for what, which in self.world.past:
            match what:
                case "run":
                    if isinstance(self._step(state, which), Poll):
                        state = self._moved(state, which)
                    state = self._run_to_poll(state, which)
                case "wait":
                    state = self._moved(state, which)
                    while self._waits_until(state, which) <= state.now:
                        assert not isinstance(self._step(state, which), Poll), "no reader is waited for"
                        state = self._moved(state, which)
                case "look":
                    state = self._run_look(state, invalidators + which)
                case "exchange":
                    state = self._exchanged(state, which)
                case "read":
                    while not isinstance(self._step(state, 2 * invalidators + which), tuple):
                        state = self._moved(state, 2 * invalidators + which)
                    state = self._moved(state, 2 * invalidators + which)
                case "commit" | "beat":
                    state = self._committed(state, is_change=what == "commit")
                case "apply":
                    state = state._replace(applied=len(state.log))
        self.is_past = False
        for starts in self._histories:
            for histories in starts:
                histories.forget_programs()
        return state

    def _node_of(self, state: State, place: int) -> str:
        return self._post_of(place, state.actors[place].generation)[0]

    def _exchanged(self, state: State, place: int) -> State:
        """An invalidator starts again, with its next file if it has one."""
        generation = state.actors[place].generation + 1
        for thread in (place, place + self.world.invalidators):
            root = self._histories[thread][generation].root
            state = self._with_actor(state, thread, ActorState(root, (), -1, generation, None))
        return state

    def _run_to_poll(self, state: State, place: int) -> State:
        while (
            not isinstance(self._step(state, place), Poll)
            or self._record_of(state, self._node_of(state, place)) is None
        ):
            if self._waits_until(state, place) > state.now:
                state = state._replace(now=self._waits_until(state, place))
            state = self._moved(state, place)
        return state

    def _run_look(self, state: State, place: int) -> State:
        """Up to the first request of the next look."""
        looks = self._histories[place][0].looks
        before = looks[state.actors[place].history]
        while looks[state.actors[place].history] == before:
            state = self._moved(state, place)
        return state

    def _filled(self, state: State) -> State:
        """The first readers have filled, and are forgotten."""
        for number in range(1 if self.world.spread else min(self.world.keys, self.world.readers)):
            place = 2 * self.world.invalidators + number
            actor = state.actors[place]
            while not isinstance(self._step(state, place), tuple):
                state = self._moved(state, place)
            assert self.world.spread or self._step(state, place)[1].outcome is ReadOutcome.FILLED
            state = self._with_actor(state, place, actor)
        return state

    def explore(self) -> Result:
        with patch.object(invalidate, "SHORTEN_SHARE", self.world.shorten_share):
            return self._explore()

    def _explore(self) -> Result:
        result = Result(self.world.name)
        first = self.initial()
        self.forked_at = len(first.log)
        parents: dict[State, tuple[State, Label] | None] = {first: None}
        queue = deque([first])
        while queue:
            state = queue.popleft()
            result.states += 1
            if result.states > self.world.states_max:
                raise AssertionError(f"{self.world.name}: more than {self.world.states_max} states")
            for label, following, problem in self._successors(state):
                problem = problem or self._find_unprotected(following)
                if problem:
                    result.violation = problem
                    result.history = [*_path(parents, state), _told(label), problem]
                    return result
                if following not in parents:
                    parents[following] = (state, label)
                    queue.append(following)
        if self.world.is_missing and not self.world.strays:
            assert any(self._protections.values()), f"{self.world.name}: no stripe was put back"
        return result

    def _successors(self, state: State) -> Iterator[tuple[Label, State, str]]:
        for place in range(len(state.actors)):
            step = self._step(state, place)
            if isinstance(step, Done) or self._waits_until(state, place) > state.now:
                continue
            label, following, problem = self._do(state, place, step)
            yield label, following, problem
            if isinstance(step, Poll) and state.has("stalls"):
                yield self._poll(state.without("stalls"), place, is_stalled=True)
            if isinstance(step, Flow | Flows) and state.actors[place].connection == state.incarnation:
                yield from self._troubles(state, following, place, step, label, problem)
        yield from self._happenings(state)

    def _troubles(
        self, state: State, following: State, place: int, step: Flow | Flows, label: Label, problem: str
    ) -> Iterator[tuple[Label, State, str]]:
        """What can become of a request besides that it is carried out and answered."""
        if state.has("lost_replies"):
            lost = self._unanswered(following.without("lost_replies"), state, place, step)
            yield (label, "the reply is lost", None), lost, problem
        if state.has("cancels") and place >= 2 * self.world.invalidators:
            for when, after, found in (("before", state, ""), ("behind", following, problem)):
                cancelled = self._unanswered(after.without("cancels"), state, place, step, CANCELLED)
                yield (label, f"{self._name(place)} is cancelled {when} it", None), cancelled, found
        request = self._next_request(state, place, step)
        if isinstance(request, Get):
            return
        if state.has("late"):
            waiting = state._replace(late=(*state.late, (state.incarnation, request))).without("late")
            yield (label, "but later", None), self._unanswered(waiting, state, place, step), ""
        if isinstance(request, Append) and state.has("doubles"):
            late = (*following.late, (state.incarnation, request))
            yield ((label, "and once more later", None), following._replace(late=late).without("doubles"), problem)
        if isinstance(request, Append) and state.has("refusals"):
            refused = self._request(state.without("refusals"), place, step, is_refused=True)
            yield (label, "refused for memory", None), refused[1], refused[2]

    def _happenings(self, state: State) -> Iterator[tuple[Label, State, str]]:
        """What happens without any actor."""
        if state.changes < self.world.commits:
            yield f"commit {len(state.log) + 1}", self._committed(state), ""
        if state.has("beats"):
            beaten = self._committed(state, is_change=False).without("beats")
            yield f"heartbeats {len(state.log) + 1}", beaten, ""
        if state.shown < len(state.log):
            yield "the primary shows what it has logged", state._replace(shown=len(state.log)), ""
        if state.applied < len(state.log) and self.world.readers:
            applied = state.applied + 1
            while applied < len(state.log) and not state.log[applied].change:
                applied += 1
            yield f"the replica applies up to {applied}", state._replace(applied=applied), ""
        for seconds in dict.fromkeys(state.ticks[:1] if self.world.in_order else state.ticks):
            left = list(state.ticks)
            left.remove(seconds)
            yield f"{seconds} s pass", state._replace(now=state.now + seconds, ticks=tuple(left)), ""
        for seconds in dict.fromkeys(state.stops):
            left = list(state.stops)
            left.remove(seconds)
            later = state._replace(now=state.now + seconds, behind=state.behind + seconds, stops=tuple(left))
            yield f"{seconds} s pass, and not for the node", later, ""
        if state.has("strays"):
            stray = state._replace(log=(*state.log, Entry(0, state.now, True))).without("strays")
            yield f"a heartbeat {len(stray.log)} goes to another primary", stray, ""
        if state.has("late_beats"):
            begun = state._replace(begun=(*state.begun, state.now)).without("late_beats")
            yield "heartbeats are begun, and their answers lost", begun, ""
        for number, at in enumerate(state.begun):
            log = (*state.log, Entry(0, at))
            arrived = state._replace(begun=state.begun[:number] + state.begun[number + 1 :], log=log)
            shown = state.shown if self.world.shows_late else len(log)
            yield f"heartbeats of {at - START} s are logged", arrived._replace(shown=shown), ""
        for fault, keys in (
            ("evictions", self.items),
            ("part_evictions", _TWIN_KEYS if self.world.in_parts else frozenset()),
            ("stripe_evictions", frozenset(self.stripes.values())),
        ):
            for key in keys if state.has(fault) else ():
                if self._peek(state, key) is not None:
                    store = self._without(state, key)
                    yield f"{key.decode()} is evicted", state._replace(store=store).without(fault), ""
        if state.has("record_evictions") and self._record_of(state) is not None:
            self._restore(state)
            for node in self.nodes:
                self.store.evict(_at(node, record_key("sim", LINEAGE)))
                self.store.evict(_at(node, resume_key("sim", LINEAGE)))
            gone = state._replace(store=self._saved()).without("record_evictions")
            yield "the record and its copy are evicted", gone, ""
        invalidators = self.world.invalidators
        for place in range(invalidators if state.has("crashes") else 0):
            crashed = self._exchanged(state, place)
            yield f"{self._name(place)} crashes and starts again", crashed.without("crashes"), ""
        for each in dict.fromkeys(state.late):
            late = list(state.late)
            late.remove(each)
            incarnation, request = each
            arrived = state._replace(late=tuple(late))
            if incarnation == state.incarnation:
                self._restore(arrived)
                reply = self.store.answer(request)
                arrived, problem = self._observed(arrived._replace(store=self._saved()), None, request, reply)
                yield ("late", request, reply), arrived, problem
            else:
                yield "what is late arrives nowhere", arrived, ""
        if state.has("returns"):
            if state.saved < 0:
                yield "the memory of the node is saved", state._replace(saved=state.store), ""
            else:
                self._restore(state)
                self.store.come_back(self._store_states[state.saved])
                yield "the memory comes back that was saved", self._emptied(state).without("returns"), ""
        if state.has("restarts"):
            self._restore(state)
            self.store.restart()
            yield "the node restarts", self._emptied(state).without("restarts"), ""

    def _emptied(self, state: State) -> State:
        """Nothing that was done on the node counts any more."""
        return state._replace(
            store=self._saved(), incarnation=state.incarnation + 1, attempted=frozenset(), removed=frozenset()
        )

    def _committed(self, state: State, *, is_change: bool = True) -> State:
        log = (*state.log, Entry((state.changes + 1) * is_change, state.now))
        return state._replace(log=log, shown=state.shown if self.world.shows_late else len(log))

    def _histories_of(self, state: State, place: int) -> _Histories:
        return self._histories[place][state.actors[place].generation]

    def _step(self, state: State, place: int) -> Any:
        """What an actor waits for, or `Done`."""
        return self._histories_of(state, place).step(state.actors[place].history)

    # -- steps of an actor ----------------------------------------------------------------------------------

    def _moved(self, state: State, place: int) -> State:
        step = self._step(state, place)
        assert not isinstance(step, Done), step
        _, following, problem = self._do(state, place, step)
        assert not problem, problem
        return following

    def _do(self, state: State, place: int, step: Any) -> tuple[Label, State, str]:
        name = self._name(place)
        match step:
            case Flow():
                return self._request(state, place, step)
            case Flows():
                return self._request(state, place, step)
            case Load():
                return self._load(state, place, step)
            case LastChange():
                own = max(n for n in range(1, state.shown + 1) if state.log[n - 1].change)
                return f"{name} has made commit {own}", self._answered(state, place, own), ""
            case ReadHead():
                head = Head(_prefix(state.shown), 1)
                return f"{name} reads the head {state.shown}", self._answered(state, place, head), ""
            case ReadStream():
                invalidator = place - self.world.invalidators
                passed = self._histories_of(state, invalidator).passed(state.actors[invalidator].history)
                return f"{name} asks for the stream: {passed}", self._answered(state, place, passed), ""
            case Wait():
                return f"{name} has waited", self._answered(state, place, None), ""
            case OpenStream():
                return f"{name} opens the stream", self._opened(state, place, step), ""
            case Poll():
                return self._poll(state, place)
            case ("read", read, record, own):
                problem = self._find_stale_hit(state, place, read, record) or self._find_past(state, place, read, own)
                return f"{name} has read: {read.outcome.name}", self._answered(state, place, None), problem
            case ("together", reads):
                outcomes = [read.outcome.name for read in reads]
                return f"{name} has read: {outcomes}", self._answered(state, place, None), self._find_torn(reads)
        raise AssertionError(step)

    def _name(self, place: int) -> str:
        kinds = ("invalidator", "restorer", *("reader" for _ in range(self.world.readers)))
        invalidators = self.world.invalidators
        kind = min(place // invalidators, 2)
        return f"{kinds[kind]} {place - kind * invalidators}"

    def _answered(self, state: State, place: int, answer: Any) -> State:
        actor = state.actors[place]
        # A restorer compares the moment of a heartbeat with its own: between two entries of the log time passes.
        is_restorer = 1 <= place // self.world.invalidators < 2
        now = state.now + (len(state.log) * INSTANT if is_restorer else 0.0)
        histories = self._histories_of(state, place)
        history = histories.extended(actor.history, now, answer)
        while isinstance(step := histories.step(history), Wait) and not self._is_timed(step):
            # Waits end at once, which only adds interleavings.
            history = histories.extended(history, now, None)
        return self._with_actor(state, place, actor._replace(history=history, replies=()))

    def _is_timed(self, step: Wait) -> bool:
        """Whether safety rests on a wait: that for readers who have a copy of a record."""
        return len(self.world.files) > 1 and step.seconds >= REFRESH_SECONDS

    def _waits_until(self, state: State, place: int) -> float:
        step = self._step(state, place)
        if not isinstance(step, Wait):
            return state.now
        return self._histories_of(state, place).answered_at(state.actors[place].history) + step.seconds

    @staticmethod
    def _with_actor(state: State, place: int, actor: ActorState) -> State:
        actors = list(state.actors)
        actors[place] = actor
        return state._replace(actors=tuple(actors))

    def _next_request(self, state: State, place: int, step: Flow | Flows) -> Request:
        node, request = _requests_of(step)[len(state.actors[place].replies)]
        return request if node == NODE else replace(request, key=_at(node, request.key))

    def _request(
        self, state: State, place: int, step: Flow | Flows, *, is_refused: bool = False
    ) -> tuple[Label, State, str]:
        actor = state.actors[place]
        request = self._next_request(state, place, step)
        is_old = actor.connection not in (-1, state.incarnation)
        if is_old and not (self.world.is_silent and self._is_unnoticed(request)):
            state = self._with_actor(state, place, actor._replace(connection=-1))
            return f"{self._name(place)}: no answer", self._failed(state, place, step), ""
        self._restore(state)
        is_refused |= is_old and isinstance(request, Add) and request.is_bound
        reply: Any = CONFLICT if is_refused else self.store.answer(request)
        label = (self._name(place), request, reply)
        connection = actor.connection if is_old else state.incarnation
        actor = actor._replace(replies=(*actor.replies, reply), connection=connection)
        state = self._with_actor(state._replace(store=self._saved()), place, actor)
        state, problem = self._observed(state, place, request, reply)
        return label, self._completed(state, place, step), problem

    @staticmethod
    def _is_unnoticed(request: Request) -> bool:
        """Whether a connection from before goes on: the last answer of a flow that reads says whose data they are."""
        return not isinstance(request, Get) or request.is_bound

    def _completed(self, state: State, place: int, step: Flow | Flows) -> State:
        """Hand the answers over if they are all there. The list of wanted stripes decides nothing here, since each
        look is at all stripes: what concerns it costs no state."""
        requests, replies = _requests_of(step), state.actors[place].replies
        while len(replies) < len(requests) and requests[len(replies)][1].key == self.wanted:
            replies = (*replies, Item(STUB, 1) if isinstance(requests[len(replies)][1], Get) else STORED)
        if len(replies) < len(requests):
            return self._with_actor(state, place, state.actors[place]._replace(replies=replies))
        if isinstance(step, Flow):
            return self._answered(state, place, list(replies))
        answers = iter(replies)
        return self._answered(state, place, [list(islice(answers, len(flow.requests))) for flow in step.flows])

    def _unanswered(self, after: State, before: State, place: int, step: Flow | Flows, instead: Any = None) -> State:
        """The sender hears nothing; its connection is gone. ``instead``: its answer in place of a failure."""
        actors = (*after.actors[:place], before.actors[place], *after.actors[place + 1 :])
        state = self._with_actor(after._replace(actors=actors), place, before.actors[place]._replace(connection=-1))
        return self._failed(state, place, step) if instead is None else self._answered(state, place, instead)

    def _failed(self, state: State, place: int, step: Flow | Flows) -> State:
        error = NodeUnavailable("the connection is broken")
        return self._answered(state, place, error if isinstance(step, Flow) else [error] * len(step.flows))

    def _load(self, state: State, place: int, step: Load) -> tuple[Label, State, str]:
        """Token, then rows, from the replica, or from the primary if the replica lacks a change that is demanded or
        required. As one action each: the server may apply in between. Rows that are read together are of one."""
        actor, name = state.actors[place], self._name(place)
        if not actor.replies:
            required = step.lookups[0].required if self.world.reads_primary else NO_TOKENS
            asked = [step.at_least.get(LINEAGE), required.get(LINEAGE)]
            applied = _prefix(state.applied)
            is_behind = any(one is not None and not applied.contains(one.position) for one in asked)
            shown = state.shown if is_behind else state.applied
            waiting = self._with_actor(state, place, actor._replace(replies=(_prefix(shown), is_behind)))
            return f"{name} reads the token {shown}", waiting, ""
        position, is_primary, *moments = actor.replies
        left = len(step.lookups) - len(moments)
        moments += [state.shown if is_primary else state.applied] * (left if step.is_together else 1)
        label = f"{name} reads at {moments[-1]}"
        if len(moments) < len(step.lookups):
            actor = actor._replace(replies=(position, is_primary, *moments))
            return label, self._with_actor(state, place, actor), ""
        rows = [self._row_at(state, *each, position) for each in zip(step.lookups, moments, strict=True)]
        return label, self._answered(state, place, rows), ""

    def _row_at(self, state: State, lookup: Lookup, shown: int, position: Position) -> Loaded:
        changing = self.changing[lookup.item]
        version = max((n for n in range(1, shown + 1) if state.log[n - 1].change in changing), default=0)
        loaded = Loaded(version, {LINEAGE: EventToken(LINEAGE, "-", 1, 0, position, until=_prefix(shown))})
        if self.world.rows and not self.world.is_list:
            moves = self.moves[state.log[version - 1].change] if version else ()
            loaded = self._find_row(lookup, loaded, [after for _, after in moves])
        return loaded

    def _find_row(self, lookup: Lookup, loaded: Loaded, keys: Sequence[int | None]) -> Loaded:
        """A unique key finds one row or none: the one that has it since its last change."""
        equal = {key for key in keys if key is not None and (self.world.spellings or self._is_of(lookup, key))}
        if not equal:
            return replace(loaded, value=None)
        (key,) = equal
        return loaded if self._is_of(lookup, key) else replace(loaded, refusal=ReadOutcome.KEY)

    def _is_of(self, lookup: Lookup, key: int) -> bool:
        return lookup.item == self.lookups[key].item

    def _opened(self, state: State, place: int, step: OpenStream) -> State:
        return self._answered(state, place, None)

    def _poll(self, state: State, place: int, *, is_stalled: bool = False) -> tuple[Label, State, str]:
        delivered = self._delivered(state, place)
        taken = [
            self._transaction(number, entry)
            for number, entry in enumerate(state.log, 1)
            if number not in delivered
            and not is_stalled
            and (number <= self.forked_at or not self.world.strays or entry.is_stray == (place == 0))
        ]
        label = f"{self._name(place)} takes {[self._number(each.position) for each in taken]}"
        return label, self._answered(state, place, taken), ""

    def _delivered(self, state: State, place: int) -> set[int]:
        """What the open stream started from or has delivered, from the actor's own history."""
        histories, history = self._histories_of(state, place), state.actors[place].history
        known = histories.delivered.get(history)
        if known is None:
            known = histories.delivered[history] = self._find_delivered(histories, history)
        return known

    def _find_delivered(self, histories: _Histories, history: int) -> set[int]:
        delivered: set[int] = set()
        while history >= 0:
            parent, _, answer = histories.entry(history)
            step = histories.step(parent) if parent >= 0 else None
            if isinstance(step, Poll):
                delivered |= {self._number(each.position) for each in answer}
            elif isinstance(step, OpenStream):
                return delivered | {n for n in range(1, 50) if step.start.contains(single(n))}
            history = parent
        return delivered

    @staticmethod
    def _number(position: Position) -> int:
        return int(str(position).rpartition(":")[2])

    def _transaction(self, number: int, entry: Entry) -> Transaction:
        changes = tuple(
            RowChange("t", _operation_of(move), self._image(move[0]), self._image(move[1]))
            for move in self.moves[entry.change]
        )
        # Begun just before it was committed, as the clock of a restorer has it; see `_answered`.
        sequence = round((entry.at - START) / INSTANT) + number + STRAY * entry.is_stray
        beats = tuple(Heartbeat(f"i{each}", sequence, int(entry.at * 1e6), 0, 1) for each in range(3))
        return Transaction(_SINGLES[number], 0, changes, frozenset(), beats)

    def _image(self, key: int | None) -> Mapping[str, object] | None:
        return None if key is None else {"id": self.keys[key]}

    # -- what must hold -------------------------------------------------------------------------------------

    def _observed(self, state: State, place: int | None, request: Any, reply: Any) -> tuple[State, str]:
        """``place``: the index of the sender; None if it has given up."""
        if isinstance(request, Get):
            if request.key in self.items and place is not None:
                state = self._settled(state, place, request.key, reply.value if isinstance(reply, Item) else None)
            number = -1 if place is None else place - 2 * self.world.invalidators
            if request.key in self.items and isinstance(reply, Item) and place is not None:
                if self._is_together(number):
                    return state, ""
                actor, seen = state.actors[place], (reply.value, state.acknowledged, state.now)
                if number >= 0 and request.key != _at(
                    self._lookup_of(number)[0].node, self._lookup_of(number)[0].item
                ):
                    return self._with_actor(state, place, actor._replace(elsewhere=seen)), ""
                return self._with_actor(state, place, actor._replace(seen=seen)), ""
        elif isinstance(request, Append):
            if place is not None and request.key in self.stripes.values():
                # From this moment the stripe has the event, or was absent
                new = {(place, request.key, number) for number in _decode_chunk(request.value)}
                return state._replace(attempted=state.attempted | new), ""
        elif isinstance(request, Delete):
            if place is not None and request.key in self.items and request.version is None:
                stripe = self.stripes[request.key]
                gone = {(request.key, n) for who, key, n in state.attempted if (who, key) == (place, stripe)}
                return state._replace(removed=state.removed | gone), ""
        elif isinstance(reply, Stored):
            if request.key in self.records:
                return self._published(state, place, _decode_record(request.value))
            if request.key in self.items and request.value != STUB:
                if place is not None:
                    state = self._settled(state, place, request.key, request.value)
                return state, self._find_poison(state, request.key, request.value)
        return state, ""

    def _settled(self, state: State, place: int, item: bytes, data: bytes | None) -> State:
        """This sender knows that the item is absent, or is such an entry: what it appended before and the entry has
        needs no delete."""
        if data == STUB:
            return state
        version = None if data is None else decode_entry(data)[1]
        stripe = self.stripes[item]
        settled = {
            (item, number)
            for who, key, number in state.attempted
            if (who, key) == (place, stripe) and (version is None or number <= version)
        }
        return state._replace(removed=state.removed | settled)

    def _published(self, state: State, place: int | None, record: NodeRecord) -> tuple[State, str]:
        new = set()
        self.node_of[record.life] = record.node
        for number, entry in enumerate(state.log, 1):
            if not record.progress.contains(single(number)) or (record.life, number) in state.acknowledged:
                continue
            new.add((record.life, number))
            if not entry.change or record.floor.contains(single(number)):
                continue
            if not all((item, number) in state.removed for item in self._exposed(state, record, number)):
                return state, f"I4: progress names commit {number}, which was not carried out"
        kept = frozenset(each for each in state.attempted if each[0] != place)
        return state._replace(acknowledged=state.acknowledged | new, attempted=kept), ""

    def _exposed(self, state: State, record: NodeRecord, number: int) -> list[bytes]:
        """The items that a commit names, and the record's rings place on its node, from before the commit on."""
        change = state.log[number - 1].change
        return [
            item
            for lookup in self.lookups
            if change in self.naming[item := _at(record.node, lookup.item)]
            for placement in self.placements
            if placement.node_for(lookup.item) == record.node
            and _follows(record, placement.ring_version, _prefix(number - 1))
        ]

    def _find_poison(self, state: State, key: bytes, data: bytes) -> str:
        """An entry that lacks what is acknowledged, and would be a hit by some ring."""
        life, version = decode_entry(data)
        record = self._record_of(state, next(node for node in self.nodes if key in self._items_of(node)))
        position = Filled.decode(data).stamps[0].position
        rings = [
            placement.ring_version
            for placement in self.placements
            if any(_at(placement.node_for(each.item), each.item) == key for each in self.lookups)
        ]
        if len(self.world.files) > 1 and not any(record and _follows(record, ring, position) for ring in rings):
            return ""
        changing = self.changing[key]
        for number in range(version + 1, len(state.log) + 1):
            if state.log[number - 1].change in changing and (life, number) in state.acknowledged:
                return f"I1: version {version} was filled after commit {number} was acknowledged"
        return ""

    def _find_stale_hit(self, state: State, place: int, read: Read, record: NodeRecord | None) -> str:
        """I1 and I7, and the lemma that read-your-writes will stand on: a live entry is the row at its own position
        and the progress of the record that its reader judged it by."""
        if read.outcome not in (ReadOutcome.HIT, ReadOutcome.MOVED):
            return ""
        actor = state.actors[place]
        seen = actor.seen if read.outcome is ReadOutcome.HIT else actor.elsewhere
        assert seen is not None
        data, acknowledged, at = seen
        life, version = decode_entry(data)
        changing = self._changing_of(place)
        if self.world.in_parts and read.payload is not None and read.payload != _twin(version):
            return f"I1: version {version} was hit with parts of another one, {read.payload!r}"
        bound = self.world.max_staleness_seconds + (SKEW_SECONDS if self.world.stops else 0.0)
        bound = bound if self.world.accepts is None else self.world.accepts
        for number in range(version + 1, len(state.log) + 1):
            if state.log[number - 1].change not in changing:
                continue
            if (life, number) in acknowledged:
                return f"I1: version {version} was hit after commit {number} was acknowledged"
            if read.outcome is ReadOutcome.HIT and record is not None and record.progress.contains(single(number)):
                return f"lemma: version {version} was hit by a record whose progress names commit {number}"
            if at - state.log[number - 1].at > bound:
                return f"I7: version {version} was hit {at - state.log[number - 1].at} s after commit {number}"
        return ""

    def _find_past(self, state: State, place: int, read: Read, own: int) -> str:
        """I9 and I10."""
        seen, changing = state.actors[place].seen, self._changing_of(place)
        version = read.value
        if read.outcome is ReadOutcome.MOVED:
            version = ast.literal_eval((read.payload or b"").decode())
        elif read.is_hit:
            assert seen is not None
            version = decode_entry(seen[0])[1]
        elif version is None:
            version = _last_of(read.tokens[LINEAGE].position)
        if seen is not None and (read.shows_required or read.outcome is ReadOutcome.MOVED):
            node = self._lookup_of(place - 2 * self.world.invalidators)[0].node
            lacking = [number for life, number in seen[1] if number > version and self.node_of[life] == node]
            if any(state.log[number - 1].change in changing for number in lacking):
                return f"I10: version {version} was read after commits {sorted(lacking)} were acknowledged"
        if any(state.log[number - 1].change in changing for number in range(version + 1, own + 1)):
            return f"I9: version {version} was read after the own commit {own}"
        return ""

    def _find_torn(self, reads: Sequence[Read]) -> str:
        """I11. Each change is of all keys."""
        versions = [read.value if read.payload is None else ast.literal_eval(read.payload.decode()) for read in reads]
        return f"I11: versions {versions} were read together" if len(set(versions)) > 1 else ""

    def _changing_of(self, place: int) -> Set[int]:
        """The changes of the key of a reader."""
        return self.changing[self._lookup_of(place - 2 * self.world.invalidators)[0].item]

    def _find_unprotected(self, state: State) -> str:
        """I2: a stripe that is there in an open record's life has all that is acknowledged in it of its keys."""
        for record, items, positions in self._protection(state):
            for named, number in state.acknowledged:
                if (
                    named == record.life
                    and state.log[number - 1].change
                    and not any(position.contains(single(number)) for position in positions)
                    and not items.isdisjoint(self._exposed(state, record, number))
                ):
                    return f"I2: commit {number} is acknowledged, and a stripe that is there lacks it"
        return ""

    def _protection(self, state: State) -> list[tuple[NodeRecord, Set[bytes], tuple[Position, ...]]]:
        """Of each stripe that is there: the open record, the items of the stripe, and floor and the stripe's
        position."""
        where = (state.store, state.now - state.behind)
        if where not in self._protections:
            found = self._protections[where] = []
            for node in self.nodes:
                record = self._record_of(state, node)
                if record is None or not record.is_open:
                    continue
                here = self._items_of(node)
                for key in {self.stripes[item] for item in here}:
                    held = self._peek(state, key)
                    stripe = None if held is None else find_stripe(held.value, record.life)
                    if stripe is not None:
                        items = frozenset(item for item in here if self.stripes[item] == key)
                        found.append((record, items, (record.floor, stripe.position)))
        return self._protections[where]

    def _items_of(self, node: str) -> list[bytes]:
        return [_at(node, lookup.item) for lookup in self.lookups]

    def _record_of(self, state: State, node: str = NODE) -> NodeRecord | None:
        item = self._peek(state, _at(node, record_key("sim", LINEAGE)))
        return None if item is None else _decode_record(item.value)

    def _peek(self, state: State, key: bytes) -> Item | None:
        where = (state.store, state.now - state.behind, key)
        if where not in self._peeked:
            self._restore(state)
            self._peeked[where] = self.store.peek(key)
        return self._peeked[where]

    def _without(self, state: State, key: bytes) -> Any:
        self._restore(state)
        self.store.evict(key)
        return self._saved()

    def _restore(self, state: State) -> None:
        self.now, self.behind = state.now, state.behind
        self.store.restore(self._store_states[state.store])

    def _saved(self) -> int:
        """What the node holds, as a number."""
        held = self.store.state()
        number = self._store_numbers.setdefault(held, len(self._store_states))
        if number == len(self._store_states):
            self._store_states.append(held)
        return number


def _requests_of(step: Flow | Flows) -> Sequence[tuple[str, Request]]:
    """The requests of a step with their nodes, in the order in which this world sends them."""
    flows = [step] if isinstance(step, Flow) else step.flows
    return [(flow.node, request) for flow in flows for request in flow.requests]


def _at(node: str, key: bytes) -> bytes:
    """The key as the common store of all nodes has it."""
    return key if node == NODE else node.encode() + b"|" + key


def _twin(version: int) -> bytes:
    """A value in two parts, each of which contains the version."""
    return f"{version},{version}".encode()


TWIN_PART_BYTES: Final = 2
_TWIN_MANIFESTS: Final = [
    manifest for version in range(10) if (manifest := Manifest.of(_twin(version), TWIN_PART_BYTES)) is not None
]
_TWINS: Final = {manifest.encode(): version for version, manifest in enumerate(_TWIN_MANIFESTS)}
_TWIN_KEYS: Final = frozenset(key for manifest in _TWIN_MANIFESTS for key in manifest.keys("sim"))


@cache
def _decode_record(data: bytes) -> NodeRecord:
    return NodeRecord.decode(data)


@cache
def decode_entry(data: bytes) -> tuple[bytes, int]:
    """(life, version) of an entry. That of "no such row" is as young as its position."""
    entry = Filled.decode(data)
    if entry.is_parted:
        return entry.stamps[0].life, _TWINS[entry.value or b""]
    if entry.value is None:
        return entry.stamps[0].life, _last_of(entry.stamps[0].position)
    return entry.stamps[0].life, ast.literal_eval(entry.value.decode())


@cache
def _decode_chunk(data: bytes) -> frozenset[int]:
    position = Stripe.decode(STRIPE_HEAD + data).position
    return frozenset(number for number in range(1, 50) if position.contains(single(number)))


def _last_of(position: Position) -> int:
    return max((number for number in range(1, 50) if position.contains(single(number))), default=0)


def _find_moves(world: SmallWorld) -> list[tuple[Move, ...]]:
    """By number of the change, the rows that it changes. The number 0 is of no change."""
    if not world.rows:
        count = world.commits + sum(what == "commit" for what, _ in world.past)
        return [(), *[tuple((key, key) for key in range(world.keys))] * count]
    none = (None,) * len(world.rows[0])
    states = pairwise((none, *world.rows))
    return [(), *(tuple(move for move in zip(*each, strict=True) if move[0] != move[1]) for each in states)]


def _find_naming(moves: Sequence[Sequence[Move]], keys: Set[int]) -> Set[int]:
    return frozenset(
        change
        for change, of_change in enumerate(moves)
        if not keys.isdisjoint(key for move in of_change for key in move)
    )


def _operation_of(move: Move) -> Operation:
    if move[0] is None:
        return "insert"
    return "delete" if move[1] is None else "update"


def single(number: int) -> MysqlGtidSet:
    return _SINGLES[number]


def _prefix(number: int) -> Position:
    return _PREFIXES[number]


def _follows(record: NodeRecord, ring: int, position: Position) -> bool:
    """Whether the record says that its node is sent every event behind the position, by that ring and by the first
    definition."""
    start, coverage = record.find_start([ring]), record.find_coverage("row", 1)
    if start is None or coverage is None:
        return False
    return position.union(record.floor).contains(start.union(coverage.start))


_SINGLES: Final = [NOTHING, *(MysqlGtidSet.of(SID, number) for number in range(1, 50))]
_PREFIXES: Final[list[Position]] = [NOTHING]
for _each in _SINGLES[1:]:
    _PREFIXES.append(_PREFIXES[-1].union(_each))


def _path(parents: dict[State, tuple[State, Label] | None], state: State) -> list[str]:
    labels = []
    while (parent := parents[state]) is not None:
        state, label = parent
        labels.append(_told(label))
    return labels[::-1]


def _told(label: Label) -> str:
    """A label as text; requests are put into words only when somebody wants to read them."""
    if isinstance(label, str):
        return label
    who, request, reply = label
    if isinstance(request, str):
        return f"{_told(who)}, {request}"
    return f"{who} → {show(request)}: {show(reply)}"


def explore(world: SmallWorld) -> Result:
    """Visit a world to its end."""
    return Explorer(world).explore()
