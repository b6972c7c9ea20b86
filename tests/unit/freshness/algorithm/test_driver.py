"""The blocking driver: answers in order, errors at the right place, all nodes at work at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from freshness.algorithm.driver import BlockingDriver, drive
from freshness.algorithm.request import (
    CONFLICT,
    DONE,
    MISSING,
    STORED,
    Add,
    Delete,
    Flow,
    Flows,
    Get,
    Head,
    Load,
    Procedure,
    ReadHead,
    ReadStream,
    Reply,
    Request,
    Step,
    Streamed,
    Strikes,
    Wait,
)
from freshness.errors import NodeTimedOut, NodeUnavailable
from freshness.nodes.memory import MemoryNode, MemoryStore
from freshness.position import empty_position
from freshness.position.token import EventToken


class Spy:
    """A node that logs in a shared diary when it is written to and read from."""

    def __init__(self, name: str, diary: list[str]) -> None:
        self.node = MemoryNode(MemoryStore(name, clock=lambda: 0.0))
        self.diary = diary
        self.fails_on_receive: type[NodeUnavailable] | None = None
        self.was_connected = True
        self.on_send: Callable[[Sequence[Request]], object] = lambda _: None

    @property
    def name(self) -> str:
        return self.node.name

    def send(self, requests: Sequence[Request]) -> None:
        self.diary.append(f"send {self.name}")
        self.on_send(requests)
        self.node.send(requests)

    @property
    def is_connected(self) -> bool:
        return self.was_connected

    def connect(self) -> None:
        self.diary.append(f"connect {self.name}")

    def receive(self, *, is_late: bool = False) -> list[Reply]:
        self.diary.append(f"receive {self.name}{' late' if is_late else ''}")
        if self.fails_on_receive:
            raise self.fails_on_receive(f"{self.name} said nothing")
        return self.node.receive()

    def perform(self, requests: Sequence[Request]) -> list[Reply]:
        self.send(requests)
        return self.receive()

    def find(self, key: bytes) -> bytes | None:
        return self.node.find(key)

    def close(self) -> None:
        self.node.close()


def build(*names: str) -> tuple[BlockingDriver, dict[str, Spy], list[str]]:
    diary: list[str] = []
    nodes = {name: Spy(name, diary) for name in names}
    return BlockingDriver(nodes, lambda _: None), nodes, diary


def ask(step: Step) -> Procedure[Any]:
    return (yield step)


def test_a_flow_is_answered_in_order() -> None:
    driver, _, _ = build("a")
    replies = driver.run(ask(Flow("a", (Get(b"k"), Add(b"k", b"v", 0), Delete(b"k"), Get(b"k")))))
    assert replies == [MISSING, STORED, DONE, MISSING]


def test_several_nodes_are_written_to_before_the_first_is_read_from() -> None:
    driver, _, diary = build("a", "b", "c")
    step = Flows(tuple(Flow(name, (Get(b"k"),)) for name in "abc"))
    assert driver.run(ask(step)) == [[MISSING]] * 3
    assert diary == ["send a", "send b", "send c", "receive a", "receive b", "receive c"]


def test_no_flows_no_answers() -> None:
    driver, _, diary = build("a")
    assert driver.run(ask(Flows(()))) == []
    assert diary == []


@pytest.mark.parametrize("names", ["b", "ab", "ba", "abc"])
@pytest.mark.parametrize("failure", [None, NodeUnavailable])
def test_one_dead_node_is_a_value_among_the_others_answers(names: str, failure: type[NodeUnavailable] | None) -> None:
    driver, nodes, _ = build("a", "b", "c")
    nodes["b"].fails_on_receive = failure
    nodes["b"].node.down = failure is None
    answers = driver.run(ask(Flows(tuple(Flow(name, (Get(b"k"),)) for name in names))))
    for name, answer in zip(names, answers, strict=True):
        assert isinstance(answer, NodeUnavailable) if name == "b" else answer == [MISSING]


def test_nodes_that_hang_are_waited_for_once_and_not_one_after_the_other() -> None:
    driver, nodes, diary = build("a", "b", "c", "d")
    nodes["b"].fails_on_receive = nodes["c"].fails_on_receive = NodeTimedOut
    answers = driver.run(ask(Flows(tuple(Flow(name, (Get(b"k"),)) for name in "abcd"))))
    assert [isinstance(answer, NodeTimedOut) for answer in answers] == [False, True, True, False]
    assert diary[4:] == ["receive a", "receive b", "receive c late", "receive d late"]


@pytest.mark.parametrize(("closed", "opened"), [("", ""), ("b", ""), ("ac", "ac"), ("abc", "abc")])
def test_several_connections_are_opened_side_by_side(closed: str, opened: str) -> None:
    _, nodes, diary = build("a", "b", "c")
    for name in closed:
        nodes[name].was_connected = False
    beside: list[int] = []

    def run_all(functions: Sequence[Callable[[], None]]) -> None:
        beside.append(len(functions))
        for function in functions:
            function()

    driver = BlockingDriver(nodes, lambda _: None, run_all=run_all)
    assert driver.run(ask(Flows(tuple(Flow(name, (Get(b"k"),)) for name in "abc")))) == [[MISSING]] * 3
    assert beside == ([len(opened)] if opened else [])
    assert [line for line in diary if line.startswith("connect")] == [f"connect {name}" for name in opened]


def test_a_dead_node_in_a_single_flow_is_raised_at_the_yield() -> None:
    driver, nodes, _ = build("a")
    nodes["a"].node.down = True

    def careful() -> Procedure[str]:
        try:
            yield Flow("a", (Get(b"k"),))
        except NodeUnavailable as error:
            return error.message
        return "answered"

    assert "a is down" in driver.run(careful())
    with pytest.raises(NodeUnavailable):
        driver.run(ask(Flow("a", (Get(b"k"),))))


def test_any_exception_is_raised_inside_the_procedure_which_may_clean_up() -> None:
    cleaned: list[object] = []

    def broken_load(*_: Any) -> Any:
        raise ZeroDivisionError("in the loader")

    nodes = {"a": MemoryNode(MemoryStore("a", clock=lambda: 0.0))}
    driver = BlockingDriver(nodes, lambda _: None, load=broken_load)

    def tidy() -> Procedure[None]:
        yield Flow("a", (Add(b"k", b"v", 0),))
        try:
            yield Load(("x",))
        except ZeroDivisionError:
            cleaned.append((yield Flow("a", (Delete(b"k"),))))
            raise

    with pytest.raises(ZeroDivisionError, match="in the loader"):
        driver.run(tidy())
    assert cleaned == [[DONE]]


def test_loads_heads_the_stream_and_waits_are_passed_on() -> None:
    slept: list[float] = []
    asked: list[float] = []
    head = Head(empty_position("mysql"), 3)
    streamed = Streamed(empty_position("mysql"), 3, 8.0)

    def read_stream(begun_at: float) -> Streamed | None:
        asked.append(begun_at)
        return streamed if begun_at <= 8.0 else None

    driver = BlockingDriver(
        {},
        slept.append,
        load=lambda lookups, at_least: [*lookups, *at_least],
        read_head=lambda: head,
        read_stream=read_stream,
    )
    assert driver.run(ask(Load((1, 2)))) == [1, 2]
    own = EventToken("shop/-", "-", 1, 0, empty_position("mysql"))
    assert driver.run(ask(Load((1, 2), {"shop/-": own}))) == [1, 2, "shop/-"]
    assert driver.run(ask(ReadHead())) is head
    assert driver.run(ask(ReadStream(7.0))) is streamed
    assert driver.run(ask(ReadStream(9.0))) is None
    assert asked == [7.0, 9.0]
    assert driver.run(ask(Wait(0.25))) is None
    assert slept == [0.25]


def test_strikes_are_sent_as_they_are() -> None:
    """A backend encodes thousands of them without making an object for each."""
    driver, nodes, _ = build("a")
    sent: list[Sequence[Request]] = []
    nodes["a"].on_send = sent.append
    strikes = Strikes([b"s"], b"chunk", [b"k"])
    assert driver.run(ask(Flow("a", strikes))) == [CONFLICT, DONE]
    assert driver.run(ask(Flows((Flow("a", strikes),)))) == ([CONFLICT, DONE],)
    assert all(flow is strikes for flow in sent)
    assert len(sent) == 2


@pytest.mark.parametrize("step", [Load(()), ReadHead(), ReadStream(0.0)], ids=repr)
def test_a_driver_without_a_database_says_so(step: Step) -> None:
    driver, _, _ = build("a")
    with pytest.raises(AssertionError, match="no database"):
        driver.run(ask(step))


def test_a_procedure_that_asks_for_nothing_returns() -> None:
    def idle() -> Procedure[str]:
        return "done"
        yield

    def never(_: Step) -> Any:
        raise AssertionError("nothing was asked")

    assert drive(idle(), never) == "done"


def test_an_exception_that_the_procedure_answers_with_another_step() -> None:
    def stubborn() -> Procedure[list[object]]:
        answers: list[object] = []
        for number in range(3):
            try:
                answers.append((yield Wait(number)))
            except ValueError as error:
                answers.append(str(error))
        return answers

    def odd_fails(step: Step) -> Any:
        assert isinstance(step, Wait)
        if step.seconds == 1:
            raise ValueError("odd")
        return step.seconds

    assert drive(stubborn(), odd_fails) == [0, "odd", 2]


def test_an_error_of_an_answer_comes_out_whatever_its_class() -> None:
    """Also what a generator may not raise: a loader that asks an empty iterator for its next element raises it."""

    def procedure() -> Procedure[None]:
        yield Wait(1)

    for error in (StopIteration("of a loader"), RuntimeError("of a loader"), KeyError("of a loader")):

        def answer(_: Step, error: Exception = error) -> Any:
            raise error

        with pytest.raises(type(error)) as caught:
            drive(procedure(), answer)
        assert caught.value is error
