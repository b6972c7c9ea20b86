"""Put missing stripes back on a node, beside the stream (docs/algorithm.md#putting-stripes-back).

A stripe that is absent refuses, so nothing is urgent and nothing is at risk. But a stripe must not come back without
an event that was sent while it was away:

1. A **pending** stripe, with a nonce, takes the place of what is missing. Invalidators append to it as to any other.
2. An own heartbeat that was begun after that, on the primary that the record follows, comes back through the own
   stream. Whatever any invalidator sent before step 1 was in that primary's log before the heartbeat, so the stream
   has delivered it by now.
3. The stripe, with everything streamed by then and with what was appended to the pending one, replaces it by CAS. The
   nonce still stands there, so the item has not been absent since step 1.

Nothing else is needed: no lock, no agreement between invalidators, no word to those who publish. A pending stripe of
another invalidator is left alone, and expires if that one has died.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from freshness.algorithm.envelope import (
    CHUNK_BYTES_MAX,
    STUB,
    NodeRecord,
    PendingStripe,
    Stripe,
    decode_wanted,
    find_record,
    is_within,
    record_key,
    stripe_keys,
    wanted_key,
)
from freshness.algorithm.gather import gather
from freshness.algorithm.membership import NodePolicy
from freshness.algorithm.request import (
    CONFLICT,
    Add,
    Cas,
    Delete,
    Flow,
    Get,
    Item,
    Procedure,
    ReadStream,
    Request,
    Stored,
    Streamed,
    Wait,
)
from freshness.errors import FormatError, FreshnessError
from freshness.position import Position

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.2
"""Pause between two looks at a node."""

BUSY_SECONDS: Final = 0.02
"""The same for `BUSY_SECONDS_MAX` of a new life, or of stripes that wait for a heartbeat, which is on its way."""

BUSY_SECONDS_MAX: Final = 2.0

FIRST_AT_ONCE_MAX: Final = 8192
"""How many stripes of a first round are put back together. The stripes that readers miss are among the next."""

REST_SECONDS: Final = 2.0
"""How long a node that does not answer is left alone, at most: first as long as between two looks, then twice as long
each time. A node that was only restarted can have no fill before its stripes are back."""

SWEEP_SECONDS: Final = 60.0
"""In that time each stripe is looked at once; what a node evicts without a word is found then at the latest."""

AT_ONCE_MAX: Final = 2048
"""How many stripes one flow asks for."""

PENDING_MORE_SECONDS: Final = 10
"""TTL of a pending stripe, besides the age that a heartbeat may have. A put-back that takes longer is given up."""

WANTED_SECONDS: Final = 60
DOUBT_SECONDS: Final = 15.0
"""How long a stripe may hold what the node's progress lacks, before it is deleted: a failover may have taken it back,
and then no replica will ever contain it (ADR 0018). Longer where progress may be older than that."""

CAS_ATTEMPTS_MAX: Final = 4


@dataclass(slots=True)
class Restorer:
    """Puts back the stripes of one lineage on one node.

    ``clock`` is that of the process, by which its heartbeats are begun; ``nonce`` gives random bytes of the size of
    a life. ``restored``: number of stripes put back so far.
    """

    node: str
    policy: NodePolicy
    clock: Callable[[], float]
    nonce: Callable[[], bytes]
    restored: int = 0
    _life: bytes = b""
    _next: int = 0
    """The stripe at which the round goes on."""
    _is_first_round: bool = True
    _pending: set[int] = field(default_factory=set)
    _pending_nonce: bytes = b""
    _pending_since: float = 0.0
    _again: set[int] = field(default_factory=set)
    """Stripes that are known to be missing, or that an attempt has not come to."""
    _doubts: dict[int, tuple[float, Position]] = field(default_factory=dict)
    """Stripe → (since when, what it holds that the record's progress lacks)."""
    _looked_at: float = float("-inf")
    _is_busy_until: float = float("-inf")
    _rests_until: float = float("-inf")
    _rest_seconds: float = LOOK_SECONDS

    @property
    def pending_seconds(self) -> int:
        return ceil(self.policy.heartbeat_age_max_seconds) + PENDING_MORE_SECONDS

    @property
    def doubt_seconds(self) -> float:
        return max(DOUBT_SECONDS, self.policy.heartbeat_age_max_seconds)

    @property
    def is_complete(self) -> bool:
        """Whether all stripes were there, as far as is known."""
        return bool(self._life) and not (self._is_first_round or self._pending or self._again)

    @property
    def is_resting(self) -> bool:
        return self.clock() < self._rests_until

    @property
    def is_busy(self) -> bool:
        """Whether the next look is likely to go on with what this one has begun."""
        is_under_way = self._is_first_round or bool(self._pending)
        return is_under_way and not self.is_resting and self.clock() < self._is_busy_until

    def note(self, result: object) -> None:
        """Take the result of a look: a node that did not answer is left alone."""
        if not isinstance(result, FreshnessError):
            self._rest_seconds = LOOK_SECONDS
            return
        log.warning("node %s: its stripes could not be looked at: %s", self.node, result)
        self._rests_until = self.clock() + self._rest_seconds
        self._rest_seconds = min(2 * self._rest_seconds, REST_SECONDS)

    def look(self) -> Procedure[None]:
        """Look at the node once, and do what can be done now. Raises `NodeUnavailable`; the next look goes on."""
        namespace, lineage = self.policy.namespace, self.policy.lineage
        wanted = wanted_key(namespace, lineage)
        gets = Get(record_key(namespace, lineage), is_bound=True), Get(wanted, WANTED_SECONDS)
        item, noted = yield Flow(self.node, gets)
        record = find_record(item, self.node)
        if record is None or not record.stripes:
            return
        if record.life != self._life:
            self._life, self._next, self._is_first_round = record.life, 0, True
            self._again, self._pending, self._doubts = set(), set(), {}
            self._is_busy_until = self.clock() + BUSY_SECONDS_MAX
        if self._pending:
            yield from self._complete(record)
            return
        if isinstance(noted, Item) and noted.value != STUB:
            if not noted.version:
                yield Flow(self.node, (Delete(wanted),))
            else:
                yield Flow(self.node, (Cas(wanted, STUB, noted.version, WANTED_SECONDS),))
            self._again.update(number for number in decode_wanted(noted.value) if number < record.stripes)
        numbers = self._choose(record.stripes)
        for start in range(0, len(numbers), AT_ONCE_MAX):
            yield from self._mark(record, numbers[start : start + AT_ONCE_MAX])

    def _choose(self, stripes: int) -> Sequence[int]:
        """The stripes that are known to be missing, and the next ones of the round, more in the first one."""
        now = self.clock()
        share = min(1.0, (now - self._looked_at) / SWEEP_SECONDS)
        count = max(1, int(stripes * share))
        if self._is_first_round:
            count = min(FIRST_AT_ONCE_MAX, stripes - self._next)
        self._looked_at = now
        doubtful = [number for number, (since, _) in self._doubts.items() if now - since >= self.doubt_seconds]
        chosen = dict.fromkeys([*self._again, *doubtful])
        chosen.update(dict.fromkeys((self._next + step) % stripes for step in range(count)))
        self._again = set(chosen)  # until it is seen that they are there, or pending
        self._next = (self._next + count) % stripes
        self._is_first_round = self._is_first_round and self._next > 0
        self._pending_nonce = self.nonce()
        return list(chosen)

    def _mark(self, record: NodeRecord, numbers: Sequence[int]) -> Procedure[None]:
        """Step 1: put a pending stripe in the place of each that is not a stripe of this life."""
        names = stripe_keys(self.policy.namespace, self.policy.lineage, record.stripes)
        held = yield Flow(self.node, tuple([Get(names[number]) for number in numbers]))
        data = PendingStripe(self._pending_nonce).encode()
        known: set[bytes] = set()
        asked: list[int] = []
        requests: list[Request] = []
        for number, item in zip(numbers, held, strict=True):
            key, doubt = names[number], self._doubts.pop(number, None)
            if not isinstance(item, Item):
                asked.append(number)
                requests.append(Add(key, data, self.pending_seconds))
                continue
            if is_within(item.value, record.life, record.progress, known):
                self._again.discard(number)
                continue
            found = _decode(item.value)
            if isinstance(found, PendingStripe):
                continue
            if isinstance(found, Stripe) and found.life == record.life:
                if self._is_doubtful(number, found, record, doubt):
                    asked.append(number)
                    requests.append(Delete(key))
                else:
                    self._again.discard(number)
            else:
                asked.append(number)
                fresh = Cas(key, data, item.version, self.pending_seconds) if item.version else Delete(key)
                requests.append(fresh)
        if not requests:
            return
        replies = yield Flow(self.node, tuple(requests))
        stored = {number for number, reply in zip(asked, replies, strict=True) if isinstance(reply, Stored)}
        if stored:
            self._pending |= stored
            self._again -= stored
            self._pending_since = self.clock()
            self._is_busy_until = self._pending_since + BUSY_SECONDS_MAX

    def _is_doubtful(
        self, number: int, stripe: Stripe, record: NodeRecord, doubt: tuple[float, Position] | None
    ) -> bool:
        """Whether the stripe, which holds what the node has not acknowledged, has held that for long."""
        since, position = doubt or (self.clock(), stripe.position)
        if not record.progress.contains(position):
            if self.clock() - since >= self.doubt_seconds:
                return True
            self._doubts[number] = since, position
        return False

    def _complete(self, record: NodeRecord) -> Procedure[None]:
        """Steps 2 and 3."""
        streamed: Streamed | None = yield ReadStream(self._pending_since)
        if (
            streamed is None
            or (streamed.epoch, streamed.primary) != (record.epoch, record.primary)
            or streamed.begun_at < self._pending_since
        ):
            if self.clock() - self._pending_since >= self.pending_seconds:
                self._again, self._pending = self._again | self._pending, set()
            return
        pending = sorted(self._pending)
        self._again, self._pending = self._again | self._pending, set()  # until each is stored
        position = streamed.position.subtract(record.floor)
        for start in range(0, len(pending), AT_ONCE_MAX):
            left: Sequence[int] = pending[start : start + AT_ONCE_MAX]
            for _ in range(CAS_ATTEMPTS_MAX):
                if left:
                    left = yield from self._replace(record, left, position)

    def _replace(self, record: NodeRecord, numbers: Sequence[int], position: Position) -> Procedure[Sequence[int]]:
        """Step 3. Returns those that changed while they were looked at: their nonce may still stand."""
        names = stripe_keys(self.policy.namespace, self.policy.lineage, record.stripes)
        held = yield Flow(self.node, tuple([Get(names[number]) for number in numbers]))
        known: dict[bytes, bytes | None] = {}
        asked: list[int] = []
        requests: list[Request] = []
        for number, item in zip(numbers, held, strict=True):
            if not isinstance(item, Item):
                continue
            if item.value not in known:
                known[item.value] = self._completed(item.value, record.life, position)
            data = known[item.value]
            if data is None:
                continue
            if len(data) > CHUNK_BYTES_MAX:
                self._again.discard(number)  # as long at once again: left to the next round
                continue
            asked.append(number)
            requests.append(Cas(names[number], data, item.version, 0))
        if not requests:
            return ()
        replies = yield Flow(self.node, tuple(requests))
        stored = {number for number, reply in zip(asked, replies, strict=True) if isinstance(reply, Stored)}
        self.restored += len(stored)
        self._again -= stored
        return [number for number, reply in zip(asked, replies, strict=True) if reply is CONFLICT]

    def _completed(self, data: bytes, life: bytes, position: Position) -> bytes | None:
        """The whole stripe in the place of a pending one; None if that is not the own one."""
        pending = _decode(data)
        if not isinstance(pending, PendingStripe) or pending.nonce != self._pending_nonce:
            return None
        try:
            return pending.complete(life, position).encode()
        except FormatError:  # chunks of another flavor
            return None


def _decode(data: bytes) -> Stripe | PendingStripe | None:
    for kind in (Stripe, PendingStripe):
        try:
            return kind.decode(data)
        except FormatError:
            continue
    return None


def run_restorers(restorers: Sequence[Restorer], jitter: Callable[[], float]) -> Procedure[None]:
    """Look at all nodes side by side, without an end. A node that does not answer is left alone for a while."""
    while True:
        awake = [restorer for restorer in restorers if not restorer.is_resting]
        results = yield from gather([restorer.look() for restorer in awake])
        for restorer, result in zip(awake, results, strict=True):
            restorer.note(result)
        pause = BUSY_SECONDS if any(restorer.is_busy for restorer in restorers) else LOOK_SECONDS
        yield Wait(pause * (0.5 + jitter()))
