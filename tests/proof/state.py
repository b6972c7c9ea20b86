"""The rule of the cache as a transition system: sorts and relations of its state. docs/proof.md explains the model.

One node, one lineage, any number of everything else. A position is a set of events. A stripe belongs to one key: a
stripe that others share holds more, and so refuses more. A member is one invalidator between a join and its first
failure. A process that crashes takes no more steps, and one that starts again is another member.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from tests.proof.language import Formula, Step, Term, function, relation


class Event(Term):
    """A committed transaction."""


class Key(Term):
    """The key of an entry."""


class Server(Term):
    """A database server that is read: the primary or a replica."""


class Life(Term):
    """A life of the node."""


class Member(Term):
    """A membership of an invalidator, which follows one life."""


class PutBack(Term):
    """An attempt to put the stripe of a key back, with a nonce of its own."""


class Read(Term):
    """One read of one key by an application."""


Events: TypeAlias = Callable[[Event], Formula]

changes: Final[Callable[[Event, Key], Formula]] = relation("changes", Event, Key)
asked: Final[Callable[[Read, Event], Formula]] = relation("asked", Read, Event)
"""The commits that the caller of a read demands (I9)."""
cause_of: Final = function("cause_of", Read, Event)
"""The event for whose sake an invalidator fills from the log."""
key_of: Final = function("key_of", Read, Key)
place_of: Final = function("place_of", PutBack, Key)
aim_of: Final = function("aim_of", PutBack, Life)
life_of: Final = function("life_of", Member, Life)

RIGID: Final[tuple[Any, ...]] = (changes, asked, cause_of, key_of, place_of, aim_of, life_of)


@dataclass(frozen=True)
class State:
    """A relation that no code keeps, but only the proof, is called a ghost."""

    # Database and streams
    logged: Callable[[Event], Formula]
    earlier: Callable[[Event, Event], Formula]
    """The order of the log."""
    shown: Callable[[Server, Event], Formula]
    """The position of a server, as visible to a SELECT."""
    streamed: Callable[[Member, Event], Formula]

    # Node record
    begun: Callable[[Life], Formula]
    """Ghost. So is ``latest``, the one that began last."""
    latest: Callable[[Life], Formula]
    record: Callable[[Life], Formula]
    """The node record is there and names this life."""
    is_open: Callable[[Life], Formula]
    born: Callable[[Life], Formula]
    """The life has its floor, which comes after its record."""
    floor: Callable[[Life, Event], Formula]
    progress: Callable[[Event], Formula]
    acknowledged: Callable[[Life, Event], Formula]
    """Ghost: it was in the progress of a record of this life."""
    joined: Callable[[Member], Formula]
    """The record is of the tenure that this member joined: it has not been absent since."""
    joined_open: Callable[[Member], Formula]
    beaten: Callable[[Member], Formula]
    """This member has begun a heartbeat since it joined; ``beat``: all that was logged before that one."""
    beat: Callable[[Member, Event], Formula]

    # Stripes
    whole: Callable[[Key, Life], Formula]
    held: Callable[[Key, Event], Formula]
    """The position of a whole stripe, without the floor."""
    placed: Callable[[PutBack], Formula]
    """The pending stripe was put there, at any time; ``pending``: it is there."""
    pending: Callable[[PutBack], Formula]
    appended: Callable[[PutBack, Event], Formula]
    """The chunks of a pending stripe that are of the life for which it was placed."""
    awaited: Callable[[PutBack], Formula]
    """A heartbeat was begun after the pending stripe was placed; ``early``: all that was logged before that one."""
    early: Callable[[PutBack, Event], Formula]
    struck: Callable[[Life, Key, Event], Formula]
    """Ghost: a member of this life appended the event to the stripe of the key, or the stripe was absent then."""
    settled: Callable[[Life, Key, Event], Formula]
    """Ghost: after that, the key was absent, or its entry had the event."""

    # Entries
    stub: Callable[[Key], Formula]
    filled: Callable[[Key, Life], Formula]
    position: Callable[[Key, Event], Formula]
    row: Callable[[Key, Event], Formula]
    """The events that the value of an entry reflects."""

    # Reads, in the order of their steps
    started: Callable[[Read], Formula]
    due: Callable[[Read, Life, Event], Formula]
    """Ghost: acknowledged before the read began."""
    copied: Callable[[Read, Life], Formula]
    """The reader has a copy of an open record of this life; ``copy``: the progress in it."""
    copy: Callable[[Read, Event], Formula]
    looked: Callable[[Read], Formula]
    """Step 1 is done."""
    observed: Callable[[Read], Formula]
    """The item is the very one that this read has seen in step 1: a CAS on it succeeds."""
    refills: Callable[[Read], Formula]
    """An invalidator reads, and fills from the log."""
    got: Callable[[Read, Life], Formula]
    """The value in hand is an entry of this life."""
    guarded: Callable[[Read], Formula]
    """The stripe was read; ``stripe``: it was a whole one of this life."""
    stripe: Callable[[Read, Life], Formula]
    informed: Callable[[Read, Life], Formula]
    """The record was read behind the stripe, open and of this life."""
    required: Callable[[Read, Event], Formula]
    source: Callable[[Read, Server], Formula]
    """The position was read from this server."""
    loaded: Callable[[Read], Formula]
    """The value in hand is a row; ``at``: its position; ``value``: the events that it reflects."""
    at: Callable[[Read, Event], Formula]
    value: Callable[[Read, Event], Formula]
    hit: Callable[[Read], Formula]
    answered: Callable[[Read], Formula]
    shows: Callable[[Read], Formula]
    """A miss that is said to show all that is required (`Read.shows_required`)."""


Next: TypeAlias = Step[State]
SomeAction = TypeVar("SomeAction", bound=Callable[..., Next])

ACTIONS: Final[list[Callable[..., Next]]] = []


def action(function: SomeAction) -> SomeAction:
    ACTIONS.append(function)
    return function
