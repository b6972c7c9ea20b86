"""Actions without one of their defences. Each breaks the invariant, and a schedule from the start breaks a property."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tests.proof.actions import (
    Next,
    answer,
    answer_bounded,
    append,
    await_heartbeat,
    beat,
    begin_life,
    commit,
    complete,
    copy_record,
    delete,
    evict_stripe,
    fetch_record,
    fetch_stripe,
    fill,
    has_row,
    informed,
    lapse,
    leave_stub,
    look,
    mark,
    may_look,
    may_send,
    open_record,
    publish,
    published,
    remove_stripe,
    replicate,
    revive,
    shorten,
    shows_required,
    start,
    stream,
    strike,
    take_hit,
    take_position,
    take_rows,
)
from tests.proof.invariant import i1, i2, i9, i10
from tests.proof.language import Formula, Step, always, equal, exactly, forall, implies, only, plus, setting, within
from tests.proof.state import Event, Events, Key, Life, Member, PutBack, Read, Server, State
from tests.proof.state import aim_of, key_of, life_of, place_of

Schedule = tuple[Callable[..., Next], ...]

OPEN: Final[Schedule] = (begin_life, beat, open_record)
PUT_BACK: Final[Schedule] = (mark, await_heartbeat, complete)
SERVING: Final[Schedule] = (*OPEN, *PUT_BACK)
CHANGE: Final[Schedule] = (commit, stream)
INVALIDATED: Final[Schedule] = (*CHANGE, append, delete, publish)
GUARDS: Final[Schedule] = (start, leave_stub, fetch_stripe, fetch_record)
LOAD: Final[Schedule] = (take_position, take_rows)
MISS: Final[Schedule] = (*GUARDS, *LOAD)
HIT: Final[Schedule] = (copy_record, start, look, take_hit)


@dataclass(frozen=True)
class Weakened:
    """``name``: that of the planted bug in ``tests/simulation/bugs.py``, if there is one. ``instead``: the weakened
    actions by those whose place they take. ``schedule``: actions of a run that breaks a property, by original."""

    name: str
    instead: Mapping[Callable[..., Next], Callable[..., Next]]
    schedule: Schedule
    breaks: Callable[..., Formula]

    def actions(self) -> Schedule:
        return tuple(self.instead.get(action, action) for action in self.schedule)


# -- reading -------------------------------------------------------------------------------------------


def fill_without_compare(now: State, read: Read, life: Life) -> Next:
    guard = now.observed(read) & now.informed(read, life) & now.stripe(read, life) & has_row(now, read)
    return Step(guard, fill(now, read, life).after)


def fill_without_stripe(now: State, read: Read, life: Life) -> Next:
    """With the record's progress in its place, as for an answer."""
    guard = now.observed(read) & now.informed(read, life) & shows_required(now, read) & has_row(now, read)
    return Step(guard, fill(now, read, life).after)


def fill_by_set(now: State, read: Read, life: Life) -> Next:
    guard = now.informed(read, life) & now.stripe(read, life) & shows_required(now, read) & has_row(now, read)
    return Step(guard, fill(now, read, life).after)


def fetch_pending(now: State, read: Read, attempt: PutBack) -> Next:
    after = replace(
        fetch_stripe(now, read).after,
        stripe=only(now.stripe, read, aim_of(attempt)),
        required=setting(now.required, lambda event: now.appended(attempt, event), read),
    )
    is_pending = now.pending(attempt) & equal(place_of(attempt), key_of(read))
    return Step(fetch_stripe(now, read).guard & is_pending, after)


def fetch_stripe_first(now: State, read: Read) -> Next:
    return Step(~now.guarded(read), fetch_stripe(now, read).after)


def leave_stub_last(now: State, read: Read) -> Next:
    return Step(now.started(read) & now.guarded(read), leave_stub(now, read).after)


def fetch_record_of_any_life(now: State, read: Read, life: Life, other: Life) -> Next:
    required = lambda event: now.floor(life, event) | now.required(read, event)  # noqa: E731
    after = replace(informed(now, read, life, required), stripe=only(now.stripe, read, life))
    return Step(fetch_record(now, read, life).guard & now.stripe(read, other), after)


def fetch_record_without_floor(now: State, read: Read, life: Life) -> Next:
    def required(event: Event) -> Formula:
        of_stripe = now.stripe(read, life) & now.required(read, event)
        return of_stripe | (~now.stripe(read, life) & now.progress(event))

    return Step(fetch_record(now, read, life).guard, informed(now, read, life, required))


def fetch_record_without_stripe(now: State, read: Read, life: Life) -> Next:
    return Step(
        fetch_record(now, read, life).guard, informed(now, read, life, lambda event: now.floor(life, event))
    )


def fetch_record_without_progress(now: State, read: Read, life: Life) -> Next:
    required = lambda event: (  # noqa: E731
        now.floor(life, event) | (now.stripe(read, life) & now.required(read, event))
    )
    return Step(fetch_record(now, read, life).guard, informed(now, read, life, required))


def fetch_record_from_the_copy(now: State, read: Read, life: Life) -> Next:
    required = lambda event: (  # noqa: E731
        now.floor(life, event) | now.copy(read, event) | (now.stripe(read, life) & now.required(read, event))
    )
    return Step(now.guarded(read) & now.copied(read, life), informed(now, read, life, required))


def fetch_closed_record(now: State, read: Read, life: Life) -> Next:
    opened = replace(now, is_open=now.record)
    return Step(fetch_record(opened, read, life).guard, fetch_record(now, read, life).after)


def copy_record_at_any_time(now: State, read: Read, life: Life) -> Next:
    return Step(now.is_open(life), copy_record(now, read, life).after)


def take_hit_of_any_life(now: State, read: Read, life: Life, other: Life) -> Next:
    copied = replace(now, copied=only(now.copied, read, other))
    return Step(now.copied(read, life) & take_hit(copied, read, other).guard, take_hit(now, read, other).after)


def take_any_hit(now: State, read: Read, life: Life) -> Next:
    guard = now.got(read, life) & now.copied(read, life) & ~now.answered(read)
    return Step(guard, take_hit(now, read, life).after)


def answer_without_compare(now: State, read: Read, life: Life) -> Next:
    return Step(now.informed(read, life) & has_row(now, read), answer(now, read, life).after)


def answer_any(now: State, read: Read) -> Next:
    return Step(has_row(now, read), answer_bounded(now, read).after)


def take_position_of_the_log(now: State, read: Read, server: Server) -> Next:
    step = take_position(now, read, server)
    return Step(step.guard, replace(step.after, at=setting(now.at, now.logged, read)))


def take_position_last(now: State, read: Read, server: Server) -> Next:
    step = take_position(now, read, server)
    return Step(step.guard, replace(step.after, loaded=now.loaded))


def take_rows_of_any_server(now: State, read: Read, server: Server) -> Next:
    return Step(now.looked(read) & ~now.answered(read), take_rows(now, read, server).after)


# -- invalidating --------------------------------------------------------------------------------------


def append_last(now: State, member: Member, key: Key, chunk: Events) -> Next:
    """The key was deleted before, and is not deleted again."""
    step = append(now, member, key, chunk)
    return Step(step.guard, deleted_too(now, step.after, member, key, chunk))


def remove_stripe_last(now: State, member: Member, key: Key, chunk: Events) -> Next:
    step = remove_stripe(now, member, key, chunk)
    return Step(step.guard, deleted_too(now, step.after, member, key, chunk))


def deleted_too(now: State, after: State, member: Member, key: Key, chunk: Events) -> State:
    is_meant = strike(replace(now, struck=now.deleted), member, key, chunk).struck
    return replace(after, deleted=is_meant)


def append_nothing(now: State, member: Member, key: Key, chunk: Events) -> Next:
    return Step(may_send(now, member, chunk), strike(now, member, key, chunk))


def append_to_whole_stripes(now: State, member: Member, key: Key, chunk: Events) -> Next:
    step = append(now, member, key, chunk)
    return Step(step.guard, replace(step.after, appended=now.appended))


def shorten_to_some(now: State, key: Key, union: Events) -> Next:
    return Step(within(union, lambda event: now.held(key, event), Event), shorten(now, key, union).after)


def shorten_by_set(now: State, key: Key, union: Events, life: Life) -> Next:
    step = shorten(now, key, union)
    return Step(step.guard & now.latest(life), replace(step.after, whole=only(now.whole, key, life)))


# -- putting stripes back ------------------------------------------------------------------------------


def await_older_heartbeat(now: State, attempt: PutBack) -> Next:
    return Step(always(), await_heartbeat(now, attempt).after)


def complete_without_order(now: State, attempt: PutBack, member: Member) -> Next:
    return Step(now.pending(attempt) & now.awaited(attempt), complete(now, attempt, member).after)


def complete_without_nonce(now: State, attempt: PutBack, member: Member, other: PutBack) -> Next:
    is_other = now.pending(other) & equal(place_of(other), place_of(attempt))
    as_own = replace(now, pending=plus(now.pending, attempt))
    return Step(is_other & complete(as_own, attempt, member).guard, complete(now, attempt, member).after)


def complete_by_set(now: State, attempt: PutBack, member: Member) -> Next:
    as_own = replace(now, pending=plus(now.pending, attempt))
    return Step(complete(as_own, attempt, member).guard, complete(now, attempt, member).after)


def complete_with_the_floor(now: State, attempt: PutBack, member: Member) -> Next:
    step = complete(now, attempt, member)
    held = setting(now.held, lambda event: now.appended(attempt, event), place_of(attempt))
    return Step(step.guard, replace(step.after, held=held))


def complete_with_the_stream(now: State, attempt: PutBack, member: Member) -> Next:
    step = complete(now, attempt, member)
    held = setting(now.held, lambda event: now.streamed(member, event), place_of(attempt))
    return Step(step.guard, replace(step.after, held=held))


def complete_at_once(now: State, attempt: PutBack, member: Member) -> Next:
    return Step(~now.whole(place_of(attempt), aim_of(attempt)), complete(now, attempt, member).after)


# -- the record ----------------------------------------------------------------------------------------


def publish_first(now: State, member: Member, batch: Events) -> Next:
    is_streamed = within(batch, lambda event: now.streamed(member, event), Event)
    return Step(now.joined(member) & is_streamed, publish(now, member, batch).after)


def open_at_once(now: State, member: Member) -> Next:
    return Step(now.joined(member), open_record(now, member).after)


def beat_before_the_join(now: State, member: Member) -> Next:
    return Step(always(), beat(now, member).after)


def revive_with_an_old_heartbeat(now: State, member: Member, copied: Events) -> Next:
    step = revive(now, member, copied)
    return Step(step.guard, replace(step.after, beaten=now.beaten))


def lapse_unnoticed(now: State, life: Life) -> Next:
    step = lapse(now, life)
    return Step(step.guard, replace(step.after, joined=now.joined))


def revive_in_the_same_tenure(now: State, member: Member, copied: Events) -> Next:
    step = revive(now, member, copied)
    return Step(step.guard, replace(step.after, joined=plus(now.joined, member)))


def revive_open(now: State, member: Member, copied: Events) -> Next:
    """The record is written again from a memory of it."""
    step = revive(now, member, copied)
    return Step(step.guard, replace(step.after, is_open=exactly(life_of(member))))


def revive_at_the_head(now: State, member: Member, copied: Events) -> Next:
    life = life_of(member)
    is_absent = forall(Life, lambda each: ~now.record(each))
    has_floor = forall(Event, lambda event: implies(now.floor(life, event), copied(event)))
    guard = is_absent & now.latest(life) & has_floor & within(copied, now.logged, Event)
    return Step(guard, published(revive(now, member, copied).after, life, copied))


WEAKENED: Final = (
    Weakened("fill without compare", {fill: fill_without_compare}, (*SERVING, *INVALIDATED, *MISS, fill, *HIT), i1),
    Weakened(
        "an absent stripe allows",
        {fill: fill_without_stripe},
        (*OPEN, *CHANGE, append, delete, *MISS, fill, publish, *HIT),
        i1,
    ),
    Weakened("blind set", {fill: fill_by_set}, (*SERVING, *MISS, *INVALIDATED, fill, *HIT), i1),
    Weakened(
        "a pending stripe allows",
        {fetch_stripe: fetch_pending},
        (*OPEN, *INVALIDATED, mark, *MISS, fill, *HIT),
        i1,
    ),
    Weakened(
        "stripe read before the stub",
        {fetch_stripe: fetch_stripe_first, leave_stub: leave_stub_last},
        (*SERVING, start, fetch_stripe, *INVALIDATED, leave_stub, fetch_record, *LOAD, fill, *HIT),
        i1,
    ),
    Weakened(
        "a stripe of any life counts",
        {fetch_record: fetch_record_of_any_life},
        (*SERVING, *OPEN, *INVALIDATED, *MISS, fill, *HIT),
        i1,
    ),
    Weakened(
        "fill without floor",
        {fetch_record: fetch_record_without_floor},
        (commit, stream, *SERVING, *MISS, fill, *HIT),
        i1,
    ),
    Weakened(
        "life ignored by hits",
        {take_hit: take_hit_of_any_life},
        (*SERVING, *MISS, fill, commit, *OPEN, *HIT),
        i1,
    ),
    Weakened("own commits ignored by hits", {take_hit: take_any_hit}, (*SERVING, *MISS, fill, commit, *HIT), i9),
    Weakened(
        "record read behind the entry",
        {copy_record: copy_record_at_any_time},
        (*SERVING, *MISS, fill, start, look, *INVALIDATED, copy_record, take_hit),
        i9,
    ),
    Weakened(
        "own commits ignored by servers",
        {answer_bounded: answer_any},
        (commit, start, leave_stub, *LOAD, answer_bounded),
        i9,
    ),
    Weakened(
        "floor not required of a miss",
        {fetch_record: fetch_record_without_floor},
        (commit, stream, *SERVING, *MISS, answer),
        i10,
    ),
    Weakened(
        "stripe not required of a miss",
        {fetch_record: fetch_record_without_stripe},
        (*SERVING, *INVALIDATED, *MISS, answer),
        i10,
    ),
    Weakened(
        "absent stripe requires nothing",
        {fetch_record: fetch_record_without_progress},
        (*OPEN, *INVALIDATED, *MISS, answer),
        i10,
    ),
    Weakened(
        "record of step 3 from a copy",
        {fetch_record: fetch_record_from_the_copy},
        (*OPEN, copy_record, *INVALIDATED, *MISS, answer),
        i10,
    ),
    Weakened(
        "a closed record is believed",
        {fetch_record: fetch_closed_record},
        (*OPEN, *INVALIDATED, lapse, revive, *MISS, answer),
        i10,
    ),
    Weakened(
        "a miss is fresh without its token",
        {answer: answer_without_compare},
        (*SERVING, *INVALIDATED, *MISS, answer),
        i10,
    ),
    Weakened(
        "token of the binlog",
        {take_position: take_position_of_the_log},
        (*SERVING, *INVALIDATED, *MISS, answer),
        i10,
    ),
    Weakened(
        "snapshot before token",
        {take_position: take_position_last, take_rows: take_rows_of_any_server},
        (*SERVING, *INVALIDATED, *GUARDS, take_rows, replicate, take_position, answer),
        i10,
    ),
    Weakened(
        "a session that was moved is not noticed",
        {take_rows: take_rows_of_any_server},
        (*SERVING, *INVALIDATED, replicate, *MISS, answer),
        i10,
    ),
    Weakened(
        "delete before stripe",
        {append: append_last},
        (*SERVING, *CHANGE, delete, *MISS, append, publish, fill, *HIT),
        i1,
    ),
    Weakened("chunk of the batch before", {append: append_nothing}, (*SERVING, *INVALIDATED), i2),
    Weakened(
        "a pending stripe is not appended to",
        {append: append_to_whole_stripes},
        (*OPEN, mark, await_heartbeat, *INVALIDATED, complete),
        i2,
    ),
    Weakened(
        "a refused append counts as done",
        {remove_stripe: append_nothing},
        (*SERVING, *CHANGE, remove_stripe, delete, publish),
        i2,
    ),
    Weakened(
        "keys are not deleted after a refusal",
        {remove_stripe: remove_stripe_last},
        (*SERVING, *CHANGE, delete, *MISS, remove_stripe, publish, fill, *HIT),
        i1,
    ),
    Weakened("shortened to the first chunk", {shorten: shorten_to_some}, (*SERVING, *INVALIDATED, shorten), i2),
    Weakened(
        "shortened by set",
        {shorten: shorten_by_set},
        (*SERVING, evict_stripe, *INVALIDATED, shorten),
        i2,
    ),
    Weakened(
        "put back with an older heartbeat",
        {await_heartbeat: await_older_heartbeat},
        (*OPEN, await_heartbeat, *INVALIDATED, mark, complete),
        i2,
    ),
    Weakened(
        "a replica that reorders is followed",
        {complete: complete_without_order},
        (*OPEN, *INVALIDATED, *PUT_BACK),
        i2,
    ),
    Weakened(
        "nonce ignored",
        {complete: complete_without_nonce},
        (*OPEN, mark, await_heartbeat, evict_stripe, *INVALIDATED, mark, complete),
        i2,
    ),
    Weakened(
        "put back by set",
        {complete: complete_by_set},
        (*OPEN, mark, await_heartbeat, evict_stripe, *INVALIDATED, complete),
        i2,
    ),
    Weakened("put back by add", {complete: complete_at_once}, (*OPEN, *INVALIDATED, complete), i2),
    Weakened(
        "put back with the floor alone",
        {complete: complete_with_the_floor},
        (*OPEN, *INVALIDATED, *PUT_BACK),
        i2,
    ),
    Weakened(
        "what was appended meanwhile is dropped",
        {complete: complete_with_the_stream},
        (*OPEN, mark, await_heartbeat, *INVALIDATED, complete),
        i2,
    ),
    Weakened("progress before acknowledge", {publish: publish_first}, (*SERVING, *CHANGE, publish), i2),
    Weakened(
        "opened before it caught up",
        {open_record: open_at_once},
        (*OPEN, *INVALIDATED, lapse, revive, open_record, *MISS, answer),
        i10,
    ),
    Weakened(
        "an old heartbeat opens the record",
        {beat: beat_before_the_join, revive: revive_with_an_old_heartbeat},
        (*OPEN, beat, *INVALIDATED, lapse, revive, open_record, *MISS, answer),
        i10,
    ),
    Weakened(
        "tenure ignored",
        {lapse: lapse_unnoticed, revive: revive_in_the_same_tenure},
        (begin_life, beat, open_record, beat, *INVALIDATED, lapse, revive, open_record, *MISS, answer),
        i10,
    ),
    Weakened(
        "record put back from memory",
        {revive: revive_open},
        (*OPEN, *INVALIDATED, lapse, revive, *MISS, answer),
        i10,
    ),
    Weakened("revived without sending again", {revive: revive_at_the_head}, (*SERVING, commit, lapse, revive), i2),
)
