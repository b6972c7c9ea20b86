"""The model's actions and clauses as functions of one state in which everything is known.

A state has the tuples of each relation. `Model` numbers the states that it has met, and does an action once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cache
from operator import itemgetter
from typing import Any, Final

import z3

from tests.proof.invariant import INVARIANT, i2
from tests.proof.language import Clause, name_of, parameters, symbols
from tests.proof.state import Next, State, asked, changes

Tuples = frozenset[tuple[Any, ...]]
Facts = Mapping[str, Tuples]
Elements = Mapping[str, Sequence[Any]]
Action = Callable[..., Next]
Acting = tuple[Callable[..., Any], Mapping[str, Callable[..., Any]], Sequence[str]]
"""The guard of an action, the relations that it changes, and the sorts of its parameters; "" for a set of events."""

FUNCTIONS: Final = {
    "key_of": itemgetter(1),
    "cause_of": itemgetter(2),
    "place_of": itemgetter(1),
    "aim_of": itemgetter(2),
    "life_of": itemgetter(3),
}
"""Functions that no action changes: part of the name of an element."""
_IMAGES: Final = {"Read": {"Key": 1}, "PutBack": {"Key": 1, "Life": 2}, "Member": {"Life": 3}}
_NOW: Final = symbols(State)
SORTS: Final[Mapping[str, Sequence[str]]] = {
    symbol.name(): [symbol.domain(place).name() for place in range(symbol.arity())]
    for symbol in (*vars(_NOW).values(), changes, asked)
}


class Impossible(Exception):
    """The guard of an action does not hold."""


class Model:
    def __init__(self) -> None:
        self._numbers: dict[tuple[Tuples, ...], int] = {}
        self._facts: list[Facts] = []
        self._elements: list[Elements] = []
        self._done: dict[Any, int | None] = {}
        nothing = dict.fromkeys(SORTS, frozenset[tuple[Any, ...]]())
        self.start = self._add(nothing, {sort: () for sorts in SORTS.values() for sort in sorts})

    def __len__(self) -> int:
        return len(self._facts)

    def facts(self, number: int) -> Facts:
        return self._facts[number]

    def put(self, number: int, changed: Facts) -> int:
        """The state with other tuples of some relations."""
        facts, elements = self._facts[number], self._elements[number]
        for name, tuples in changed.items():
            for terms in tuples - facts[name]:
                for sort, each in zip(SORTS[name], terms, strict=True):
                    elements = _with_element(elements, sort, each)
        return self._add({**facts, **changed}, elements)

    def do(self, number: int, action: Action, *chosen: Any) -> int:
        """The state after an action. `Impossible` if its guard does not hold, or a clause does not after it."""
        key = number, action, chosen
        if key not in self._done:
            self._done[key] = self._try(number, acting(action), chosen)
        done = self._done[key]
        if done is None:
            raise Impossible(f"{name_of(action)}{chosen}")
        return done

    def _try(self, number: int, compiled: Acting, chosen: Sequence[Any]) -> int | None:
        guard, effects, sorts = compiled
        facts, elements = self._facts[number], self._elements[number]
        for sort, each in zip(sorts, chosen, strict=True):
            elements = _with_element(elements, sort, each)
        if not guard(facts, elements, *chosen):
            return None
        made = {name: frozenset(effect(facts, elements, *chosen)) for name, effect in effects.items()}
        changed = {name: tuples for name, tuples in made.items() if tuples != facts[name]}
        after = {**facts, **changed}
        for name, (relations, check) in JUDGING.items():
            if not (relations.isdisjoint(changed) or check(after, elements)):
                raise Impossible(f"not: {name}")
        return self._add(after, elements)

    def _add(self, facts: Facts, elements: Elements) -> int:
        number = self._numbers.setdefault(tuple(facts.values()), len(self._facts))
        if number == len(self._facts):
            self._facts.append(facts)
            self._elements.append(elements)
        return number


def _with_element(elements: Elements, sort: str, each: Any) -> Elements:
    if not sort or each in elements[sort]:
        return elements
    more: Elements = {**elements, sort: (*elements[sort], each)}
    for image, place in _IMAGES.get(sort, {}).items():
        more = _with_element(more, image, each[place])
    return more


# -- formulas as Python --------------------------------------------------------------------------------


def _code(formula: Any) -> str:
    if z3.is_quantifier(formula):
        assert formula.is_forall()
        terms = [z3.FreshConst(formula.var_sort(place)) for place in range(formula.num_vars())]
        body = z3.substitute_vars(formula.body(), *reversed(terms))
        return f"all({_code(body)} {' '.join(_loops(terms))})"
    if z3.is_const(formula) and not z3.is_bool(formula):
        return str(formula).replace("!", "_")
    children = [_code(child) for child in formula.children()]
    name = formula.decl().name()
    match formula.decl().kind():
        case z3.Z3_OP_TRUE | z3.Z3_OP_FALSE:
            return str(z3.is_true(formula))
        case z3.Z3_OP_AND | z3.Z3_OP_OR:
            return f"({f' {name} '.join(children)})"
        case z3.Z3_OP_NOT:
            return f"(not {children[0]})"
        case z3.Z3_OP_IMPLIES:
            return f"(not {children[0]} or {children[1]})"
        case z3.Z3_OP_EQ:
            return f"({children[0]} == {children[1]})"
    if name in FUNCTIONS:
        return f"{name}({children[0]})"
    of = f"facts[{name!r}]" if name in SORTS else name.replace("!", "_")
    return f"(({', '.join(children)},) in {of})"


def _loops(terms: Iterable[Any]) -> Iterator[str]:
    return (f"for {_code(term)} in elements[{term.sort().name()!r}]" for term in terms)


def _compile(names: Iterable[str], code: str) -> Callable[..., Any]:
    head = ", ".join(["facts", "elements", *names])
    function: Callable[..., Any] = eval(f"lambda {head}: {code}", dict(FUNCTIONS))
    return function


@cache
def acting(action: Action) -> Acting:
    chosen = parameters(action, "!")
    step = action(_NOW, **chosen)
    names = [f"{name}_" for name in chosen]
    effects = {}
    for name, sorts in SORTS.items():
        made: Any = getattr(step.after, name, None)
        if made is not getattr(_NOW, name, None):
            terms = [z3.FreshConst(z3.DeclareSort(sort)) for sort in sorts]
            loops = " ".join(_loops(terms))
            listed = ", ".join(map(_code, terms))
            effects[name] = _compile(names, f"[({listed},) {loops} if {_code(z3.simplify(made(*terms)))}]")
    sorts = ["" if isinstance(each, z3.FuncDeclRef) else each.sort().name() for each in chosen.values()]
    return _compile(names, _code(z3.simplify(step.guard))), effects, sorts


def _judging(clause: Clause) -> tuple[Set[str], Callable[..., Any]]:
    terms = parameters(clause)
    formula = z3.simplify(clause(_NOW, **terms))
    return _relations_of(formula), _compile((), f"all({_code(formula)} {' '.join(_loops(terms.values()))})")


def _relations_of(formula: Any) -> set[str]:
    found = {formula.decl().name()} & SORTS.keys() if z3.is_app(formula) else set[str]()
    return found.union(*map(_relations_of, formula.children()))


JUDGING: Final = {name_of(clause): _judging(clause) for clause in (*INVARIANT, i2)}
"""The relations of each clause, and whether it holds."""
