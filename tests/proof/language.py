"""A small language for transition systems in first-order logic, over z3.

* A **sort** is a class that derives from `Term`: a set of which nothing is known, not even that it is finite.
* A **state** is a frozen dataclass. Each field is a relation: a function from terms to a `Formula`.
* An **action** is a function of a state and of parameters. It returns a `Step`: the guard, and the state after it,
  made by ``dataclasses.replace``. Relations that it does not name stay as they are.
* A **clause** is a function of a state and of terms, and holds if its formula does for all of them.

The sorts of parameters are read from their annotations. `Prover` decides about worlds of any size, `Unrolling` finds
schedules in a small one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, get_args, get_type_hints

import z3

RESOURCES_MAX: Final = 50_000_000
"""z3's count of steps for one question. A count, unlike seconds, is the same on each machine."""


class Formula(Protocol):
    def __and__(self, other: Formula) -> Formula: ...
    def __or__(self, other: Formula) -> Formula: ...
    def __invert__(self) -> Formula: ...


class Term:
    """Anything of some sort."""


SomeTerm = TypeVar("SomeTerm", bound=Term)
StateT = TypeVar("StateT")
Relation: TypeAlias = Callable[..., Formula]


@dataclass(frozen=True)
class Step(Generic[StateT]):
    """The action is possible if ``guard`` holds, and leads to ``after``."""

    guard: Formula
    after: StateT


Action: TypeAlias = Callable[..., Step[StateT]]
Clause: TypeAlias = Callable[..., Formula]


class Unknown(Exception):
    """z3 gave up on a question. It counts as a failure."""


# -- formulas ------------------------------------------------------------------------------------------


def equal(one: SomeTerm, other: SomeTerm) -> Formula:
    return one == other  # type: ignore[return-value]  # z3 makes a formula of it


def implies(condition: Formula, conclusion: Formula) -> Formula:
    formula: Formula = z3.Implies(condition, conclusion)
    return formula


def iff(one: Formula, other: Formula) -> Formula:
    return one == other  # type: ignore[return-value]


def forall(sort: type[SomeTerm], body: Callable[[SomeTerm], Formula]) -> Formula:
    term = z3.FreshConst(_sort(sort))
    formula: Formula = z3.ForAll([term], body(term))
    return formula


def always() -> Formula:
    formula: Formula = z3.BoolVal(True)
    return formula


def relation(name: str, *sorts: type[Term]) -> Any:
    """A relation of which nothing is known, and which no action changes."""
    return z3.Function(name, *map(_sort, sorts), z3.BoolSort())


def function(name: str, sort: type[Term], result: type[SomeTerm]) -> Callable[[Any], SomeTerm]:
    symbol: Callable[[Any], SomeTerm] = z3.Function(name, _sort(sort), _sort(result))
    return symbol


def _sort(sort: type[Term]) -> Any:
    return z3.DeclareSort(sort.__name__)


def _symbol(hint: Any, name: str) -> Any:
    """A constant for a sort, a relation for a relation."""
    if isinstance(hint, type) and issubclass(hint, Term):
        return z3.Const(name, _sort(hint))
    return relation(name, *get_args(hint)[0])


def _hints(owner: Any) -> Mapping[str, Any]:
    return {name: hint for name, hint in get_type_hints(owner).items() if name not in ("now", "return")}


def parameters(action: Action[StateT] | Clause, suffix: str = "") -> dict[str, Any]:
    return {name: _symbol(hint, name + suffix) for name, hint in _hints(action).items()}


def symbols(kind: type[StateT], suffix: str = "") -> StateT:
    """A state of which nothing is known."""
    return kind(**{name: _symbol(hint, name + suffix) for name, hint in _hints(kind).items()})


def empty(kind: type[StateT]) -> StateT:
    return kind(**dict.fromkeys(_hints(kind), none))


def holds(clause: Clause, now: object) -> Formula:
    terms = parameters(clause)
    body = clause(now, **terms)
    formula: Formula = z3.ForAll([*terms.values()], body) if terms else body
    return formula


def name_of(function: Callable[..., object]) -> str:
    return function.__name__.strip("_").replace("_", " ")


# -- updates of a relation -----------------------------------------------------------------------------


def none(*_: Term) -> Formula:
    """The empty relation."""
    return ~always()


def exactly(one: SomeTerm) -> Callable[[SomeTerm], Formula]:
    return lambda each: equal(each, one)


def plus(held: Relation, *terms: Term) -> Relation:
    return lambda *each: held(*each) | _match(each, terms)


def without(held: Relation, *terms: Term) -> Relation:
    """Without all that begins with these terms."""
    return lambda *each: held(*each) & ~_match(each, terms)


def setting(held: Relation, rest: Relation, *terms: Term) -> Relation:
    """``rest`` of all that begins with these terms."""

    def changed(*each: Term) -> Formula:
        is_meant = _match(each, terms)
        return (is_meant & rest(*each[len(terms) :])) | (~is_meant & held(*each))

    return changed


def only(held: Relation, one: Term, other: SomeTerm) -> Relation:
    """Of all that begins with the one term, the one with the other."""
    return setting(held, exactly(other), one)


def within(some: Relation, others: Relation, sort: type[Term]) -> Formula:
    return forall(sort, lambda term: implies(some(term), others(term)))


def _match(each: Sequence[Term], terms: Sequence[Term]) -> Formula:
    matched = always()
    for one, other in zip(each, terms, strict=False):
        matched = matched & equal(one, other)
    return matched


# -- worlds of any size --------------------------------------------------------------------------------


class Prover(Generic[StateT]):
    """Decides whether clauses follow from others, before and after an action."""

    def __init__(self, assumed: Sequence[Clause], now: StateT) -> None:
        self.now = now
        self._solver = z3.Solver()
        self._solver.set("rlimit", RESOURCES_MAX)
        self._solver.add(*(holds(clause, now) for clause in assumed))

    def follows(self, clause: Clause) -> bool:
        return not self._is_possible(~holds(clause, self.now))

    def is_kept(self, clause: Clause, step: Step[StateT]) -> bool:
        """Whether a clause holds after a step from any state in which the assumptions hold."""
        return not self._is_possible(step.guard, ~holds(clause, step.after))

    def _is_possible(self, *formulas: Formula) -> bool:
        self._solver.push()
        self._solver.add(*formulas)
        answer = self._solver.check()
        reason = self._solver.reason_unknown()
        self._solver.pop()
        if answer == z3.unknown:
            raise Unknown(f"z3 gave up: {reason}. Is a quantifier under another one of a sort that leads back to it?")
        return bool(answer == z3.sat)


# -- small worlds --------------------------------------------------------------------------------------


class Unrolling(Generic[StateT]):
    """A sequence of actions from a start, in a world with a few elements of each sort.

    Quantifiers become conjunctions over the elements, so z3 only has to choose the parameters, and what holds at the
    start if that is not given. ``rigid``: relations and functions that no action changes.
    """

    def __init__(self, sizes: Mapping[type[Term], int], rigid: Sequence[Any], start: StateT) -> None:
        self._elements = {
            _sort(sort): [z3.Const(f"{sort.__name__.lower()} {number}", _sort(sort)) for number in range(size)]
            for sort, size in sizes.items()
        }
        self._solver = z3.SolverFor("QF_UF")
        self._solver.set("rlimit", RESOURCES_MAX)
        self._solver.add(*(z3.Distinct(*each) for each in self._elements.values() if len(each) > 1))
        for symbol in rigid:
            for terms in self._tuples(symbol):
                self._require_element(symbol(*terms))
        self._hints = _hints(type(start))
        self._start = start
        self._steps: list[tuple[str, Mapping[str, Any]]] = []
        self.now = start

    def require(self, formula: Formula) -> None:
        self._solver.add(self._expand(formula))

    def do(self, action: Action[StateT]) -> None:
        number = len(self._steps)
        chosen = parameters(action, f"@{number}")
        step = action(self.now, **chosen)
        for each in chosen.values():
            self._require_element(each)
        self.require(step.guard)
        after = {name: getattr(step.after, name) for name in self._hints}
        for name, made in after.items():
            if made is not getattr(self.now, name):
                symbol = after[name] = _symbol(self._hints[name], f"{name}@{number}")
                for terms in self._tuples(symbol):
                    self.require(iff(symbol(*terms), made(*terms)))
        self.now = type(self.now)(**after)
        self._steps.append((name_of(action), chosen))

    def find(self, formula: Formula) -> list[str] | None:
        """A run at whose end the formula holds: what holds at its start, and its steps. None if there is none."""
        self._solver.push()
        self.require(formula)
        answer = self._solver.check()
        found = self._tell(self._solver.model()) if answer == z3.sat else None
        self._solver.pop()
        if answer == z3.unknown:
            raise Unknown("z3 gave up on a small world: are its sizes too large?")
        return found

    def _tuples(self, symbol: z3.FuncDeclRef) -> Iterator[tuple[Any, ...]]:
        yield from product(*(self._elements[symbol.domain(place)] for place in range(symbol.arity())))

    def _require_element(self, term: Any) -> None:
        """The world has no other elements."""
        if isinstance(term, z3.ExprRef) and term.sort() in self._elements:
            self._solver.add(z3.Or(*(term == element for element in self._elements[term.sort()])))

    def _expand(self, formula: Any) -> Any:
        """The formula with a conjunction in the place of each quantifier, or a disjunction."""
        if z3.is_quantifier(formula):
            domains = [self._elements[formula.var_sort(place)] for place in range(formula.num_vars())]
            join = z3.And if formula.is_forall() else z3.Or
            # Variables are numbered from the innermost one
            bodies = (z3.substitute_vars(formula.body(), *reversed(terms)) for terms in product(*domains))
            return join(*map(self._expand, bodies))
        children = [self._expand(child) for child in formula.children()]
        if z3.is_and(formula) or z3.is_or(formula):  # of any number
            return z3.And(*children) if z3.is_and(formula) else z3.Or(*children)
        return formula.decl()(*children) if children else formula

    def _tell(self, model: Any) -> list[str]:
        lines = []
        for name in self._hints:
            symbol = getattr(self._start, name)
            if isinstance(symbol, z3.FuncDeclRef) and (members := self._members(model, symbol)):
                lines.append(f"at the start: {name.replace('_', ' ')} {members}")
        for name, chosen in self._steps:
            told = [
                f"{of.replace('_', ' ')} {{{self._members(model, each)}}}"
                if isinstance(each, z3.FuncDeclRef)
                else self._name(model, each)
                for of, each in chosen.items()
            ]
            lines.append(f"{name} ({', '.join(told)})")
        return lines

    def _members(self, model: Any, symbol: z3.FuncDeclRef) -> str:
        members = [terms for terms in self._tuples(symbol) if z3.is_true(model.eval(symbol(*terms), True))]
        return "; ".join(", ".join(map(str, terms)) for terms in members)

    def _name(self, model: Any, term: Any) -> str:
        value = model.eval(term, True)
        return next(str(one) for one in self._elements[term.sort()] if model.eval(one, True).eq(value))
