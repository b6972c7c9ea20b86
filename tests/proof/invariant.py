"""What the actions keep: the clauses of an inductive invariant, and the properties that follow from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from tests.proof.language import Formula, equal, implies
from tests.proof.state import (
    Event,
    Key,
    Life,
    Member,
    PutBack,
    Read,
    Server,
    State,
    aim_of,
    asked,
    cause_of,
    changes,
    key_of,
    life_of,
    place_of,
)

SomeClause = TypeVar("SomeClause", bound=Callable[..., Formula])

INVARIANT: Final[list[Callable[..., Formula]]] = []


def clause(function: SomeClause) -> SomeClause:
    INVARIANT.append(function)
    return function


# -- the properties, docs/algorithm.md ----------------------------------------------------------------


@clause
def i1(now: State, read: Read, life: Life, event: Event) -> Formula:
    """A hit reflects all changes of its key that were acknowledged before the read began, in the life that the
    reader's copy of the record names."""
    is_due = now.due(read, life, event) & changes(event, key_of(read))
    return implies(now.hit(read) & now.copied(read, life) & is_due, now.value(read, event))


def i2(now: State, key: Key, life: Life, event: Event) -> Formula:
    """The stripe of a key is absent or pending, or it or the floor has each acknowledged change, or the life is
    over."""
    is_due = now.acknowledged(life, event) & changes(event, key)
    return implies(now.whole(key, life) & is_due, has(now, key, life, event))


@clause
def i9(now: State, read: Read, event: Event) -> Formula:
    """A read reflects the commits that its caller asked for."""
    return implies(now.answered(read) & asked(read, event) & changes(event, key_of(read)), now.value(read, event))


@clause
def i10(now: State, read: Read, life: Life, event: Event) -> Formula:
    """A miss that is said to show what is required reflects all that the node, in any life, had acknowledged before
    the read began. (Of a hit I1 says so.)"""
    return implies(
        now.shows(read) & now.due(read, life, event) & changes(event, key_of(read)), now.value(read, event)
    )


PROPERTIES: Final[tuple[Callable[..., Formula], ...]] = (i1, i2, i9, i10)


def has(now: State, key: Key, life: Life, event: Event) -> Formula:
    """The stripe of a key has an event, together with the floor of its life."""
    return now.held(key, event) | now.floor(life, event)


# -- the log is the source of everything ---------------------------------------------------------------


@clause
def servers_show_what_is_logged(now: State, server: Server, event: Event) -> Formula:
    return implies(now.shown(server, event), now.logged(event))


@clause
def streams_bring_what_is_logged(now: State, member: Member, event: Event) -> Formula:
    return implies(now.streamed(member, event), now.logged(event))


@clause
def acknowledged_events_are_logged(now: State, life: Life, event: Event) -> Formula:
    return implies(now.acknowledged(life, event), now.logged(event))


@clause
def struck_events_are_logged(now: State, life: Life, key: Key, event: Event) -> Formula:
    return implies(now.struck(life, key, event), now.logged(event))


@clause
def the_log_has_an_order(now: State, event: Event, other: Event) -> Formula:
    is_ordered = now.earlier(event, other) | now.earlier(other, event) | equal(event, other)
    both = now.logged(event) & now.logged(other)
    return implies(both, is_ordered) & implies(now.earlier(event, other), both)


# -- lives and the record ------------------------------------------------------------------------------


@clause
def one_life_is_the_latest(now: State, life: Life, other: Life) -> Formula:
    return implies(now.latest(life) & now.latest(other), equal(life, other))


@clause
def a_record_is_of_the_latest_life(now: State, life: Life) -> Formula:
    """A life that is over never comes back."""
    return implies(now.record(life), now.latest(life) & now.begun(life))


@clause
def an_open_record_is_there(now: State, life: Life) -> Formula:
    return implies(now.is_open(life), now.record(life))


@clause
def members_are_of_the_record(now: State, member: Member) -> Formula:
    return implies(now.joined(member), now.record(life_of(member)))


@clause
def nothing_is_of_a_life_to_come(now: State, key: Key, life: Life, event: Event) -> Formula:
    """A nonce is new, so nothing on the node names it yet."""
    traces = now.latest(life) | now.whole(key, life) | now.filled(key, life) | now.struck(life, key, event)
    return implies(traces | now.acknowledged(life, event) | now.floor(life, event), now.begun(life))


@clause
def nothing_is_of_a_life_without_floor(
    now: State, key: Key, read: Read, life: Life, member: Member, event: Event
) -> Formula:
    """Its record is closed until then, and nobody may open it."""
    of_record = now.is_open(life) | now.acknowledged(life, event) | now.floor(life, event)
    trusted = now.joined(member) & now.joined_open(member) & equal(life_of(member), life)
    traces = now.filled(key, life) | now.informed(read, life) | trusted
    return implies(of_record | traces, now.born(life)) & implies(now.born(life), now.begun(life))


@clause
def no_attempt_is_of_a_life_to_come(now: State, attempt: PutBack) -> Formula:
    return implies(now.placed(attempt), now.begun(aim_of(attempt)))


@clause
def no_reader_knows_a_life_to_come(now: State, read: Read, life: Life) -> Formula:
    """Nothing that a reader holds names a nonce before its time."""
    known = now.copied(read, life) | now.got(read, life) | now.stripe(read, life) | now.informed(read, life)
    return implies(known, now.begun(life))


@clause
def progress_is_acknowledged(now: State, life: Life, event: Event) -> Formula:
    return implies(now.record(life) & now.progress(event), now.acknowledged(life, event))


@clause
def the_floor_is_acknowledged(now: State, life: Life, event: Event) -> Formula:
    return implies(now.floor(life, event), now.acknowledged(life, event))


@clause
def acknowledged_means_settled(now: State, life: Life, key: Key, event: Event) -> Formula:
    """I4: progress names nothing that was not sent, unless the floor has it."""
    is_sent = now.settled(life, key, event) | now.floor(life, event)
    return implies(now.acknowledged(life, event) & changes(event, key), is_sent)


@clause
def an_open_record_names_all(now: State, life: Life, other: Life, event: Event) -> Formula:
    """Progress can be too small after a revival. The record does not open before it has caught up."""
    return implies(now.is_open(life) & now.acknowledged(other, event), now.progress(event))


@clause
def who_joined_an_open_record_may_open_it(now: State, member: Member, life: Life, event: Event) -> Formula:
    """In a tenure, progress only grows."""
    trusted = now.joined(member) & now.joined_open(member)
    return implies(trusted & now.acknowledged(life, event), now.progress(event))


@clause
def a_heartbeat_is_behind_what_was_acknowledged(now: State, member: Member, life: Life, event: Event) -> Formula:
    """What an earlier tenure acknowledged was logged before the heartbeat; what this one does is in progress."""
    known = now.beat(member, event) | now.progress(event)
    return implies(now.joined(member) & now.beaten(member) & now.acknowledged(life, event), known)


# -- stripes -------------------------------------------------------------------------------------------


@clause
def settled_means_struck(now: State, life: Life, key: Key, event: Event) -> Formula:
    """The append comes first."""
    return implies(now.settled(life, key, event), now.struck(life, key, event))


@clause
def a_whole_stripe_has_what_was_struck(now: State, key: Key, life: Life, event: Event) -> Formula:
    """The lemma of ADR 0021."""
    return implies(now.whole(key, life) & now.struck(life, key, event), has(now, key, life, event))


@clause
def a_whole_stripe_has_what_other_lives_acknowledged(
    now: State, key: Key, life: Life, other: Life, event: Event
) -> Formula:
    """It was put back with a heartbeat from after the end of those lives."""
    is_past = now.acknowledged(other, event) & ~equal(other, life)
    return implies(now.whole(key, life) & now.latest(life) & is_past, has(now, key, life, event))


@clause
def a_nonce_is_used_once(now: State, attempt: PutBack) -> Formula:
    return implies(now.pending(attempt) | now.awaited(attempt), now.placed(attempt))


@clause
def a_pending_stripe_has_what_was_struck(now: State, attempt: PutBack, event: Event) -> Formula:
    """What is not appended to it was struck, and so logged, before the heartbeat that it awaits."""
    is_struck = now.struck(aim_of(attempt), place_of(attempt), event)
    known = now.appended(attempt, event) | now.early(attempt, event)
    return implies(now.pending(attempt) & now.awaited(attempt) & is_struck, known)


@clause
def a_heartbeat_is_behind_other_lives(now: State, attempt: PutBack, life: Life, event: Event) -> Formula:
    """A stripe is put back for the latest life, when the others have acknowledged their last event."""
    is_past = now.acknowledged(life, event) & ~equal(life, aim_of(attempt))
    return implies(now.awaited(attempt) & now.latest(aim_of(attempt)) & is_past, now.early(attempt, event))


# -- entries -------------------------------------------------------------------------------------------


@clause
def an_entry_has_what_was_settled(now: State, key: Key, life: Life, event: Event) -> Formula:
    """A fill that comes after a deletion has the event. The rule of fills is for that."""
    return implies(now.filled(key, life) & now.settled(life, key, event), now.position(key, event))


@clause
def an_entry_has_the_floor(now: State, key: Key, life: Life, event: Event) -> Formula:
    return implies(now.filled(key, life) & now.floor(life, event), now.position(key, event))


@clause
def an_entry_reflects_its_position(now: State, key: Key, event: Event) -> Formula:
    return implies(now.position(key, event), now.row(key, event))


# -- reads ---------------------------------------------------------------------------------------------


@clause
def steps_come_in_order(now: State, read: Read, life: Life, server: Server) -> Formula:
    return (
        implies(now.looked(read), now.started(read))
        & implies(now.got(read, life) | now.guarded(read) | now.answered(read), now.looked(read))
        & implies(now.source(read, server) | now.loaded(read), now.looked(read))
        & implies(now.stripe(read, life) | now.informed(read, life), now.guarded(read))
        & implies(now.hit(read) | now.shows(read), now.answered(read))
    )


@clause
def due_is_acknowledged(now: State, read: Read, life: Life, event: Event) -> Formula:
    return implies(now.due(read, life, event), now.acknowledged(life, event))


@clause
def a_reader_has_one_copy(now: State, read: Read, life: Life, other: Life) -> Formula:
    return implies(now.copied(read, life) & now.copied(read, other), equal(life, other))


@clause
def a_copy_names_what_was_acknowledged(now: State, read: Read, life: Life, event: Event) -> Formula:
    return implies(now.copied(read, life) & now.copy(read, event), now.acknowledged(life, event))


@clause
def a_fetched_entry_has_what_is_due(now: State, read: Read, life: Life, event: Event) -> Formula:
    """It was fetched after the read began."""
    is_due = now.due(read, life, event) & changes(event, key_of(read))
    return implies(now.got(read, life) & is_due, now.at(read, event))


@clause
def a_fetched_entry_has_what_the_copy_names(now: State, read: Read, life: Life, event: Event) -> Formula:
    """The record was read before the entry, so a hit is a row at its own position and the record's progress."""
    is_named = now.copy(read, event) & changes(event, key_of(read))
    return implies(now.got(read, life) & now.copied(read, life) & is_named, now.at(read, event))


@clause
def a_value_reflects_its_position(now: State, read: Read, life: Life, event: Event) -> Formula:
    """The position is taken first."""
    return implies((now.got(read, life) | now.loaded(read)) & now.at(read, event), now.value(read, event))


@clause
def a_position_is_shown_by_its_source(now: State, read: Read, server: Server, event: Event) -> Formula:
    return implies(now.source(read, server) & now.at(read, event), now.shown(server, event))


@clause
def the_stripe_is_behind_the_stub(now: State, read: Read, life: Life, event: Event) -> Formula:
    """While the item is the one of step 1, all deletions came before that step, so the stripe that was read has
    them."""
    is_settled = now.settled(life, key_of(read), event)
    known = now.required(read, event) | now.floor(life, event)
    is_refilled = now.refills(read) & now.earlier(event, cause_of(read))
    return implies(now.observed(read) & now.stripe(read, life) & is_settled, known | is_refilled)


@clause
def the_stripe_has_what_is_due(now: State, read: Read, life: Life, other: Life, event: Event) -> Formula:
    """Of a stripe of the latest life, I2 and the heartbeat that put it back."""
    is_due = now.due(read, other, event) & changes(event, key_of(read))
    known = now.required(read, event) | now.floor(life, event)
    return implies(now.stripe(read, life) & now.latest(life) & is_due, known)


@clause
def a_refill_has_a_cause_and_no_server(now: State, read: Read, server: Server) -> Formula:
    return implies(now.refills(read), now.logged(cause_of(read)) & ~now.source(read, server))


@clause
def an_entry_that_is_replaced_lacks_the_cause(now: State, read: Read, life: Life) -> Formula:
    """A fill replaces a stub, or fills from the log."""
    lacks = changes(cause_of(read), key_of(read)) & ~now.position(key_of(read), cause_of(read))
    return implies(now.observed(read) & now.filled(key_of(read), life), now.refills(read) & lacks)


@clause
def an_image_has_all_up_to_its_cause(now: State, read: Read, event: Event) -> Formula:
    is_before = now.earlier(event, cause_of(read)) | equal(event, cause_of(read))
    return implies(now.refills(read) & now.loaded(read) & is_before, now.at(read, event))


@clause
def the_floor_is_required(now: State, read: Read, life: Life, event: Event) -> Formula:
    return implies(now.informed(read, life) & now.floor(life, event), now.required(read, event))


@clause
def what_is_due_is_required(now: State, read: Read, life: Life, other: Life, event: Event) -> Formula:
    """With a stripe, for its sake; without one, since the progress of an open record names all."""
    is_due = now.due(read, other, event) & changes(event, key_of(read))
    return implies(now.informed(read, life) & is_due, now.required(read, event))
