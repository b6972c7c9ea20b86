"""Model and code: the invariant is evaluated in every state of small worlds, in which the production code runs.

`Tied` explores a world of ``tests/simulation/explore.py``. It reads off each state what the model has a relation for:
the log and the servers; the node with its record, stripes and entries; and what was sent to it. Clauses that speak of
nothing else are evaluated. Clauses about what readers and invalidators have in mind are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any, Final

import z3

from freshness.algorithm.envelope import STUB, Filled, NodeRecord, find_stripe, resume_key
from freshness.position import Position
from tests.proof.invariant import INVARIANT, i2
from tests.proof.language import Clause, name_of, parameters, symbols
from tests.proof.state import State as ModelState
from tests.simulation.explore import LINEAGE, Explorer, SmallWorld, State, decode_entry, single

Facts = Mapping[str, frozenset[tuple[Any, ...]]]
"""The tuples of each relation."""
Values = Mapping[str, Any]
Check = Callable[[Facts, Values], bool]

READ_OFF: Final = frozenset(
    (
        *("changes", "logged", "shown", "latest", "record", "is_open", "floor", "progress", "acknowledged"),
        *("whole", "held", "struck", "settled", "stub", "filled", "position", "row"),
    )
)
"""Relations that are read off a state of the explorer."""


def is_tied(world: SmallWorld) -> bool:
    """Whether the world fits the model: one node and ring, one history, keys whose rows stay theirs.

    Nor may the explorer count as struck or settled what the model does not: an append that was refused, and an event
    that an entry reflects, though its position lacks it, when entries are filled from the log.
    """
    is_modelled = len(world.rings) == len(world.files) == 1 and not (world.rows or world.spellings or world.strays)
    return is_modelled and not (world.fills_from_log or world.refusals or world.spread)


class Tied(Explorer):
    """Ends with the first state in which a clause fails."""

    def __init__(self, world: SmallWorld) -> None:
        super().__init__(world)
        self.evaluated: set[Any] = set()

    def _find_unprotected(self, state: State) -> str:
        told = state.store, state.now - state.behind, state.log, state.shown, state.applied
        where = (*told, state.acknowledged, state.attempted, state.removed)
        if where in self.evaluated:
            return super()._find_unprotected(state)
        self.evaluated.add(where)
        return self._find_broken(state) or super()._find_unprotected(state)

    def _find_broken(self, state: State) -> str:
        facts = dict.fromkeys(READ_OFF, frozenset[tuple[Any, ...]]())
        told: dict[str, set[tuple[Any, ...]]] = {}
        for name, terms in self._read_off(state):
            told.setdefault(name, set()).add(terms)
        facts |= {name: frozenset(tuples) for name, tuples in told.items()}
        elements = {
            "Event": range(1, len(state.log) + 1),
            "Key": sorted(self.items),
            "Server": ("primary", "replica"),
            "Life": sorted({terms[0] for name in ("latest", "acknowledged") for terms in facts[name]}),
        }
        for clause, (sorts, check) in CHECKS.items():
            for chosen in product(*(elements[sort] for sort in sorts.values())):
                values = dict(zip(sorts, chosen, strict=True))
                if not check(facts, values):
                    return f"not: {name_of(clause)}, {values}"
        return ""

    def _read_off(self, state: State) -> Iterator[tuple[str, tuple[Any, ...]]]:
        events = range(1, len(state.log) + 1)

        def of(position: Position) -> Iterator[int]:
            return (event for event in events if position.contains(single(event)))

        for event in events:
            yield "logged", (event,)
            for server, shown in (("primary", state.shown), ("replica", state.applied)):
                if event <= shown:
                    yield "shown", (server, event)
        for life, event in state.acknowledged:
            yield "acknowledged", (life, event)
        record, copy = self._record_of(state), self._peek(state, resume_key("sim", LINEAGE))
        if record is not None:
            yield "record", (record.life,)
            if record.is_open:
                yield "is_open", (record.life,)
            for event in of(record.progress):
                yield "progress", (event,)
        if record is None and copy is None:
            return
        last = record if copy is None or record is not None else NodeRecord.decode(copy.value)
        assert last is not None
        yield "latest", (last.life,)
        for event in of(last.floor):
            yield "floor", (last.life, event)
        for item in self.items:
            yield from self._read_off_item(state, item, last, of)

    def _read_off_item(
        self, state: State, item: bytes, last: NodeRecord, of: Callable[[Position], Iterator[int]]
    ) -> Iterator[tuple[str, tuple[Any, ...]]]:
        for event, entry in enumerate(state.log, 1):
            if entry.change in self.changing[item]:
                yield "changes", (event, item)
        for _, stripe, event in state.attempted:
            if stripe == self.stripes[item]:
                yield "struck", (last.life, item, event)
        for removed, event in state.removed:
            if removed == item:
                yield "struck", (last.life, item, event)
                yield "settled", (last.life, item, event)
        there = self._peek(state, self.stripes[item])
        whole = None if there is None else find_stripe(there.value, last.life)
        if whole is not None:
            yield "whole", (item, last.life)
            for event in of(whole.position):
                yield "held", (item, event)
        held = self._peek(state, item)
        if held is None:
            return
        if held.value == STUB:
            yield "stub", (item,)
            return
        life, version = decode_entry(held.value)
        yield "filled", (item, life)
        position = Filled.decode(held.value).stamps[0].position
        for event in of(position):
            yield "position", (item, event)
        for event, entry in enumerate(state.log, 1):
            if event <= version or entry.change not in self.changing[item]:
                yield "row", (item, event)


# -- clauses as functions of facts ---------------------------------------------------------------------


def _compile(formula: Any) -> Check:
    children = [_compile(child) for child in formula.children() if z3.is_bool(child)]
    if z3.is_and(formula):
        return lambda facts, values: all(child(facts, values) for child in children)
    if z3.is_or(formula):
        return lambda facts, values: any(child(facts, values) for child in children)
    if z3.is_not(formula):
        return lambda facts, values: not children[0](facts, values)
    if z3.is_implies(formula):
        return lambda facts, values: not children[0](facts, values) or children[1](facts, values)
    names = [str(term) for term in formula.children()]
    if z3.is_eq(formula):
        return lambda facts, values: values[names[0]] == values[names[1]]
    name = formula.decl().name()
    return lambda facts, values: tuple([values[each] for each in names]) in facts[name]


def _symbols_of(formula: Any) -> set[str]:
    """The relations and functions in a formula."""
    is_symbol = formula.children() and z3.is_app_of(formula, z3.Z3_OP_UNINTERPRETED)
    found = {formula.decl().name()} if is_symbol else set[str]()
    return found.union(*map(_symbols_of, formula.children()))


def _checks() -> Iterator[tuple[Clause, tuple[Mapping[str, str], Check]]]:
    now = symbols(ModelState)
    for clause in (*INVARIANT, i2):
        terms = parameters(clause)
        formula = clause(now, **terms)
        if _symbols_of(formula) <= READ_OFF:
            yield clause, ({name: term.sort().name() for name, term in terms.items()}, _compile(formula))


CHECKS: Final = dict(_checks())
"""The clauses that speak of nothing but what is read off, with the sorts of their parameters."""
