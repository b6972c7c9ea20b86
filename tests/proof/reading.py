"""The actions of a read, in the order of its steps, and of a fill from the log, which reads as well."""

from __future__ import annotations

from dataclasses import replace

from tests.proof.actions import without_entry
from tests.proof.language import Formula, Step, equal, forall, implies, only, plus, setting, within, without
from tests.proof.state import (
    Event,
    Events,
    Key,
    Life,
    Member,
    Next,
    Read,
    Server,
    State,
    action,
    asked,
    cause_of,
    changes,
    key_of,
)


@action
def start(now: State, read: Read) -> Next:
    after = replace(now, started=plus(now.started, read), due=setting(now.due, now.acknowledged, read))
    return Step(~now.started(read), after)


@action
def copy_record(now: State, read: Read, life: Life) -> Next:
    """Before the entry, and perhaps long before the read."""
    after = replace(now, copied=only(now.copied, read, life), copy=setting(now.copy, now.progress, read))
    return Step(~now.looked(read) & now.is_open(life), after)


@action
def leave_stub(now: State, read: Read) -> Next:
    """Step 1 finds no entry."""
    key = key_of(read)
    after = replace(observing(now, read), stub=plus(now.stub, key))
    return Step(may_look(now, read) & forall(Life, lambda life: ~now.filled(key, life)), after)


@action
def look(now: State, read: Read, life: Life) -> Next:
    """Step 1 finds an entry. (That a reader puts a stub in the place of a dead one: `evict_entry`, `leave_stub`.)"""
    key = key_of(read)
    after = replace(
        now,
        looked=plus(now.looked, read),
        observed=without(now.observed, read),
        source=without(now.source, read),
        got=only(now.got, read, life),
        at=setting(now.at, lambda event: now.position(key, event), read),
        value=setting(now.value, lambda event: now.row(key, event), read),
    )
    return Step(may_look(now, read) & now.filled(key, life), after)


def may_look(now: State, read: Read) -> Formula:
    """Once, or again while another reader fills."""
    return now.started(read) & ~now.guarded(read) & ~now.loaded(read) & ~now.answered(read)


def observing(now: State, read: Read) -> State:
    return replace(
        now,
        looked=plus(now.looked, read),
        observed=plus(now.observed, read),
        source=without(now.source, read),
        got=without(now.got, read),
    )


@action
def look_to_refill(now: State, read: Read, life: Life) -> Next:
    """Filling from the log finds an entry that lacks the event, and may replace it."""
    key, cause = key_of(read), cause_of(read)
    is_old = now.filled(key, life) & ~now.position(key, cause)
    guard = may_look(now, read) & is_old & now.logged(cause) & changes(cause, key)
    return Step(guard, replace(observing(now, read), refills=plus(now.refills, read)))


@action
def take_hit(now: State, read: Read, life: Life) -> Next:
    """An entry of the life that the copy of the record names. With the commits that the caller asks for."""
    is_shown = forall(Event, lambda event: implies(asked(read, event), now.copy(read, event) | now.at(read, event)))
    guard = now.got(read, life) & now.copied(read, life) & ~now.answered(read) & is_shown
    return Step(guard, replace(now, hit=plus(now.hit, read), answered=plus(now.answered, read)))


@action
def fetch_stripe(now: State, read: Read) -> Next:
    """Step 3, after step 1."""
    key = key_of(read)
    after = replace(
        now,
        guarded=plus(now.guarded, read),
        stripe=setting(now.stripe, lambda life: now.whole(key, life), read),
        required=setting(now.required, lambda event: now.held(key, event), read),
    )
    return Step(now.looked(read) & ~now.guarded(read) & ~now.answered(read), after)


@action
def fetch_record(now: State, read: Read, life: Life) -> Next:
    """Behind the stripe, never from a copy. Progress takes the place of a stripe that is not of its life."""
    is_first = forall(Life, lambda each: ~now.informed(read, each))
    guard = now.guarded(read) & is_first & now.is_open(life) & ~now.answered(read)

    def required(event: Event) -> Formula:
        of_stripe = now.stripe(read, life) & now.required(read, event)
        return now.floor(life, event) | of_stripe | (~now.stripe(read, life) & now.progress(event))

    return Step(guard, informed(now, read, life, required))


def informed(now: State, read: Read, life: Life, required: Events) -> State:
    return replace(
        now,
        informed=plus(now.informed, read, life),
        stripe=setting(now.stripe, lambda each: equal(each, life) & now.stripe(read, life), read),
        required=setting(now.required, required, read),
    )


@action
def take_position(now: State, read: Read, server: Server) -> Next:
    """Step 4: of what the server shows, before the rows."""
    after = replace(
        now,
        source=only(now.source, read, server),
        at=setting(now.at, lambda event: now.shown(server, event), read),
        loaded=without(now.loaded, read),
        got=without(now.got, read),
    )
    return Step(now.looked(read) & ~now.refills(read) & ~now.answered(read), after)


@action
def take_rows(now: State, read: Read, server: Server) -> Next:
    """From the same server."""
    value = setting(now.value, lambda event: now.shown(server, event), read)
    after = replace(now, loaded=plus(now.loaded, read), value=value)
    return Step(now.source(read, server) & ~now.answered(read), after)


@action
def take_image(now: State, read: Read, member: Member, batch: Events) -> Next:
    """Fill from the log: the row at the end of a batch of the stream, which has its cause."""
    after = replace(
        now,
        source=without(now.source, read),
        at=setting(now.at, batch, read),
        value=setting(now.value, batch, read),
        loaded=plus(now.loaded, read),
        got=without(now.got, read),
    )
    is_streamed = within(batch, lambda event: now.streamed(member, event), Event)
    is_all_before = forall(
        Event, lambda one: forall(Event, lambda other: implies(now.earlier(one, other) & batch(other), batch(one)))
    )
    has_cause = implies(now.refills(read), batch(cause_of(read)))
    return Step(now.looked(read) & ~now.answered(read) & is_streamed & is_all_before & has_cause, after)


@action
def fill(now: State, read: Read, life: Life) -> Next:
    """Step 5, by CAS on the item of step 1. It may arrive when the read has been answered. It settles what was struck
    and is in the new entry."""
    key = key_of(read)

    def is_settled(each: Life, k: Key, event: Event) -> Formula:
        return now.settled(each, k, event) | (
            equal(each, life) & equal(k, key) & now.struck(each, k, event) & now.at(read, event)
        )

    after = replace(
        without_entry(now, key),
        filled=only(now.filled, key, life),
        position=setting(now.position, lambda event: now.at(read, event), key),
        row=setting(now.row, lambda event: now.value(read, event), key),
        settled=is_settled,
    )
    allows = now.informed(read, life) & now.stripe(read, life) & shows_required(now, read)
    return Step(now.observed(read) & allows & now.loaded(read), after)


@action
def answer(now: State, read: Read, life: Life) -> Next:
    """A miss that shows what is required, and the commits that the caller asks for."""
    after = replace(now, answered=plus(now.answered, read), shows=plus(now.shows, read))
    guard = now.informed(read, life) & shows_required(now, read) & shows_asked(now, read)
    return Step(guard & has_row(now, read), after)


@action
def answer_bounded(now: State, read: Read) -> Next:
    """A miss of which nothing is said, but that it has the commits that the caller asks for."""
    after = replace(now, answered=plus(now.answered, read))
    return Step(shows_asked(now, read) & has_row(now, read), after)


def has_row(now: State, read: Read) -> Formula:
    return now.loaded(read) & ~now.answered(read)


def shows_required(now: State, read: Read) -> Formula:
    return forall(Event, lambda event: implies(now.required(read, event), now.at(read, event)))


def shows_asked(now: State, read: Read) -> Formula:
    return forall(Event, lambda event: implies(asked(read, event), now.at(read, event)))
