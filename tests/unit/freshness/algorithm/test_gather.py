"""Procedures side by side: one flow per node and round, and to each its own answers and errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from freshness.algorithm.driver import drive
from freshness.algorithm.envelope import Stripe, stripe_keys, stripe_number
from freshness.algorithm.gather import gather
from freshness.algorithm.invalidate import Target, invalidate
from freshness.algorithm.request import (
    Add,
    Flow,
    Flows,
    Get,
    Load,
    Procedure,
    ReadHead,
    ReadStream,
    Request,
    Step,
    Streamed,
    Strikes,
    Wait,
)
from freshness.errors import FreshnessError, NodeUnavailable, SourceUnavailable
from freshness.nodes.memory import MemoryNode, MemoryStore
from freshness.position import MysqlGtidSet


class Recorder:
    """Answers each request with its own key, and remembers every step. ``down``: nodes that fail."""

    def __init__(self, down: Sequence[str] = ()) -> None:
        self.down = down
        self.steps: list[Step] = []

    def __call__(self, step: Step) -> Any:
        self.steps.append(step)
        match step:
            case Flows():
                return [self._replies(flow) for flow in step.flows]
            case Flow():
                raise AssertionError("gather joins flows")
            case ReadHead():
                raise SourceUnavailable("no primary")
            case Load():
                return list(step.lookups)
            case ReadStream():
                return Streamed(MysqlGtidSet(), 1, step.begun_at)
            case Wait():
                return None

    def _replies(self, flow: Flow) -> object:
        if flow.node in self.down:
            return NodeUnavailable(f"{flow.node} is down")
        return [name(request) for request in flow.requests]


def name(request: Request) -> bytes:
    assert isinstance(request, Get)
    return request.key


def flow(node: str, *keys: bytes) -> Flow:
    return Flow(node, tuple(Get(key) for key in keys))


def one_by_one(*steps: Step) -> Procedure[list[Any]]:
    """Yields these steps; an error thrown at one is taken as its answer."""
    answers: list[Any] = []
    for step in steps:
        try:
            answers.append((yield step))
        except FreshnessError as error:
            answers.append(error)
    return answers


def run(procedures: Sequence[Procedure[Any]], recorder: Callable[[Step], Any]) -> list[Any]:
    return drive(gather(procedures), recorder)


def test_nothing_to_do() -> None:
    recorder = Recorder()
    assert run([], recorder) == []
    assert recorder.steps == []


def test_one_flow_per_node_and_round() -> None:
    recorder = Recorder()
    results = run(
        [
            one_by_one(flow("a", b"1", b"2"), flow("b", b"3")),
            one_by_one(flow("b", b"4")),
            one_by_one(flow("a", b"5"), flow("a", b"6")),
        ],
        recorder,
    )
    assert results == [[[b"1", b"2"], [b"3"]], [[b"4"]], [[b"5"], [b"6"]]]
    assert recorder.steps == [
        Flows((flow("a", b"1", b"2", b"5"), flow("b", b"4"))),
        Flows((flow("b", b"3"), flow("a", b"6"))),
    ]


TARGET = Target("shop", "shop/-", b"LIFELIFE", 64, MysqlGtidSet())


def test_hundreds_of_invalidations_take_one_flow() -> None:
    position = MysqlGtidSet.of("3e11fa47-71ca-11e1-9e33-c80aa9429562", 11)
    keys = [b"shop:customer:%d" % number for number in range(300)]
    node = MemoryNode(MemoryStore("a", clock=lambda: 1000.0))
    for name in stripe_keys("shop", "shop/-", 64):
        node.perform([Add(name, Stripe(TARGET.life, MysqlGtidSet()).encode(), 0)])
    steps: list[Step] = []

    def answer(step: Step) -> Any:
        assert isinstance(step, Flows)
        steps.append(step)
        return [node.perform(flow.requests) for flow in step.flows]

    results = run([invalidate("a", [key], TARGET, position) for key in keys], answer)
    assert [list(numbers) for numbers in results] == [[stripe_number(key, 64)] for key in keys]
    assert len(steps) == 1
    for name in stripe_keys("shop", "shop/-", 64):
        item = node.store.peek(name)
        assert item is not None
        assert Stripe.decode(item.value).position == position


def test_strikes_that_are_alone_on_their_node_are_handed_on_as_they_are() -> None:
    strikes = {name: Strikes([b"s"], b"chunk", [name.encode()]) for name in "ab"}
    sent: list[object] = []

    def answer(step: Step) -> Any:
        assert isinstance(step, Flows)
        sent.extend(flow.requests for flow in step.flows)
        return [list(flow.requests) for flow in step.flows]

    results = run([one_by_one(Flow(name, strikes[name])) for name in "ab"], answer)
    assert sent == [strikes["a"], strikes["b"]]
    assert results == [[list(strikes["a"])], [list(strikes["b"])]]


def test_strikes_beside_others_are_joined_with_them() -> None:
    strikes = Strikes([b"s"], b"chunk", [b"k"])
    steps: list[Step] = []

    def answer(step: Step) -> Any:
        steps.append(step)
        assert isinstance(step, Flows)
        return [list(flow.requests) for flow in step.flows]

    results = run([one_by_one(flow("a", b"1")), one_by_one(Flow("a", strikes))], answer)
    assert steps == [Flows((Flow("a", (Get(b"1"), *strikes)),))]
    assert results == [[[Get(b"1")]], [list(strikes)]]


def test_many_flows_of_one_procedure_are_joined_and_taken_apart() -> None:
    recorder = Recorder()
    results = run(
        [
            one_by_one(Flows((flow("a", b"1"), flow("b", b"2"), flow("a", b"3", b"4")))),
            one_by_one(flow("a", b"5")),
            one_by_one(Flows(())),
        ],
        recorder,
    )
    assert results == [[[[b"1"], [b"2"], [b"3", b"4"]]], [[b"5"]], [[]]]
    assert recorder.steps == [Flows((flow("a", b"1", b"3", b"4", b"5"), flow("b", b"2")))]


def test_a_flow_without_requests_gets_an_empty_answer() -> None:
    assert run([one_by_one(flow("a")), one_by_one(flow("a", b"1"))], Recorder()) == [[[]], [[b"1"]]]


def test_an_error_reaches_those_who_spoke_to_that_node_and_nobody_else() -> None:
    results = run(
        [
            one_by_one(flow("a", b"1")),
            one_by_one(flow("b", b"2"), flow("a", b"3")),
            one_by_one(Flows((flow("a", b"4"), flow("b", b"5")))),
        ],
        Recorder(down=["b"]),
    )
    assert results[0] == [[b"1"]]
    assert isinstance(results[1][0], NodeUnavailable)
    assert results[1][1] == [b"3"]
    assert results[2][0][0] == [b"4"]
    assert isinstance(results[2][0][1], NodeUnavailable), "in Flows it is a value, not raised"


def test_who_does_not_catch_it_ends_with_it() -> None:
    def careless() -> Procedure[list[Any]]:
        return [(yield flow("b", b"1"))]

    careless_result, other = run([careless(), one_by_one(flow("a", b"2"))], Recorder(down=["b"]))
    assert isinstance(careless_result, NodeUnavailable)
    assert other == [[b"2"]]


def test_waits_of_one_round_are_waited_out_once() -> None:
    recorder = Recorder()
    run(
        [
            one_by_one(Wait(0.1), flow("a", b"1")),
            one_by_one(Wait(0.3)),
            one_by_one(Wait(0.2)),
            one_by_one(flow("a", b"2")),
        ],
        recorder,
    )
    assert recorder.steps == [Flows((flow("a", b"2"),)), Wait(0.3), Flows((flow("a", b"1"),))]


def test_loads_heads_and_the_stream_are_asked_for_one_by_one() -> None:
    recorder = Recorder()
    steps: list[Step] = [Load((1,)), ReadHead(), ReadStream(7.0), Load((2, 3))]
    results = run([one_by_one(step) for step in steps], recorder)
    assert results[0] == [[1]]
    assert isinstance(results[1][0], SourceUnavailable)
    assert results[2:] == [[Streamed(MysqlGtidSet(), 1, 7.0)], [[2, 3]]]
    assert recorder.steps == steps


def test_results_keep_the_order_of_the_procedures() -> None:
    def after(rounds: int) -> Procedure[int]:
        for _ in range(rounds):
            yield flow("a", b"x")
        return rounds

    assert run([after(3), after(0), after(1), after(2)], Recorder()) == [3, 0, 1, 2]


def test_gather_inside_gather_is_one_flow_too() -> None:
    recorder = Recorder()
    results = run(
        [gather([one_by_one(flow("a", b"1")), one_by_one(flow("b", b"2"))]), one_by_one(flow("a", b"3"))], recorder
    )
    assert results == [[[[b"1"]], [[b"2"]]], [[b"3"]]]
    assert recorder.steps == [Flows((flow("a", b"1", b"3"), flow("b", b"2")))]


def test_an_inner_gather_keeps_its_neighbours_from_its_errors() -> None:
    inner = gather([one_by_one(flow("b", b"1")), one_by_one(flow("a", b"2"))])
    (failed, fine), outer = run([inner, one_by_one(flow("b", b"3"))], Recorder(down=["b"]))
    assert isinstance(failed[0], NodeUnavailable)
    assert fine == [[b"2"]]
    assert isinstance(outer[0], NodeUnavailable)


def test_a_bug_ends_the_whole() -> None:
    def faulty() -> Procedure[None]:
        yield flow("a", b"1")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run([faulty(), one_by_one(flow("a", b"2"), flow("a", b"3"))], Recorder())
