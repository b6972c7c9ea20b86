"""The update stream over HTTP, and what belongs to it: tokens and the topology.

Each consumer has a thread with an update stream of its own, and a bounded buffer before its connection: a slow one
waits for nobody and nobody for it. One whose buffer stays full gets its resume text and is disconnected. Routes are
added to the application of ``invalidator.http.service``. Never touches the invalidator's own work.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeAlias

from fastapi import APIRouter, Header, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from freshness.errors import FreshnessError
from freshness.stream.lines import EndLine, ErrorLine, HeartbeatLine, Line, SchemaLine, encode_line
from freshness.stream.resume import ResumeVector
from invalidator.http.gates import Grant, find_grant
from invalidator.http.line_buffer import CHUNK_BYTES_MAX, LineBuffer
from invalidator.http.refusal import SchemaUnknown, describe_refusals
from invalidator.http.topology import describe_topology
from invalidator.stream.json_lines import LineWriter, cut_lines
from invalidator.stream.open import OpenedStream, StreamOpener
from invalidator.stream.query import CHUNK_ROWS, CHUNK_ROWS_MAX, RefreshRequest, StreamQuery
from invalidator.stream.schema_book import SchemaBook
from invalidator.stream.schema_format import SchemaFormat, format_schema
from invalidator.stream.selection import Images, Selection, read_names

POLL_SECONDS: Final = 0.25
"""How soon a consumer's thread sees that the consumer has gone."""

JOIN_SECONDS: Final = 5.0
EVENTS: Final = "text/event-stream"
LINES: Final = "application/x-ndjson"

log = logging.getLogger(__name__)

Reload: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]
"""Takes the document of ``PUT /v1/topology`` over. Returns the answer; raises `ConfigError` for a wrong document."""


@dataclass(frozen=True, slots=True)
class ServePolicy:
    """Bounds of each consumer. ``slow_seconds``: how long its buffer may be full, and how long one write to its
    connection may take; ``drain_seconds``: how long it may then take to read what is left."""

    buffer_bytes_max: int = 4 << 20
    slow_seconds: float = 10.0
    drain_seconds: float = 10.0
    idle_seconds: float = 5.0


Format: TypeAlias = Callable[[Line], bytes]


def format_event(line: Line) -> bytes:
    """A server-sent event, with the resume text as its id: a browser sends the last one when it comes back."""
    name = str(type(line).__struct_config__.tag)
    return encode_event(name, encode_line(line).rstrip(b"\n"), line.resume)


async def call_at_disconnect(receive: Receive, end: Callable[[], object]) -> None:
    """Call ``end`` when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    end()


def encode_event(name: str, data: bytes, number: str | None = None) -> bytes:
    """A server-sent event. ``data``: one line; ``number``: its id."""
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {name}\ndata: ".encode() + data + b"\n\n"


@dataclass(slots=True)
class Consumer:
    """Reads one stream for one connection. ``schemas``: takes the schemas that it sends. ``_resume``: the resume text
    of the lines in the buffer."""

    opened: OpenedStream
    query: StreamQuery
    format: Format
    policy: ServePolicy
    schemas: SchemaBook
    buffer: LineBuffer = field(init=False)
    writer: LineWriter = field(init=False)
    _resume: str | None = field(init=False)
    _thread: threading.Thread = field(init=False)
    _stop_reason: str = ""

    def __post_init__(self) -> None:
        opened, query = self.opened, self.query
        vector = opened.stream.resume
        self._resume = vector.format() if vector.tokens else None
        self.writer = LineWriter(opened.layouts, self._resume, query.heartbeats, query.selection)
        self.buffer = LineBuffer(self.policy.buffer_bytes_max, self._resume)
        self._thread = threading.Thread(target=self._run, name="update stream consumer", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.buffer.attach(loop)
        self._thread.start()

    def stop(self, reason: str = "") -> None:
        """End the stream; a reason is sent to the consumer."""
        self._stop_reason = reason
        if not reason:
            self.buffer.abandon()

    def join(self) -> None:
        self._thread.join(JOIN_SECONDS)

    def heartbeat(self) -> bytes | None:
        """The line for an idle stream; None where lines wait, or it is not wanted."""
        resume = self.buffer.find_resume()
        if resume is None or not self.query.heartbeats:
            return None
        vector = ResumeVector.parse(resume)
        line = HeartbeatLine(
            keyspace=vector.keyspace,
            timestamp=time.time(),
            resume=resume,
            min_timestamp=vector.min_timestamp_us / 1e6,
        )
        return self.format(line)

    def _run(self) -> None:
        last = b""
        try:
            last = self._follow_stream()
        except FreshnessError as error:
            log.warning("a consumer of the update stream is disconnected: %s", error)
            last = self.format(ErrorLine.of(error, self._resume))
        except Exception:
            log.exception("a consumer of the update stream is disconnected")
            raise
        finally:
            self.buffer.end(last)
            self.opened.stream.close()

    def _follow_stream(self) -> bytes:
        """Until the consumer goes, is slow, or has all that it asked for. The last line, if any."""
        count, lines_max = 0, self.query.count
        while not self.buffer.is_abandoned:
            if self._stop_reason:
                return self.format(EndLine(reason=self._stop_reason, resume=self._resume))
            self.opened.follow()
            message = self.opened.stream.poll(POLL_SECONDS)
            if message is None:
                continue
            lines = self.writer.lines(message)
            if lines_max is not None:
                lines = cut_lines(lines, lines_max - count)
            for line in lines:
                if isinstance(line, SchemaLine):
                    self.schemas.note(line)
                else:
                    count += 1
            if not lines:
                self._resume = self.writer.resume
                self.buffer.note(self._resume)
            for data, after in _join([(self.format(line), line.resume) for line in lines]):
                if not self.buffer.put(data, after, self.policy.slow_seconds):
                    return self._give_up()
                self._resume = after
            if lines_max is not None and count >= lines_max:
                return b""
        return b""

    def _give_up(self) -> bytes:
        if self.buffer.is_abandoned:
            return b""
        log.warning(
            "a consumer of the update stream did not read for %.0f s and is disconnected", self.policy.slow_seconds
        )
        return self.format(EndLine(reason="too slow: the buffer stayed full", resume=self._resume))


def _join(lines: Iterable[tuple[bytes, str | None]]) -> Iterator[tuple[bytes, str | None]]:
    """Lines put together to about `CHUNK_BYTES_MAX`, each chunk with the resume text of its last line."""
    chunk, resume = bytearray(), None
    for line, after in lines:
        if chunk and len(chunk) + len(line) > CHUNK_BYTES_MAX:
            yield bytes(chunk), resume
            chunk = bytearray()
        chunk += line
        resume = after
    if chunk:
        yield bytes(chunk), resume


class StreamResponse(Response):
    """Sends what a consumer's thread puts into the buffer, for as long as the client reads."""

    def __init__(self, consumer: Consumer, media_type: str, release: Callable[[], None]) -> None:
        super().__init__(media_type=media_type, headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._consumer = consumer
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        consumer = self._consumer
        consumer.start(asyncio.get_running_loop())
        watcher = asyncio.create_task(call_at_disconnect(receive, consumer.stop))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._send_lines(send)
        except TimeoutError:
            log.warning("a consumer of the update stream reads nothing at all and is cut off")
        finally:
            watcher.cancel()
            consumer.stop()
            await asyncio.get_running_loop().run_in_executor(None, consumer.join)
            self._release()

    async def _send_lines(self, send: Send) -> None:
        policy, buffer = self._consumer.policy, self._consumer.buffer
        while not buffer.is_abandoned:
            data = await buffer.take(policy.idle_seconds)
            if data is None:
                data = self._consumer.heartbeat()
                if data is None:
                    continue
            is_last = data == b""
            message: MutableMapping[str, Any] = {"type": "http.response.body", "body": data}
            async with asyncio.timeout(policy.slow_seconds + policy.drain_seconds):
                await send({**message, "more_body": not is_last})
            if is_last:
                return


class TooManyConsumers(FreshnessError):
    is_retryable = True
    exit_code = 3


class StreamHub:
    """The consumers that are connected: at most ``http.consumers_max``."""

    def __init__(self, opener: StreamOpener, policy: ServePolicy | None = None) -> None:
        self.opener = opener
        self.policy = policy or ServePolicy()
        self.schemas = SchemaBook()
        self._lock = threading.Lock()
        self.count = 0
        self._by_number: dict[int, Consumer] = {}

    def open(self, query: StreamQuery, media_type: str) -> StreamResponse:
        """The response for a new consumer. Raises `TooManyConsumers` and what `StreamOpener.open` raises."""
        self._admit()
        try:
            opened = self.opener.open(query)
        except BaseException:
            self._leave(None)
            raise
        line_format = format_event if media_type == EVENTS else encode_line
        consumer = Consumer(opened, query, line_format, self.policy, self.schemas)
        with self._lock:
            self._by_number[id(consumer)] = consumer
        return StreamResponse(consumer, media_type, lambda: self._leave(consumer))

    def close(self) -> None:
        """Tell all consumers that the service ends, and where to go on."""
        with self._lock:
            consumers = list(self._by_number.values())
        for consumer in consumers:
            consumer.stop("the service stops")

    def _admit(self) -> None:
        consumers_max = self.opener.read_config().http.consumers_max
        with self._lock:
            if self.count >= consumers_max:
                raise TooManyConsumers(
                    f"{self.count} consumers are connected", hint="try again later, or raise http.consumers_max"
                )
            self.count += 1

    def _leave(self, consumer: Consumer | None) -> None:
        with self._lock:
            self.count -= 1
            self._by_number.pop(id(consumer), None)


class StreamParameters(BaseModel):
    """The query of the update stream, as an address has it."""

    keyspace: str | None = Field(None, description="needed if there are several")
    key_range: str = Field("-", description='such as "-80"')
    since: str | None = Field(None, description='"now", a resume text, an event token, or a time with zone')
    tables: str | None = Field(None, description='names and patterns, such as "orders,order_*"')
    columns: str | None = Field(None, description='COLUMN or TABLE.COLUMN, such as "id,orders.*"')
    images: Images = Field("full", description="whole rows, or their primary keys alone")
    minimize_skew: bool | None = Field(None, description="align the shards in time")
    count: int | None = Field(None, ge=1, description="lines until the end")
    heartbeats: bool = Field(True, description="also lines of invalidators' heartbeats, and of an idle stream")
    refresh: str | None = Field(None, description='also the rows that tables have now, such as "orders,customers"')
    refresh_from: Literal["primary", "replica"] = Field("primary", description="the server whose rows are read")
    refresh_rows_per_second: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="that are read, at most"
    )
    refresh_chunk_rows: int = Field(CHUNK_ROWS, ge=1, le=CHUNK_ROWS_MAX, description="that are read at once")

    def make_query(self, grant: Grant, last_event_id: str | None) -> StreamQuery:
        """``last_event_id``: the resume text of a browser that comes back: it repeats the address it began with."""
        return StreamQuery(
            self.keyspace,
            self.key_range,
            last_event_id or ("now" if self.since is None else self.since),
            grant.choose_tables(read_names(self.tables, "tables")),
            self.minimize_skew,
            RefreshRequest(
                () if last_event_id else read_names(self.refresh, "refresh"),
                self.refresh_from,
                self.refresh_rows_per_second,
                self.refresh_chunk_rows,
                Selection(read_names(self.columns, "columns"), grant.hidden_columns, self.images),
            ),
            self.count,
            self.heartbeats,
        )


def add_routes(v1: APIRouter, hub: StreamHub, reload: Reload | None = None) -> None:
    """The routes of the stream, under "/v1". ``reload``: without it the topology is only read."""
    lines: dict[int | str, dict[str, Any]] = {
        200: {"description": "Lines, without an end", "content": {LINES: {}, EVENTS: {}}}
    }

    @v1.get("/update-stream", response_class=Response, responses=lines | describe_refusals(400, 403, 410, 422, 503))
    def update_stream(
        request: Request,
        parameters: Annotated[StreamParameters, Query()],
        accept: Annotated[str, Header()] = "",
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> Response:
        """Every row change from there on, as JSON lines, or as server-sent events where Accept asks for them."""
        query = parameters.make_query(find_grant(request.scope), last_event_id)
        return hub.open(query, EVENTS if wants_events(accept) else LINES)

    @v1.get("/schemas/{schema_id}", responses=describe_refusals(400, 404, 422))
    def schema(
        request: Request,
        schema_id: str,
        form: Annotated[
            SchemaFormat, Query(alias="format", description="as the stream has it, or for a library")
        ] = "line",
    ) -> dict[str, Any]:
        """The columns of a table, as a line of the update stream named them by this id."""
        found = hub.schemas.find(schema_id)
        if found is None or not find_grant(request.scope).shows(found):
            raise SchemaUnknown(
                f"no schema {schema_id!r} was sent to a consumer of this service lately",
                hint="read /v1/update-stream from before the row: the line with event `schema` has the columns,"
                " and the id is known here from then on",
            )
        return format_schema(found, form)

    _add_topology(v1, hub.opener, reload)


def _add_topology(v1: APIRouter, opener: StreamOpener, reload: Reload | None) -> None:
    @v1.get("/token", responses=describe_refusals(400, 422, 503))
    def token(keyspace: str | None = None, shard: str | None = None) -> dict[str, Any]:
        """All that the shard's primary has executed by now, as an event token."""
        head = opener.read_token(keyspace, shard)
        return {
            "token": str(head),
            "lineage": head.lineage,
            "shard": head.shard,
            "epoch": head.epoch,
            "position": str(head.position),
        }

    @v1.get("/topology", responses=describe_refusals(400))
    def topology() -> dict[str, Any]:
        """The configured topology, without passwords."""
        return describe_topology(opener.read_config())

    if reload is not None:

        @v1.put("/topology", responses=describe_refusals(400, 408, 413, 422))
        def put_topology(document: dict[str, Any]) -> dict[str, Any]:
            """Go on with another topology."""
            return reload(document)


def wants_events(accept: str) -> bool:
    """Whether a client asks for server-sent events."""
    return EVENTS in accept.lower()
