"""The actions of the database, the invalidators and the node; those of readers are in reading.py.

Each may come at any moment, in any order and arbitrarily late, unless its guard says otherwise. A CAS succeeds only
if the item is as it was read, so a read and its CAS are one action here. The exception is a fill: steps of the same
read lie between, so it needs the very item that its reader observed.
"""

from __future__ import annotations

from dataclasses import replace

from tests.proof.language import (
    Formula,
    Step,
    always,
    equal,
    exactly,
    forall,
    iff,
    implies,
    none,
    only,
    plus,
    setting,
    within,
    without,
)
from tests.proof.state import (
    Event,
    Events,
    Key,
    Life,
    Member,
    Next,
    PutBack,
    Server,
    State,
    action,
    aim_of,
    changes,
    key_of,
    life_of,
    place_of,
)

# -- database and streams ------------------------------------------------------------------------------


@action
def commit(now: State, event: Event) -> Next:
    def earlier(one: Event, other: Event) -> Formula:
        return now.earlier(one, other) | (now.logged(one) & equal(other, event))

    return Step(~now.logged(event), replace(now, logged=plus(now.logged, event), earlier=earlier))


@action
def replicate(now: State, server: Server, event: Event) -> Next:
    """In any order. The primary is such a server, too: it can show a commit later than it sends it (F57)."""
    return Step(now.logged(event), replace(now, shown=plus(now.shown, server, event)))


@action
def stream(now: State, member: Member, event: Event) -> Next:
    """In the order of the log."""
    has_all_before = forall(Event, lambda each: implies(now.earlier(each, event), now.streamed(member, each)))
    return Step(now.logged(event) & has_all_before, replace(now, streamed=plus(now.streamed, member, event)))


# -- node record ---------------------------------------------------------------------------------------


@action
def begin_life(now: State, member: Member) -> Next:
    """Admit the node, whatever there is."""
    life = life_of(member)
    after = replace(closed_by(now, member), begun=plus(now.begun, life), latest=exactly(life), progress=none)
    return Step(~now.begun(life), after)


@action
def set_floor(now: State, member: Member, head: Events) -> Next:
    """When the record is there. Any set of logged events will do."""
    life = life_of(member)
    after = replace(
        now,
        born=plus(now.born, life),
        floor=setting(now.floor, head, life),
        progress=head,
        acknowledged=setting(now.acknowledged, head, life),
    )
    return Step(now.joined(member) & ~now.born(life) & within(head, now.logged, Event), after)


@action
def revive(now: State, member: Member, copied: Events) -> Next:
    """From a resume copy of any age: it may lack what was acknowledged after it was written."""
    life = life_of(member)
    is_absent = forall(Life, lambda each: ~now.record(each))
    has_floor = forall(Event, lambda event: implies(now.floor(life, event), copied(event)))
    is_copy = forall(Event, lambda event: implies(copied(event), now.acknowledged(life, event)))
    after = replace(closed_by(now, member), progress=copied)
    return Step(is_absent & now.latest(life) & now.born(life) & has_floor & is_copy, after)


def closed_by(now: State, member: Member) -> State:
    """A member has added the record, closed. The tenure of all others is over."""
    return replace(
        now,
        record=exactly(life_of(member)),
        is_open=none,
        joined=exactly(member),
        joined_open=without(now.joined_open, member),
        beaten=without(now.beaten, member),
    )


@action
def join(now: State, member: Member) -> Next:
    life = life_of(member)
    after = replace(
        now,
        joined=plus(now.joined, member),
        joined_open=setting(now.joined_open, lambda: now.is_open(life), member),
        beaten=without(now.beaten, member),
    )
    return Step(now.record(life), after)


@action
def lapse(now: State, life: Life) -> Next:
    """The record expires, is evicted or deleted. A tenure ends with it."""
    return Step(now.record(life), replace(now, record=none, is_open=none, joined=none))


@action
def beat(now: State, member: Member) -> Next:
    """Begin a heartbeat, after the join."""
    after = replace(now, beaten=plus(now.beaten, member), beat=setting(now.beat, now.logged, member))
    return Step(now.joined(member), after)


@action
def open_record(now: State, member: Member) -> Next:
    """The own heartbeat has come back, and what was logged before it is published; or the record was found open."""
    is_published = forall(Event, lambda event: implies(now.beat(member, event), now.progress(event)))
    may_vouch = now.joined_open(member) | (now.beaten(member) & is_published)
    life = life_of(member)
    return Step(now.joined(member) & now.born(life) & may_vouch, replace(now, is_open=exactly(life)))


@action
def close_record(now: State, member: Member) -> Next:
    return Step(now.joined(member), replace(now, is_open=none))


@action
def publish(now: State, member: Member, batch: Events) -> Next:
    """Acknowledge what was streamed and sent, to whatever process; in the tenure that the member joined."""
    life = life_of(member)

    def is_sent(event: Event) -> Formula:
        return forall(Key, lambda key: implies(changes(event, key), now.settled(life, key, event)))

    guard = forall(Event, lambda event: implies(batch(event), now.streamed(member, event) & is_sent(event)))
    return Step(now.joined(member) & now.born(life) & guard, published(now, life, batch))


def published(now: State, life: Life, batch: Events) -> State:
    return replace(
        now,
        progress=lambda event: now.progress(event) | batch(event),
        acknowledged=lambda each, event: now.acknowledged(each, event) | (equal(each, life) & batch(event)),
    )


# -- invalidating --------------------------------------------------------------------------------------


@action
def append(now: State, member: Member, key: Key, chunk: Events) -> Next:
    """An absent stripe takes nothing, and needs nothing. The member may have slept through lives."""
    life = life_of(member)

    def is_taken(attempt: PutBack) -> Formula:
        return now.pending(attempt) & equal(place_of(attempt), key) & equal(aim_of(attempt), life)

    after = replace(
        strike(now, member, key, chunk),
        held=lambda k, event: (
            now.held(k, event) | (equal(k, key) & now.whole(key, life) & chunk(event) & ~now.floor(life, event))
        ),
        appended=lambda attempt, event: now.appended(attempt, event) | (is_taken(attempt) & chunk(event)),
    )
    return Step(may_send(now, member, chunk), after)


@action
def remove_stripe(now: State, member: Member, key: Key, chunk: Events) -> Next:
    """An append was refused, or would be too long. After this the stripe was certainly absent."""
    return Step(may_send(now, member, chunk), without_stripe(strike(now, member, key, chunk), key))


def may_send(now: State, member: Member, chunk: Events) -> Formula:
    return now.begun(life_of(member)) & within(chunk, lambda event: now.streamed(member, event), Event)


def strike(now: State, member: Member, key: Key, chunk: Events) -> State:
    def is_meant(life: Life, k: Key, event: Event) -> Formula:
        return equal(life, life_of(member)) & equal(k, key) & chunk(event)

    return replace(now, struck=lambda *of: now.struck(*of) | is_meant(*of))


@action
def delete(now: State, key: Key) -> Next:
    def is_behind(life: Life, k: Key, event: Event) -> Formula:
        return equal(k, key) & now.struck(life, k, event)

    after = replace(without_entry(now, key), settled=lambda *of: now.settled(*of) | is_behind(*of))
    return Step(always(), after)


@action
def keep(now: State, key: Key, life: Life, event: Event) -> Next:
    """Filling from the log finds an entry that has the event. It has settled all changes of the key before that."""

    def is_done(each: Event) -> Formula:
        return now.settled(life, key, each) | now.floor(life, each)

    is_next = forall(Event, lambda each: implies(now.earlier(each, event) & changes(each, key), is_done(each)))
    guard = now.filled(key, life) & now.position(key, event) & now.struck(life, key, event) & is_next
    return Step(guard, replace(now, settled=plus(now.settled, life, key, event)))


@action
def shorten(now: State, key: Key, union: Events) -> Next:
    """By CAS, so the union is still that of all chunks."""
    is_union = forall(Event, lambda event: iff(union(event), now.held(key, event)))
    return Step(is_union, replace(now, held=setting(now.held, union, key)))


# -- the node forgets ----------------------------------------------------------------------------------


@action
def evict_stripe(now: State, key: Key) -> Next:
    return Step(always(), without_stripe(now, key))


@action
def evict_entry(now: State, key: Key) -> Next:
    return Step(always(), without_entry(now, key))


def without_stripe(now: State, key: Key) -> State:
    return replace(
        now,
        whole=without(now.whole, key),
        pending=lambda attempt: now.pending(attempt) & ~equal(place_of(attempt), key),
    )


def without_entry(now: State, key: Key) -> State:
    """Whatever takes the place of an item, no CAS on that item succeeds."""
    return replace(
        now,
        stub=without(now.stub, key),
        filled=without(now.filled, key),
        observed=lambda read: now.observed(read) & ~equal(key_of(read), key),
    )


# -- putting stripes back ------------------------------------------------------------------------------


@action
def mark(now: State, attempt: PutBack) -> Next:
    """Step 1: a pending stripe with a new nonce takes the place of anything but a whole stripe of the life."""
    key = place_of(attempt)
    is_free = forall(PutBack, lambda each: ~(now.pending(each) & equal(place_of(each), key)))
    guard = ~now.placed(attempt) & now.begun(aim_of(attempt)) & ~now.whole(key, aim_of(attempt)) & is_free
    cleared = without_stripe(now, key)
    after = replace(cleared, placed=plus(now.placed, attempt), pending=plus(cleared.pending, attempt))
    return Step(guard, after)


@action
def await_heartbeat(now: State, attempt: PutBack) -> Next:
    """Step 2: begin a heartbeat, after step 1."""
    after = replace(now, awaited=plus(now.awaited, attempt), early=setting(now.early, now.logged, attempt))
    return Step(now.placed(attempt), after)


@action
def complete(now: State, attempt: PutBack, member: Member, batch: Events) -> Next:
    """Step 3, by CAS: the heartbeat has come back, and the nonce still stands there.

    The stream is in the order of the log, so all that was logged before the heartbeat has come before it. ``batch``:
    what was streamed when the stream was asked; it may have gone on since.
    """
    key, life = place_of(attempt), aim_of(attempt)
    is_back = forall(Event, lambda event: implies(now.early(attempt, event), batch(event)))
    is_streamed = within(batch, lambda event: now.streamed(member, event), Event)
    after = replace(
        without_stripe(now, key),
        whole=only(now.whole, key, life),
        held=setting(
            now.held, lambda event: (batch(event) | now.appended(attempt, event)) & ~now.floor(life, event), key
        ),
    )
    return Step(now.pending(attempt) & now.awaited(attempt) & is_streamed & is_back, after)
