"""Run many procedures side by side, with one write and one read per node and round.

`gather` is itself a procedure: it yields the merged steps of its children, so the blocking driver, the
simulator and an outer `gather` answer it like any other. It holds no I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any, TypeVar

from freshness.algorithm.request import Flow, Flows, Procedure, Replies, Request, Step, Wait
from freshness.errors import FreshnessError, NodeUnavailable

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
    answered: Iterable[tuple[int, Generator[Step, Any, Any], Any]] = (
        (index, procedure, None) for index, procedure in enumerate(procedures)
    )
    while True:
        for index, procedure, answer in answered:
            try:
                step = procedure.throw(answer) if isinstance(answer, FreshnessError) else procedure.send(answer)
            except StopIteration as stop:
                results[index] = stop.value
            except FreshnessError as error:
                results[index] = error
            else:
                running.append((index, procedure, step))
        if not running:
            return results  # type: ignore[return-value]
        answers = yield from _round(running)
        answered = [(index, procedure, answers[place]) for place, (index, procedure, _) in enumerate(running)]
        running = []


def _round(running: _Running) -> Procedure[list[Any]]:
    """Answer one step of every running procedure."""
    flows = [step for _, _, step in running if isinstance(step, Flow)]
    if len(flows) == len(running) == len({flow.node for flow in flows}):
        return list((yield Flows(tuple(flows))))  # each node has one: nothing to join
    merged: dict[str, list[Request]] = {}
    answers: list[Any] = [None] * len(running)
    wait_seconds = 0.0
    for place, (_, _, step) in enumerate(running):
        if isinstance(step, Flow):
            # With the place that its requests get in the flow of their node
            joined = merged.get(step.node)
            if joined is None:
                joined = merged[step.node] = []
            answers[place] = len(joined)
            joined += step.requests
        elif isinstance(step, Flows):
            answers[place] = starts = []
            for flow in step.flows:
                joined = merged.setdefault(flow.node, [])
                starts.append(len(joined))
                joined += flow.requests
        elif isinstance(step, Wait):
            wait_seconds = max(wait_seconds, step.seconds)
        else:
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
    """Put its own replies in the place where each step's start among those of its node was noted."""
    for place, (_, _, step) in enumerate(running):
        if isinstance(step, Flow):
            of_node = replies[step.node]
            if isinstance(of_node, FreshnessError):
                answers[place] = of_node
            else:
                start = answers[place]
                answers[place] = of_node[start : start + len(step.requests)]
        elif isinstance(step, Flows):
            answers[place] = [
                _take(replies[flow.node], start, len(flow.requests))
                for flow, start in zip(step.flows, answers[place], strict=True)
            ]


def _take(of_node: Replies | NodeUnavailable, start: int, count: int) -> Replies | NodeUnavailable:
    return of_node if isinstance(of_node, FreshnessError) else of_node[start : start + count]
