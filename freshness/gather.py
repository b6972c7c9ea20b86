"""Run many procedures side by side, with one write and one read per node and round.

`gather` is itself a procedure: it yields the merged steps of its children, so the blocking driver, the
simulator and an outer `gather` answer it like any other. It holds no I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from freshness.errors import FreshnessError, NodeUnavailable
from freshness.request import Flow, Flows, Procedure, Replies, Request, Step, Wait

Result = TypeVar("Result")
_Running = list[tuple[int, Generator[Step, Any, Any], Step]]


def gather(procedures: Sequence[Procedure[Result]]) -> Procedure[list[Result | FreshnessError]]:
    """The result of each procedure, or the `FreshnessError` it ended with, in order.

    Each round collects the flows of all procedures that are still running, joins those to one node into one
    flow (each procedure's requests stay in order), yields them as `Flows`, and hands every procedure its own
    replies. A node that fails is thrown into each procedure that spoke to it. Waits of one round are waited out
    once, the longest; loads are yielded one by one. Any other exception is a bug and ends the whole.
    """
    results: list[Result | FreshnessError | None] = [None] * len(procedures)
    running: _Running = []
    for index, procedure in enumerate(procedures):
        _advance(results, running, index, procedure, None)
    while running:
        answers = yield from _round(running)
        before, running = running, []
        for (index, procedure, _), answer in zip(before, answers, strict=True):
            _advance(results, running, index, procedure, answer)
    return results  # type: ignore[return-value]


def _advance(
    results: list[Any], running: _Running, index: int, procedure: Generator[Step, Any, Any], answer: Any
) -> None:
    try:
        if isinstance(answer, FreshnessError):
            step = procedure.throw(answer)
        else:
            step = procedure.send(answer)
    except StopIteration as stop:
        results[index] = stop.value
    except FreshnessError as error:
        results[index] = error
    else:
        running.append((index, procedure, step))


def _round(running: _Running) -> Procedure[list[Any]]:
    """Answer one step of every running procedure."""
    merged: dict[str, list[Request]] = {}
    answers: list[Any] = [None] * len(running)
    wait_seconds = 0.0
    for place, (_, _, step) in enumerate(running):
        match step:
            case Flow():
                merged.setdefault(step.node, []).extend(step.requests)
            case Flows():
                for flow in step.flows:
                    merged.setdefault(flow.node, []).extend(flow.requests)
            case Wait():
                wait_seconds = max(wait_seconds, step.seconds)
            case _:
                try:
                    answers[place] = yield step
                except FreshnessError as error:
                    answers[place] = error
    if merged:
        replies = yield Flows(tuple(Flow(node, tuple(requests)) for node, requests in merged.items()))
        _hand_out(running, answers, dict(zip(merged, replies, strict=True)))
    if wait_seconds:
        yield Wait(wait_seconds)
    return answers


def _hand_out(running: _Running, answers: list[Any], replies: dict[str, Replies | NodeUnavailable]) -> None:
    taken = dict.fromkeys(replies, 0)

    def take(flow: Flow) -> Replies | NodeUnavailable:
        of_node = replies[flow.node]
        if isinstance(of_node, FreshnessError):
            return of_node
        start = taken[flow.node]
        taken[flow.node] = end = start + len(flow.requests)
        return of_node[start:end]

    for place, (_, _, step) in enumerate(running):
        if isinstance(step, Flow):
            answers[place] = take(step)
        elif isinstance(step, Flows):
            answers[place] = [take(flow) for flow in step.flows]
