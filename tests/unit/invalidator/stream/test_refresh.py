"""A refresh against a model of server, log and consumer: each row arrives as it was at its place in the stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshness.config.keyspace import Shard
from freshness.config.server import ServerAddress
from freshness.errors import ConfigError, FormatError, SourceUnavailable, SourceUnsuitable
from freshness.keys.keyrange import KeyRange
from freshness.position import Position, parse_position
from freshness.position.token import EventToken
from freshness.stream.resume import REFRESH_PREFIX, RefreshPlace, ResumeVector, parse_moment
from freshness.stream.source import Operation, RowChange, Transaction
from invalidator.stream import refresh
from invalidator.stream.chunk import Chunk, ReadRow
from invalidator.stream.deduplicator import Deduplicator
from invalidator.stream.feed import ShardStatus
from invalidator.stream.message import StreamMessage
from invalidator.stream.query import RefreshRequest
from invalidator.stream.refresh import RefreshedStream
from invalidator.stream.row_filter import RowFilter
from invalidator.stream.start import plan_start

LINEAGE: Final = "shop/-"
SHARD: Final = Shard(name="-", primary=ServerAddress("127.0.0.1", 1, "u", "p", "d"), lineage=LINEAGE)
TABLE: Final = "goods"
COLUMNS: Final = frozenset(("id", "v"))
KEYS: Final = range(5)
STEPS_MAX: Final = 400


@lru_cache(maxsize=1024)
def up_to(number: int) -> Position:
    return parse_position("mariadb", f"0-1-{number}" if number else "")


def token(number: int, timestamp_us: int = 0) -> EventToken:
    return EventToken(LINEAGE, "-", 1, timestamp_us, up_to(number))


class Deferred(Executor):
    """Runs what was submitted when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Any]] = []

    def submit(self, fn: Any, /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: fn(*args, **options)))
        return future

    def run(self) -> None:
        for future, work in self.waiting:
            try:
                future.set_result(work())
            except SourceUnavailable as error:
                future.set_exception(error)
        self.waiting.clear()


@dataclass
class World:
    """A log of transactions, the table after each, the state that the server shows (``visible``), the state that its
    heartbeats certify (``shown``), and the delivered part of the stream. ``between``: the server's steps, (commits,
    visible), between the three statements of a read."""

    table: list[dict[int, int]] = field(default_factory=lambda: [{}])
    messages: list[StreamMessage] = field(default_factory=list)
    visible: int = 0
    shown: int = 0
    delivered: int = 0
    taken: int = 0
    may_deliver: int = 0
    now: float = 0.0
    between: Sequence[tuple[int, int]] = ()
    rows_at_once: int = 2
    columns: frozenset[str] = COLUMNS
    reads: int = 0

    @property
    def head(self) -> int:
        return len(self.table) - 1

    def commit(self, changed: Mapping[int, bool], *, is_raised: bool = False, pieces: int = 1) -> None:
        """``changed``: True for each row that exists afterwards. Raised: without rows in the log."""
        number, rows = len(self.table), dict(self.table[-1])
        changes: list[RowChange] = []
        for key, is_there in changed.items():
            before = None if key not in rows else {"id": key, "v": rows.pop(key)}
            if is_there:
                rows[key] = number
            after = {"id": key, "v": number} if is_there else None
            if before or after:
                op: Operation = "delete" if after is None else "insert" if before is None else "update"
                changes.append(RowChange(TABLE, op, before, after))
        self.table.append(rows)
        raised = frozenset((TABLE,)) if is_raised else frozenset[str]()
        kept = [] if is_raised else changes
        cut = len(kept) // 2 if pieces > 1 else 0
        if cut:
            self._add(number, kept[:cut], frozenset(), 0, is_last=False)
        self._add(number, kept[cut:], raised, cut, is_last=True)

    def begin_in_vain(self, key: int) -> None:
        """The first piece of a transaction that is never committed."""
        change = RowChange(TABLE, "insert", None, {"id": key, "v": -1})
        self._add(len(self.table), [change], frozenset(), 0, is_last=False)

    def _add(
        self, number: int, changes: Sequence[RowChange], raised: frozenset[str], first: int, *, is_last: bool
    ) -> None:
        own = up_to(number)
        transaction = Transaction(own, number, tuple(changes), raised_tables=raised, first_row=first, is_last=is_last)
        place = EventToken(LINEAGE, "-", 1, number, own)
        self.messages.append(StreamMessage("shop", "-", place, transaction, {}, 0, first, is_last))

    # -- the stream --

    @property
    def resume(self) -> ResumeVector:
        return ResumeVector("shop", KeyRange(), {LINEAGE: token(self.delivered)})

    @property
    def shards(self) -> Mapping[str, Shard]:
        return {LINEAGE: SHARD}

    def find_filter(self, shard: Shard) -> RowFilter | None:
        return None

    def set_shards(self, shards: Sequence[Shard]) -> None: ...

    def status(self) -> list[ShardStatus]:
        return []

    def close(self) -> None: ...

    def poll(self, timeout_seconds: float) -> StreamMessage | None:
        if not self.may_deliver or self.taken == len(self.messages):
            return None
        self.may_deliver -= 1
        message = self.messages[self.taken]
        self.taken += 1
        if message.is_last:
            self.delivered = message.transaction.timestamp_us
        return message

    # -- the server --

    def show(self, visible: int, shown: int) -> None:
        """Advance by ``visible`` and ``shown`` transactions."""
        self.visible = min(self.head, self.visible + visible)
        self.shown = min(self.visible, self.shown + shown)

    def read(self, shard: Shard, table: str, after: list[Any] | None, is_enough: Any) -> Any:
        self.reads += 1
        low = token(self.shown, round(self.now * 1e6))
        if not is_enough(low):
            return low
        for commits, visible in self.between:
            for key in range(commits):
                self.commit({key % len(KEYS): True})
            self.show(visible, 0)
        self.between = ()
        rows = self.table[self.visible]
        keys = [key for key in sorted(rows) if after is None or key > after[0]][: self.rows_at_once]
        last = [keys[-1]] if len(keys) == self.rows_at_once else None
        found = [ReadRow((key,), {"id": key, "v": rows[key]}) for key in keys]
        return Chunk(low, up_to(self.head), found, last, self.columns, ("id",))


class Scene:
    """The consumer of a refreshed stream. Rows of pieces count with the last one."""

    def __init__(
        self, world: World, *, place: RefreshPlace | None = None, rows_per_second: float | None = None
    ) -> None:
        self.world, self.executor = world, Deferred()
        self.rows: dict[int, int] = {}
        self.pieces: list[RowChange] = []
        self.is_over = False
        self.refreshed: list[int] = []
        self.stream = RefreshedStream(
            cast(Any, world),
            place or RefreshPlace((TABLE,), {}),
            {TABLE: ("id",)},
            world.read,
            RefreshRequest((TABLE,), rows_per_second=rows_per_second),
            clock=lambda: world.now,
            now_us=lambda: round(world.now * 1e6),
            executor=self.executor,
        )

    def poll(self) -> None:
        self.world.now += 0.5
        message = self.stream.poll(0)
        if message is None:
            return
        if message.is_refresh:
            self._refresh(message)
            return
        self.pieces = [*(self.pieces if message.first_row else ()), *message.transaction.changes]
        if not message.is_last:
            return
        if message.transaction.raised_tables:
            self.rows.clear()
        for change in self.pieces:
            for image, is_there in ((change.before, False), (change.after, True)):
                if image is not None:
                    key, version = cast(dict[str, int], image).values()
                    self.rows.pop(key, None)
                    if is_there:
                        self.rows[key] = version
        self.pieces = []

    def _refresh(self, message: StreamMessage) -> None:
        table = self.world.table[self.world.delivered]
        for change in message.transaction.changes:
            assert change.op == "refresh"
            assert change.after is not None
            key, version = cast(dict[str, int], change.after).values()
            assert table.get(key) == version, "the row is that of this place in the stream"
            self.rows[key] = version
            self.refreshed.append(key)
        if message.refresh is None:
            self.is_over = True
            assert self.rows == table

    def finish(self) -> None:
        """With a server and a stream that go on."""
        self.world.commit({})
        for _ in range(STEPS_MAX):
            self.world.show(1, 1)
            self.world.may_deliver += 1
            self.executor.run()
            self.poll()
            if self.is_over:
                return
        pytest.fail("the refresh does not end")


ACTION = st.one_of(
    st.tuples(st.just("write"), st.dictionaries(st.sampled_from(KEYS), st.booleans(), min_size=1)),
    st.tuples(st.just("pieces"), st.dictionaries(st.sampled_from(KEYS), st.booleans(), min_size=2)),
    st.tuples(st.just("raise"), st.dictionaries(st.sampled_from(KEYS), st.booleans())),
    st.tuples(st.just("vain"), st.sampled_from(KEYS)),
    st.tuples(st.just("show"), st.tuples(st.integers(0, 3), st.integers(0, 3))),
    st.tuples(st.just("deliver"), st.integers(1, 3)),
    st.tuples(st.just("read"), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=2)),
    st.tuples(st.just("poll"), st.none()),
)


def act(world: World, scene: Scene, kind: str, argument: Any) -> None:
    match kind:
        case "write":
            world.commit(argument)
        case "pieces":
            world.commit(argument, pieces=2)
        case "raise":
            world.commit(argument, is_raised=True)
        case "vain":
            world.begin_in_vain(argument)
        case "show":
            world.show(*argument)
        case "deliver":
            world.may_deliver += argument
        case "read":
            world.between = argument
            scene.executor.run()
    scene.poll()


@settings(max_examples=150)
@given(st.lists(ACTION, max_size=60), st.integers(0, 4), st.sampled_from((2, 500)))
def test_each_row_is_that_of_its_place_and_in_the_end_the_table_is_whole(
    actions: list[tuple[str, Any]], begun: int, keys_max: int
) -> None:
    """The stream begins at a head that the server does not certify yet."""
    world = World()
    for key in KEYS[:begun]:
        world.commit({key: True})
    world.taken, world.delivered = len(world.messages), world.head
    scene = Scene(world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refresh, "KEYS_MAX", keys_max)
        for kind, argument in actions:
            act(world, scene, kind, argument)
        scene.finish()


def filled(rows: int = 4, **options: Any) -> tuple[World, Scene]:
    """A table whose rows the server shows, and of which the stream had nothing."""
    world = World(**options)
    for key in range(rows):
        world.commit({key: True})
    world.taken, world.delivered = len(world.messages), world.head
    world.show(world.head, world.head)
    return world, Scene(world)


def test_a_row_that_changed_after_the_shown_position_is_left_out() -> None:
    """F2: the stream has the change, and the SELECT does not show it."""
    world, scene = filled(1)
    world.commit({0: True})
    world.may_deliver = 1
    scene.poll()
    assert scene.rows == {0: 2}
    scene.executor.run()
    scene.poll()
    scene.finish()
    assert (scene.rows, scene.refreshed) == ({0: 2}, [])


def test_a_change_from_before_the_read_counts_back_to_the_shown_position() -> None:
    """F2: it was delivered before the chunk was asked for, and its server's heartbeat is older."""
    world, scene = filled(4)
    scene.poll()
    scene.executor.run()
    scene.poll()
    assert scene.refreshed == [0, 1]
    world.commit({2: False})
    world.may_deliver = 1
    scene.poll()
    scene.poll()
    scene.executor.run()  # neither shown nor certified
    scene.poll()
    assert scene.refreshed == [0, 1, 3]
    assert 2 not in scene.rows


def test_nothing_comes_before_the_stream_has_what_the_read_may_have_shown() -> None:
    world, scene = filled(1)
    scene.poll()
    world.between = [(1, 1)]
    scene.executor.run()
    for _ in range(3):
        scene.poll()
    assert scene.refreshed == []
    scene.finish()
    assert scene.rows == {0: 2}


def test_a_table_that_is_raised_begins_again() -> None:
    """The consumer drops its rows: their columns may be others."""
    world, scene = filled(4)
    scene.poll()
    scene.executor.run()
    scene.poll()
    assert scene.refreshed == [0, 1]
    world.commit({0: False}, is_raised=True)
    scene.finish()
    assert scene.refreshed == [0, 1, 1, 2, 3]


def test_a_server_that_is_behind_is_not_read() -> None:
    world, scene = filled(1)
    answers: list[bool] = []
    world.read = lambda shard, table, after, is_enough: answers.append(  # type: ignore[method-assign]
        is_enough(token(world.shown, 0))
    )
    world.now = 100.0
    scene = Scene(world)
    scene.poll()
    scene.executor.run()
    assert answers == [False], "its newest heartbeat is 100 s old"


def test_a_log_that_leaves_columns_out_cannot_be_refreshed_from() -> None:
    world, scene = filled(1)
    world.columns = COLUMNS | {"note"}
    world.commit({0: True})
    world.may_deliver = 1
    scene.poll()
    scene.executor.run()
    with pytest.raises(SourceUnsuitable, match="leaves columns of changed rows out"):
        scene.poll()


def test_rows_are_read_no_faster_than_asked_for() -> None:
    world, _ = filled(5)
    scene = Scene(world, rows_per_second=0.5)
    begun = world.now
    scene.finish()
    assert world.now - begun >= 4 / 0.5


def test_a_server_that_is_away_is_asked_again() -> None:
    world, scene = filled(2)
    read, failed = world.read, [SourceUnavailable("away", hint="wait")]

    def fail_once(*arguments: Any) -> Any:
        if failed:
            raise failed.pop()
        return read(*arguments)

    world.read = fail_once  # type: ignore[assignment, method-assign]
    scene = Scene(world)
    scene.finish()
    assert scene.refreshed == [0, 1]


def test_a_refresh_goes_on_from_its_place() -> None:
    world, scene = filled(4)
    scene.poll()
    scene.executor.run()
    scene.poll()
    text = scene.stream.resume.format()
    assert text.startswith(REFRESH_PREFIX)
    vector = ResumeVector.parse(text)
    later = Scene(world, place=vector.refresh)
    later.rows = dict(scene.rows)
    later.finish()
    assert later.refreshed == [2, 3]


def test_the_resume_text_of_a_refresh_is_refused_by_others() -> None:
    _, scene = filled(1)
    text = scene.stream.resume.format()
    with pytest.raises(FormatError, match="would be lost here"):
        parse_moment(text)
    with pytest.raises(ConfigError, match="would be lost here"):
        plan_start(ResumeVector.parse(text), SHARD, "mariadb", "shop", KeyRange())
    with pytest.raises(FormatError, match="resume text"):
        ResumeVector.parse(text[:-3])


@pytest.mark.parametrize("place", ["{}", "[[1],{}]", '[["a"],{"x":{"a":3}}]', '[["a"],[]]', "?"])
def test_a_place_that_was_altered_is_refused(place: str) -> None:
    class Altered(RefreshPlace):
        def encode(self) -> bytes:
            return place.encode()

    text = ResumeVector("shop", KeyRange(), {LINEAGE: token(1)}, Altered((), {})).format()
    with pytest.raises(FormatError, match="has no place of a refresh"):
        ResumeVector.parse(text)


def test_rows_of_a_refresh_are_neither_duplicates_nor_counted() -> None:
    world, scene = filled(2)
    scene.poll()
    scene.executor.run()
    world.now += 1
    message = scene.stream.poll(0)
    assert message is not None
    assert message.is_refresh
    assert message.rows == (-1, -1)
    deduplicator = Deduplicator({LINEAGE: token(world.delivered)})
    assert deduplicator.take(message) is message


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_a_rate_is_a_number_above_zero(rate: float) -> None:
    with pytest.raises(ConfigError, match="rows per second"):
        RefreshRequest(("a",), rows_per_second=rate)
