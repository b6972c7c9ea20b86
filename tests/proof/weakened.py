"""Actions without one of their defences: each breaks the invariant, and a schedule from the start breaks a property.

A schedule names actions alone. `Unrolling` finds who does them with what, in a world of `SIZES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from tests.proof.actions import (
    append,
    await_heartbeat,
    beat,
    begin_life,
    commit,
    complete,
    delete,
    evict_stripe,
    keep,
    lapse,
    mark,
    may_send,
    open_record,
    publish,
    published,
    remove_stripe,
    replicate,
    revive,
    set_floor,
    shorten,
    stream,
    strike,
)
from tests.proof.invariant import i1, i2, i9, i10
from tests.proof.language import (
    Formula,
    Step,
    always,
    equal,
    exactly,
    forall,
    implies,
    none,
    only,
    plus,
    setting,
    within,
)
from tests.proof.reading import (
    answer,
    answer_bounded,
    copy_record,
    fetch_record,
    fetch_stripe,
    fill,
    has_row,
    informed,
    leave_stub,
    look,
    look_to_refill,
    shows_required,
    start,
    take_hit,
    take_image,
    take_position,
    take_rows,
)
from tests.proof.state import (
    Event,
    Events,
    Key,
    Life,
    Member,
    Next,
    PutBack,
    Read,
    Server,
    State,
    aim_of,
    key_of,
    life_of,
    place_of,
)

Schedule = tuple[Callable[..., Next], ...]

SIZES: Final = {Event: 2, Key: 1, Server: 2, Life: 2, Member: 2, PutBack: 2, Read: 3}

OPEN: Final[Schedule] = (begin_life, set_floor, beat, open_record)
PUT_BACK: Final[Schedule] = (mark, await_heartbeat, complete)
SERVING: Final[Schedule] = (*OPEN, *PUT_BACK)
CHANGE: Final[Schedule] = (commit, stream)
INVALIDATED: Final[Schedule] = (*CHANGE, append, delete, publish)
KEPT: Final[Schedule] = (stream, stream, append, keep, keep, publish)
COMMITS: Final[Schedule] = (commit, commit, replicate, replicate)
GUARDS: Final[Schedule] = (start, leave_stub, fetch_stripe, fetch_record)
LOAD: Final[Schedule] = (take_position, take_rows)
MISS: Final[Schedule] = (*GUARDS, *LOAD)
REFILL: Final[Schedule] = (start, look_to_refill, fetch_stripe, fetch_record, take_image)
HIT: Final[Schedule] = (copy_record, start, look, take_hit)


@dataclass(frozen=True)
class Weakened:
    """``name``: the name of the planted bug in ``tests/simulation/bugs.py``, if there is one. ``instead``: weakened
    actions by the ones whose place they take. ``schedule``: the original actions of a run that breaks a property."""

    name: str
    instead: dict[Callable[..., Next], Callable[..., Next]]
    schedule: Schedule
    breaks: Callable[..., Formula]

    def actions(self) -> Schedule:
        return tuple(self.instead.get(action, action) for action in self.schedule)


SomeAction = TypeVar("SomeAction", bound=Callable[..., Next])

WEAKENED: Final[list[Weakened]] = []


def weakens(
    original: Callable[..., Next], name: str, schedule: Schedule, breaks: Callable[..., Formula]
) -> Callable[[SomeAction], SomeAction]:
    WEAKENED.append(Weakened(name, {}, schedule, breaks))
    return together(original)


def together(original: Callable[..., Next]) -> Callable[[SomeAction], SomeAction]:
    """One more action that must be weakened for the last defence to be gone."""
    instead = WEAKENED[-1].instead

    def add(function: SomeAction) -> SomeAction:
        instead[original] = function
        return function

    return add


# -- reading -------------------------------------------------------------------------------------------


@weakens(fill, "fill without compare", (*SERVING, *INVALIDATED, *MISS, fill, *HIT), i1)
def fill_without_compare(now: State, read: Read, life: Life) -> Next:
    guard = now.observed(read) & now.informed(read, life) & now.stripe(read, life) & now.loaded(read)
    return Step(guard, fill(now, read, life).after)


@weakens(fill, "an absent stripe allows", (*OPEN, *CHANGE, append, delete, *MISS, fill, publish, *HIT), i1)
def fill_without_stripe(now: State, read: Read, life: Life) -> Next:
    """With the record's progress in its place, as for an answer."""
    guard = now.observed(read) & now.informed(read, life) & shows_required(now, read) & now.loaded(read)
    return Step(guard, fill(now, read, life).after)


@weakens(fill, "blind set", (*SERVING, *MISS, *INVALIDATED, fill, *HIT), i1)
def fill_by_set(now: State, read: Read, life: Life) -> Next:
    guard = now.informed(read, life) & now.stripe(read, life) & shows_required(now, read) & now.loaded(read)
    return Step(guard, fill(now, read, life).after)


@weakens(fetch_stripe, "a pending stripe allows", (*OPEN, *INVALIDATED, mark, *MISS, fill, *HIT), i1)
def fetch_pending(now: State, read: Read, attempt: PutBack) -> Next:
    after = replace(
        fetch_stripe(now, read).after,
        stripe=only(now.stripe, read, aim_of(attempt)),
        required=setting(now.required, lambda event: now.appended(attempt, event), read),
    )
    is_pending = now.pending(attempt) & equal(place_of(attempt), key_of(read))
    return Step(fetch_stripe(now, read).guard & is_pending, after)


@weakens(
    fetch_stripe,
    "stripe read before the stub",
    (*SERVING, start, fetch_stripe, *INVALIDATED, leave_stub, fetch_record, *LOAD, fill, *HIT),
    i1,
)
def fetch_stripe_first(now: State, read: Read) -> Next:
    return Step(~now.guarded(read), fetch_stripe(now, read).after)


@together(leave_stub)
def leave_stub_last(now: State, read: Read) -> Next:
    return Step(now.started(read) & now.guarded(read), leave_stub(now, read).after)


@weakens(fetch_record, "a stripe of any life counts", (*SERVING, *OPEN, *INVALIDATED, *MISS, fill, *HIT), i1)
def fetch_record_of_any_life(now: State, read: Read, life: Life, other: Life) -> Next:
    def required(event: Event) -> Formula:
        return now.floor(life, event) | now.required(read, event)

    after = replace(informed(now, read, life, required), stripe=only(now.stripe, read, life))
    return Step(fetch_record(now, read, life).guard & now.stripe(read, other), after)


@weakens(fetch_record, "fill without floor", (commit, stream, *SERVING, *MISS, fill, *HIT), i1)
@weakens(fetch_record, "floor not required of a miss", (commit, stream, *SERVING, *MISS, answer), i10)
def fetch_record_without_floor(now: State, read: Read, life: Life) -> Next:
    def required(event: Event) -> Formula:
        of_stripe = now.stripe(read, life) & now.required(read, event)
        return of_stripe | (~now.stripe(read, life) & now.progress(event))

    return Step(fetch_record(now, read, life).guard, informed(now, read, life, required))


@weakens(fetch_record, "stripe not required of a miss", (*SERVING, *INVALIDATED, *MISS, answer), i10)
def fetch_record_without_stripe(now: State, read: Read, life: Life) -> Next:
    return Step(fetch_record(now, read, life).guard, informed(now, read, life, lambda event: now.floor(life, event)))


@weakens(fetch_record, "absent stripe requires nothing", (*OPEN, *INVALIDATED, *MISS, answer), i10)
def fetch_record_without_progress(now: State, read: Read, life: Life) -> Next:
    def required(event: Event) -> Formula:
        return now.floor(life, event) | (now.stripe(read, life) & now.required(read, event))

    return Step(fetch_record(now, read, life).guard, informed(now, read, life, required))


@weakens(fetch_record, "record of step 3 from a copy", (*OPEN, copy_record, *INVALIDATED, *MISS, answer), i10)
def fetch_record_from_the_copy(now: State, read: Read, life: Life) -> Next:
    def required(event: Event) -> Formula:
        return now.floor(life, event) | now.copy(read, event) | (now.stripe(read, life) & now.required(read, event))

    return Step(now.guarded(read) & now.copied(read, life), informed(now, read, life, required))


@weakens(fetch_record, "a closed record is believed", (*OPEN, *INVALIDATED, lapse, revive, *MISS, answer), i10)
def fetch_closed_record(now: State, read: Read, life: Life) -> Next:
    opened = replace(now, is_open=now.record)
    return Step(fetch_record(opened, read, life).guard, fetch_record(now, read, life).after)


@weakens(
    copy_record,
    "record read behind the entry",
    (*SERVING, *MISS, fill, start, look, *INVALIDATED, copy_record, take_hit),
    i9,
)
def copy_record_at_any_time(now: State, read: Read, life: Life) -> Next:
    return Step(now.is_open(life), copy_record(now, read, life).after)


@weakens(take_hit, "life ignored by hits", (*SERVING, *MISS, fill, commit, *OPEN, *HIT), i1)
def take_hit_of_any_life(now: State, read: Read, life: Life, other: Life) -> Next:
    copied = replace(now, copied=only(now.copied, read, other))
    return Step(now.copied(read, life) & take_hit(copied, read, other).guard, take_hit(now, read, other).after)


@weakens(take_hit, "own commits ignored by hits", (*SERVING, *MISS, fill, commit, *HIT), i9)
def take_any_hit(now: State, read: Read, life: Life) -> Next:
    guard = now.got(read, life) & now.copied(read, life) & ~now.answered(read)
    return Step(guard, take_hit(now, read, life).after)


@weakens(
    look_to_refill,
    "a newer entry is filled from the log",
    (*SERVING, *COMMITS, *MISS, fill, stream, append, *REFILL, *KEPT, fill, *HIT),
    i1,
)
def look_to_refill_always(now: State, read: Read, life: Life) -> Next:
    """Whatever the entry has."""
    bare = replace(now, position=none)
    step = look_to_refill(now, read, life)
    return Step(look_to_refill(bare, read, life).guard, step.after)


@weakens(answer, "a miss is fresh without its token", (*SERVING, *INVALIDATED, *MISS, answer), i10)
def answer_without_compare(now: State, read: Read, life: Life) -> Next:
    return Step(now.informed(read, life) & has_row(now, read), answer(now, read, life).after)


@weakens(answer_bounded, "own commits ignored by servers", (commit, start, leave_stub, *LOAD, answer_bounded), i9)
def answer_any(now: State, read: Read) -> Next:
    return Step(has_row(now, read), answer_bounded(now, read).after)


@weakens(take_position, "token of the binlog", (*SERVING, *INVALIDATED, *MISS, answer), i10)
def take_position_of_the_log(now: State, read: Read, server: Server) -> Next:
    step = take_position(now, read, server)
    return Step(step.guard, replace(step.after, at=setting(now.at, now.logged, read)))


@weakens(
    take_position,
    "snapshot before token",
    (*SERVING, *INVALIDATED, *GUARDS, take_rows, replicate, take_position, answer),
    i10,
)
def take_position_last(now: State, read: Read, server: Server) -> Next:
    step = take_position(now, read, server)
    return Step(step.guard, replace(step.after, loaded=now.loaded))


@together(take_rows)
def take_rows_first(now: State, read: Read, server: Server) -> Next:
    return Step(
        now.looked(read) & ~now.answered(read) & ~now.source(read, server), take_rows(now, read, server).after
    )


@weakens(
    take_rows, "a session that was moved is not noticed", (*SERVING, *INVALIDATED, replicate, *MISS, answer), i10
)
def take_rows_of_any_server(now: State, read: Read, server: Server) -> Next:
    return Step(now.looked(read) & ~now.answered(read), take_rows(now, read, server).after)


# -- invalidating --------------------------------------------------------------------------------------


@weakens(append, "delete before stripe", (*SERVING, *CHANGE, delete, *MISS, append, publish, fill, *HIT), i1)
def append_last(now: State, member: Member, key: Key, chunk: Events) -> Next:
    """The key was deleted before, and is not deleted again."""
    step = append(now, member, key, chunk)
    return Step(step.guard, settled_too(now, step.after, member, key, chunk))


@weakens(
    remove_stripe,
    "keys are not deleted after a refusal",
    (*SERVING, *CHANGE, delete, *MISS, remove_stripe, publish, fill, *HIT),
    i1,
)
def remove_stripe_last(now: State, member: Member, key: Key, chunk: Events) -> Next:
    step = remove_stripe(now, member, key, chunk)
    return Step(step.guard, settled_too(now, step.after, member, key, chunk))


def settled_too(now: State, after: State, member: Member, key: Key, chunk: Events) -> State:
    is_meant = strike(replace(now, struck=now.settled), member, key, chunk).struck
    return replace(after, settled=is_meant)


@weakens(append, "chunk of the batch before", (*SERVING, *INVALIDATED), i2)
@weakens(remove_stripe, "a refused append counts as done", (*SERVING, *CHANGE, remove_stripe, delete, publish), i2)
def append_nothing(now: State, member: Member, key: Key, chunk: Events) -> Next:
    return Step(may_send(now, member, chunk), strike(now, member, key, chunk))


@weakens(append, "a pending stripe is not appended to", (*OPEN, mark, await_heartbeat, *INVALIDATED, complete), i2)
def append_to_whole_stripes(now: State, member: Member, key: Key, chunk: Events) -> Next:
    step = append(now, member, key, chunk)
    return Step(step.guard, replace(step.after, appended=now.appended))


@weakens(shorten, "shortened to the first chunk", (*SERVING, *INVALIDATED, shorten), i2)
def shorten_to_some(now: State, key: Key, union: Events) -> Next:
    return Step(within(union, lambda event: now.held(key, event), Event), shorten(now, key, union).after)


@weakens(shorten, "shortened by set", (*SERVING, evict_stripe, *INVALIDATED, shorten), i2)
def shorten_by_set(now: State, key: Key, union: Events, life: Life) -> Next:
    step = shorten(now, key, union)
    return Step(step.guard & now.latest(life), replace(step.after, whole=only(now.whole, key, life)))


# -- putting stripes back ------------------------------------------------------------------------------


@weakens(
    await_heartbeat, "put back with an older heartbeat", (*OPEN, await_heartbeat, *INVALIDATED, mark, complete), i2
)
def await_older_heartbeat(now: State, attempt: PutBack) -> Next:
    return Step(always(), await_heartbeat(now, attempt).after)


@weakens(complete, "a replica that reorders is followed", (*OPEN, *INVALIDATED, *PUT_BACK), i2)
def complete_without_order(now: State, attempt: PutBack, member: Member, batch: Events) -> Next:
    is_streamed = within(batch, lambda event: now.streamed(member, event), Event)
    return Step(
        now.pending(attempt) & now.awaited(attempt) & is_streamed, complete(now, attempt, member, batch).after
    )


@weakens(complete, "nonce ignored", (*OPEN, mark, await_heartbeat, evict_stripe, *INVALIDATED, mark, complete), i2)
def complete_without_nonce(now: State, attempt: PutBack, member: Member, batch: Events, other: PutBack) -> Next:
    is_other = now.pending(other) & equal(place_of(other), place_of(attempt))
    as_own = replace(now, pending=plus(now.pending, attempt))
    return Step(
        is_other & complete(as_own, attempt, member, batch).guard, complete(now, attempt, member, batch).after
    )


@weakens(complete, "put back by set", (*OPEN, mark, await_heartbeat, evict_stripe, *INVALIDATED, complete), i2)
def complete_by_set(now: State, attempt: PutBack, member: Member, batch: Events) -> Next:
    as_own = replace(now, pending=plus(now.pending, attempt))
    return Step(complete(as_own, attempt, member, batch).guard, complete(now, attempt, member, batch).after)


@weakens(complete, "put back with the floor alone", (*OPEN, *INVALIDATED, *PUT_BACK), i2)
def complete_with_the_floor(now: State, attempt: PutBack, member: Member, batch: Events) -> Next:
    step = complete(now, attempt, member, batch)
    held = setting(now.held, lambda event: now.appended(attempt, event), place_of(attempt))
    return Step(step.guard, replace(step.after, held=held))


@weakens(complete, "what was appended is dropped", (*OPEN, mark, await_heartbeat, *INVALIDATED, complete), i2)
def complete_with_the_stream(now: State, attempt: PutBack, member: Member, batch: Events) -> Next:
    step = complete(now, attempt, member, batch)
    held = setting(now.held, batch, place_of(attempt))
    return Step(step.guard, replace(step.after, held=held))


@weakens(complete, "put back by add", (*OPEN, *INVALIDATED, complete), i2)
def complete_at_once(now: State, attempt: PutBack, member: Member, batch: Events) -> Next:
    return Step(~now.whole(place_of(attempt), aim_of(attempt)), complete(now, attempt, member, batch).after)


# -- the record ----------------------------------------------------------------------------------------


@weakens(publish, "progress before acknowledge", (*SERVING, *CHANGE, publish), i2)
def publish_first(now: State, member: Member, batch: Events) -> Next:
    is_streamed = within(batch, lambda event: now.streamed(member, event), Event)
    return Step(now.joined(member) & is_streamed, publish(now, member, batch).after)


@weakens(
    open_record, "opened before it caught up", (*OPEN, *INVALIDATED, lapse, revive, open_record, *MISS, answer), i10
)
def open_at_once(now: State, member: Member) -> Next:
    return Step(now.joined(member), open_record(now, member).after)


@weakens(
    beat,
    "an old heartbeat opens the record",
    (*OPEN, beat, *INVALIDATED, lapse, revive, open_record, *MISS, answer),
    i10,
)
def beat_before_the_join(now: State, member: Member) -> Next:
    return Step(always(), beat(now, member).after)


@together(revive)
def revive_with_an_old_heartbeat(now: State, member: Member, copied: Events) -> Next:
    step = revive(now, member, copied)
    return Step(step.guard, replace(step.after, beaten=now.beaten))


@weakens(lapse, "tenure ignored", (*OPEN, beat, *INVALIDATED, lapse, revive, open_record, *MISS, answer), i10)
def lapse_unnoticed(now: State, life: Life) -> Next:
    step = lapse(now, life)
    return Step(step.guard, replace(step.after, joined=now.joined))


@together(revive)
def revive_in_the_same_tenure(now: State, member: Member, copied: Events) -> Next:
    step = revive(now, member, copied)
    return Step(step.guard, replace(step.after, joined=plus(now.joined, member)))


@weakens(revive, "record put back from memory", (*OPEN, *INVALIDATED, lapse, revive, *MISS, answer), i10)
def revive_open(now: State, member: Member, copied: Events) -> Next:
    """The record is written again from a memory of it."""
    step = revive(now, member, copied)
    return Step(step.guard, replace(step.after, is_open=exactly(life_of(member))))


@weakens(revive, "revived without sending again", (*SERVING, commit, lapse, revive), i2)
def revive_at_the_head(now: State, member: Member, copied: Events) -> Next:
    life = life_of(member)
    is_absent = forall(Life, lambda each: ~now.record(each))
    has_floor = forall(Event, lambda event: implies(now.floor(life, event), copied(event)))
    guard = is_absent & now.latest(life) & has_floor & within(copied, now.logged, Event)
    return Step(guard, published(revive(now, member, copied).after, life, copied))
