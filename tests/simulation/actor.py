"""An actor: one procedure, answered one request at a time, so that anything can happen between two of them.

A flow is taken apart into its requests. Between two of them any other actor may run; a connection that breaks
fails the rest of its node's flow, and the world decides whether the node carries the rest out all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from freshness.algorithm.request import Flow, Flows, Reply, Request, Wait
from freshness.errors import FreshnessError, NodeUnavailable


class Cancelled(BaseException):
    """A reader is interrupted."""


class Transport(Protocol):
    """The world, as actors see it."""

    now: float

    def carry_out(self, actor: Actor, node: str, request: Request) -> Reply:
        """One request to a node. Raises `NodeUnavailable`; whether it took effect, the actor cannot know."""

    def confirm(self, actor: Actor, node: str, requests: Sequence[Request]) -> None:
        """A flow is carried out. Raises `NodeUnavailable` if its answers are not of the connection's data."""

    def abandon(self, actor: Actor, node: str, requests: list[Request]) -> None:
        """The rest of a flow whose connection broke: it may be on its way."""

    def answer(self, actor: Actor, step: Any) -> list[Callable[[], Any]]:
        """Any other step, as atomic actions of which the last one gives the answer."""


@dataclass(slots=True, eq=False)
class _FlowState:
    flow: Flow
    replies: list[Reply] = field(default_factory=list)
    error: NodeUnavailable | None = None

    @property
    def is_done(self) -> bool:
        return self.error is not None or len(self.replies) == len(self.flow.requests)


@dataclass(slots=True, eq=False)
class Actor:
    """``restart`` returns a new procedure when the previous one has ended; None: the actor is done then."""

    name: str
    transport: Transport
    restart: Callable[[], Generator[Any, Any, Any] | None]
    procedure: Generator[Any, Any, Any] | None = None
    wake_at: float = 0.0
    paused_until: float = 0.0
    has_struck: bool = False  # it has appended to a stripe since it last wrote a record
    is_idle: bool = False  # it waits for work and may be woken
    process: str = field(init=False)
    connections: dict[str, tuple[int, int]] = field(default_factory=dict)
    results: list[Any] = field(default_factory=list)
    failure: BaseException | None = None
    step_began: float = 0.0
    _step: Any = None
    _flows: list[_FlowState] = field(default_factory=list)
    _actions: list[Callable[[], Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # A process stands still, or dies, with all its threads.
        self.process = self.name.removesuffix(" heartbeat").removesuffix(" restorer")

    def find_next_request(self) -> tuple[str, Request] | None:
        """The node and the request that `run_step` would carry out now."""
        for state in self._flows:
            if not state.is_done:
                return state.flow.node, state.flow.requests[len(state.replies)]
        return None

    def crash(self) -> None:
        """The process dies at once; its connections break."""
        if self.procedure is not None:
            self.procedure.close()
        self._drop_flows()
        self.procedure = self._step = None
        self._flows, self._actions = [], []
        self.is_idle = False
        self.connections.clear()

    def interrupt(self) -> None:
        """The procedure is cancelled; the connections on which it waits are closed."""
        self._drop_flows()
        for state in self._flows:
            if not state.is_done:
                self.connections.pop(state.flow.node, None)
        self._advance(Cancelled())

    def run_step(self) -> None:
        """Do one atomic thing."""
        if self.procedure is None:
            self.procedure = self.restart()
            if self.procedure is not None:
                self._advance(None)
            return
        if self._flows:
            self._request()
        elif self._actions:
            self._act()
        else:
            self._advance(None)  # it has waited, or has asked nobody anything

    # -- inside --------------------------------------------------------------------------------------------

    def _request(self) -> None:
        """The next request of the first flow that is not done; when all are done, the answer."""
        for state in self._flows:
            if state.is_done:
                continue
            node, requests, replies = state.flow.node, state.flow.requests, state.replies
            try:
                replies.append(self.transport.carry_out(self, node, requests[len(replies)]))
                if state.is_done:
                    self.transport.confirm(self, node, requests)
            except NodeUnavailable as error:
                state.error = error
                self.transport.abandon(self, node, list(requests[len(replies) + 1 :]))
            break
        for state in self._flows:
            if not state.is_done:
                return
        answers = [state.error or state.replies for state in self._flows]
        self._advance(answers if isinstance(self._step, Flows) else answers[0])

    def _act(self) -> None:
        action = self._actions.pop(0)
        try:
            answer = action()
        except FreshnessError as error:
            self._actions = []
            self._advance(error)
            return
        if not self._actions:
            self._advance(answer)

    def _advance(self, answer: Any) -> None:
        """Hand the answer to the procedure and take its next step."""
        assert self.procedure is not None
        self._flows, self._actions, self._step = [], [], None
        try:
            if isinstance(answer, BaseException):
                step = self.procedure.throw(answer)
            else:
                step = self.procedure.send(answer)
        except StopIteration as stop:
            self.procedure = None
            self.results.append(stop.value)
            return
        except FreshnessError as error:
            self.procedure = None
            self.failure = error
            return
        self._step, self.step_began = step, self.transport.now
        if isinstance(step, Flow):
            self._flows = [_FlowState(step)]
        elif isinstance(step, Flows):
            self._flows = [_FlowState(flow) for flow in step.flows]
        elif isinstance(step, Wait):
            self.wake_at = self.transport.now + step.seconds
        else:
            self._actions = self.transport.answer(self, step)

    def _drop_flows(self) -> None:
        for state in self._flows:
            if not state.is_done:
                self.transport.abandon(self, state.flow.node, list(state.flow.requests[len(state.replies) :]))
