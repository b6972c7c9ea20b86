"""Drivers: they answer the steps of a procedure with real nodes, a real database and real time.

`drive` runs any procedure with a function that answers steps; `BlockingDriver` is that function for one thread.
A flow to several nodes is first sent to all and then received from all, so nodes work in parallel. For a batch,
`freshness.algorithm.gather.gather` merges the steps of many procedures into flows with one write and one read per
node and round, which are answered here. The simulator has an answering function of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from freshness.algorithm.node import CacheNode
from freshness.algorithm.request import (
    ConfirmSuccession,
    Flow,
    Flows,
    Head,
    Load,
    Procedure,
    ReadHead,
    ReadStream,
    Replies,
    Reply,
    Step,
    Streamed,
    Wait,
)
from freshness.errors import FreshnessError, NodeTimedOut
from freshness.position.token import EventToken

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


running_clock: Final[Callable[[], float]] = partial(time.clock_gettime, _CLOCK)
"""Seconds, monotonic, and counting while the machine is suspended: the clock of both sides."""


Result = TypeVar("Result")
AnyStep = TypeVar("AnyStep")


def drive(procedure: Generator[AnyStep, Any, Result], answer: Callable[[AnyStep], Any]) -> Result:
    """Run ``procedure`` to its end. An error of ``answer`` is raised inside the procedure, at its ``yield``, and
    comes out of it, a StopIteration as well."""
    try:
        step = next(procedure)
        while True:
            try:
                reply = answer(step)
            except Exception as error:  # noqa: BLE001 - handed to the procedure, which cleans up and re-raises
                step = procedure.throw(error)
            else:
                step = procedure.send(reply)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    except RuntimeError as error:
        if isinstance(error.__cause__, StopIteration):  # as Python has a generator raise it
            raise error.__cause__ from None
        raise


def _in_doubt(_: ConfirmSuccession) -> bool:
    return False


def _no_database(*_: Any) -> Any:
    raise AssertionError("this driver was given no database to ask")


def _one_by_one(functions: Sequence[Callable[[], None]]) -> None:
    """Nothing: each `CacheNode.send` opens its own connection."""


@dataclass(slots=True)
class BlockingDriver:
    """Answers steps in the calling thread. ``nodes`` must hold a connection for every node that is named.

    ``run_all`` opens several connections: side by side, or one by one. It raises no `FreshnessError`.
    """

    nodes: Mapping[str, CacheNode]
    sleep: Callable[[float], None]
    load: Callable[[Sequence[Any], Mapping[str, EventToken]], Any] = _no_database
    load_together: Callable[[Sequence[Any], Mapping[str, EventToken]], Any] = _no_database
    read_head: Callable[[], Head] = _no_database
    read_stream: Callable[[float], Streamed | None] = _no_database
    confirm_succession: Callable[[ConfirmSuccession], bool] = _in_doubt
    run_all: Callable[[Sequence[Callable[[], None]]], Any] = _one_by_one

    def run(self, procedure: Procedure[Result]) -> Result:
        return drive(procedure, self.answer)

    def answer(self, step: Step) -> Any:
        match step:
            case Flows():
                if len(step.flows) != 1:
                    return self._perform_all(step.flows)
                (flow,) = step.flows
                try:
                    return (self.nodes[flow.node].perform(flow.requests),)
                except FreshnessError as error:
                    return (error,)
            case Flow():
                return self.nodes[step.node].perform(step.requests)
            case Load():
                load = self.load_together if step.is_together else self.load
                return load(step.lookups, step.at_least)
            case ReadHead():
                return self.read_head()
            case ConfirmSuccession():
                return self.confirm_succession(step)
            case ReadStream():
                return self.read_stream(step.begun_at)
            case Wait():
                return self.sleep(step.seconds)

    def _perform_all(self, flows: Sequence[Flow]) -> list[Replies | FreshnessError]:
        assert len({flow.node for flow in flows}) == len(flows), "two flows to one node would mix up their replies"
        failures: dict[int, FreshnessError] = {}
        closed = [node for flow in flows if not (node := self.nodes[flow.node]).is_connected]
        if len(closed) > 1:
            self.run_all([node.connect for node in closed])
        for place, flow in enumerate(flows):
            try:
                self.nodes[flow.node].send(flow.requests)
            except FreshnessError as error:
                failures[place] = error
        answers: list[list[Reply] | FreshnessError] = []
        is_late = False
        for place, flow in enumerate(flows):
            try:
                node = self.nodes[flow.node]
                answers.append(failures.get(place) or (node.receive(is_late=True) if is_late else node.receive()))
            except FreshnessError as error:
                answers.append(error)
                is_late = is_late or isinstance(error, NodeTimedOut)
        return list(answers)
