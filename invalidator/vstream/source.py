"""A source that follows a Vitess keyspace through vtgate's VStream.

`VStream` follows any shards of a keyspace from a vector of positions, `VStreamSource` one of them, as the role
`freshness.stream.source.Source`. A thread receives and decodes while the caller applies; between them is a bounded
mailbox, so that a slow caller slows vtgate and nothing piles up here. Neither reconnects automatically: after an
error the caller opens it again from what was acknowledged (F14); vtgate repeats what it is not sure of.

vtgate's own heartbeats only show that vtgate lives; they are not a watermark. Copies of tables are never asked for.
Needs the extra ``[vitess]`` (grpcio, protobuf), so it is imported only if a keyspace of Vitess is configured.
"""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any, Final

import grpc

from freshness.config.vtgate_address import VtgateAddress
from freshness.errors import ConfigError, HistoryPurged, SourceUnavailable, SourceUnsuitable
from freshness.login import AGAIN_HINT, find_password
from freshness.position import Position
from freshness.stream.heartbeat import HEARTBEAT_TABLE
from freshness.stream.source import Transaction
from freshness.stream.tables import MatchedTables, to_expression
from invalidator.mailbox import QUEUE_BOUNDS, Mailbox, QueueBounds, measure
from invalidator.vstream.error import PURGED_HINT, ColumnsUnfit, NoTablet, translated
from invalidator.vstream.position import format_gtid, parse_gtid
from invalidator.vstream.proto import vitess_pb2 as pb
from invalidator.vstream.reader import ShardTransaction, Splitter, VStreamReader, ended
from invalidator.vstream.transaction import BOUNDS, Bounds, ShardAssembler

KEEPALIVE_ANSWER_SECONDS: Final = 10.0


def open_channel(address: VtgateAddress) -> Any:
    """A channel that connects with its first use. Raises `SourceUnsuitable` for files that cannot be read."""
    options = [
        ("grpc.max_receive_message_length", address.message_bytes_max),
        ("grpc.keepalive_time_ms", round(address.keepalive_seconds * 1000)),
        ("grpc.keepalive_timeout_ms", round(KEEPALIVE_ANSWER_SECONDS * 1000)),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),  # a connection of its own: another vtgate may take it
    ]
    if not address.tls:
        return grpc.insecure_channel(address.target, options)
    try:
        ca, cert, key = (
            path.read_bytes() if path is not None else None
            for path in (address.tls_ca, address.tls_cert, address.tls_key)
        )
    except OSError as error:
        raise SourceUnsuitable(
            f"{address}: {error.filename} cannot be read: {error.strerror}", hint="check tls_ca, tls_cert, tls_key"
        ) from error
    return grpc.secure_channel(address.target, grpc.ssl_channel_credentials(ca, key, cert), options)


def wait_connected(channel: Any, address: VtgateAddress) -> bool:
    """Whether it is connected; False as soon as the first try has failed: then a call raises the reason. Raises
    `SourceUnavailable` if nothing answers within the address's ``connect_seconds``."""
    states: queue.SimpleQueue[Any] = queue.SimpleQueue()
    channel.subscribe(states.put, try_to_connect=True)
    deadline = time.monotonic() + address.connect_seconds
    try:
        while True:
            state = states.get(timeout=max(0.0, deadline - time.monotonic()))
            if state is grpc.ChannelConnectivity.READY:
                return True
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                return False
    except queue.Empty:
        raise SourceUnavailable(
            f"{address}: no answer within {address.connect_seconds:g} s",
            hint="is vtgate up and its gRPC port reachable from here?",
        ) from None
    finally:
        channel.unsubscribe(states.put)


METHOD: Final = "/vtgateservice.Vitess/VStream"
SILENCE_SECONDS: Final = 15.0
"""A stream on which not even a heartbeat of vtgate's came for so long is given up."""

IDLE_SECONDS: Final = 30.0
"""A stream that brought nothing but vtgate's heartbeats for so long is given up. Each shard has heartbeats of ours.
vtgate beats also while it looks for a tablet, or waits for one that is late: a new stream may find one at once."""

CURRENT_SECONDS: Final = 30.0

_TABLET_TYPES: Final = {"primary": pb.PRIMARY, "replica": pb.REPLICA, "rdonly": pb.RDONLY}


class VStream:
    """Some or all shards of a keyspace in one stream. `open`, `poll`, `close` belong to one thread of the caller."""

    def __init__(
        self,
        address: VtgateAddress,
        tables: Mapping[str, Iterable[str]] | MatchedTables,
        *,
        key_range: str = "",
        silence_seconds: float = SILENCE_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
        bounds: Bounds = BOUNDS,
        queue: QueueBounds = QUEUE_BOUNDS,
    ) -> None:
        """``tables``: each with the columns that are wanted of it (those of the keys), none for all of them; or all
        that match, with all columns. ``key_range``: only rows whose keyspace id lies in it ("-80"), by the tables'
        primary vindexes."""
        assert silence_seconds >= 2, "vtgate's heartbeats come in whole seconds"
        self._address = address
        self._columns: dict[str, tuple[str, ...]] = {}
        if not isinstance(tables, MatchedTables):
            self._columns = {name: tuple(each) for name, each in tables.items() if name != HEARTBEAT_TABLE}
        self._tables: Set[str] = tables if isinstance(tables, MatchedTables) else frozenset(self._columns)
        self._key_range = key_range
        self._silence_seconds = silence_seconds
        self._idle_seconds = idle_seconds
        self._bounds = bounds
        self._queue = queue
        self._reader: VStreamReader | None = None
        self._positions: dict[str, Position] = {}
        self._asks_whole_rows = False

    @property
    def positions(self) -> dict[str, Position]:
        """By shard: the start and all that `poll` has returned. From there the same stream goes on."""
        return dict(self._positions)

    def open(self, start: Mapping[str, Position]) -> None:
        """Stream every transaction of these shards that is not in the shard's position. Raises `SourceUnavailable`
        and `SourceUnsuitable` where vtgate cannot be reached, `HistoryPurged` for an empty position. `poll` raises
        what vtgate refuses in the request itself."""
        self.close()
        assert start, "no shards"
        for shard, position in start.items():
            if position.is_empty:
                # An empty text would ask vtgate for a copy of the tables.
                raise HistoryPurged(
                    f"{self._address}: the start position of shard {shard} is empty",
                    hint="tablets begin from a backup, so the beginning of history is in no log of theirs",
                )
        gtids = {shard: format_gtid(position) for shard, position in start.items()}
        channel, call = self._call(gtids)
        splitter = Splitter(
            self._address.keyspace,
            {
                shard: ShardAssembler(
                    self._address.keyspace, shard, position, self._tables, HEARTBEAT_TABLE, self._bounds
                )
                for shard, position in start.items()
            },
        )
        mailbox: Mailbox[ShardTransaction] = Mailbox(
            lambda mails: measure([mail.transaction for mail in mails]), self._queue
        )
        self._positions = dict(start)
        self._reader = VStreamReader(self._address, channel, call, splitter, mailbox)
        self._reader.start()

    def poll(self, timeout_seconds: float, transactions_max: int) -> list[ShardTransaction]:
        """As `Source.poll`. Raises `ShardsMoved` too, if the shards were replaced by others."""
        reader = self._reader
        if reader is None:
            raise SourceUnavailable(f"the stream of {self._address} is not open")
        try:
            taken = reader.mailbox.take(timeout_seconds, transactions_max)
        except ColumnsUnfit:
            self._asks_whole_rows = True  # from the next `open` on, until one that brings something
            raise
        if taken:
            self._asks_whole_rows = False
        now = time.monotonic()
        if not taken and now - reader.heard_at > self._silence_seconds:
            raise SourceUnavailable(
                f"{self._address}: nothing came for {self._silence_seconds:g} s, not even a heartbeat of vtgate",
                hint="is vtgate hung, or the network cut?",
            )
        if not taken and now - reader.event_at > self._idle_seconds:
            raise NoTablet(
                f"{self._address}: for {self._idle_seconds:g} s nothing came but heartbeats of vtgate, though"
                " heartbeats of ours are written",
                hint="opened again, since vtgate may have found no tablet, or one that is late",
            )
        for shard, transaction in taken:
            self._positions[shard] = self._positions[shard].union(transaction.position)
        return taken

    def close(self) -> None:
        """End the stream, within `JOIN_SECONDS`. Harmless when it is not open."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.stop()

    def find_current(self, timeout_seconds: float = CURRENT_SECONDS) -> dict[str, Position]:
        """Where every serving shard of the keyspace is now, on the tablets that vtgate chose: a start for `open`.
        Raises `SourceUnavailable`, `SourceUnsuitable`."""
        channel, call = self._call({"": "current"}, timeout_seconds)
        try:
            for response in call:
                for event in response.events:
                    entries = event.vgtid.shard_gtids
                    if entries and all(entry.gtid not in ("", "current") for entry in entries):
                        return {
                            entry.shard: parse_gtid(entry.gtid, f"the position of shard {entry.shard}")
                            for entry in entries
                        }
        except grpc.RpcError as error:
            raise translated(error, self._address) from error
        finally:
            call.cancel()
            channel.close()
        raise ended(self._address)

    def _call(self, gtids: Mapping[str, str], timeout_seconds: float | None = None) -> tuple[Any, Any]:
        address = self._address
        request = pb.VStreamRequest(
            tablet_type=_TABLET_TYPES[address.tablet_type],
            vgtid=pb.VGtid(
                shard_gtids=[
                    pb.ShardGtid(keyspace=address.keyspace, shard=shard, gtid=gtid) for shard, gtid in gtids.items()
                ]
            ),
            filter=pb.Filter(rules=list(self._rules()), field_event_mode=pb.BEST_EFFORT),
            flags=pb.VStreamFlags(
                heartbeat_interval=max(1, math.floor(self._silence_seconds / 3)),
                stop_on_reshard=True,
                cells=address.cells,
                exclude_keyspace_from_table_name=True,
                transaction_chunk_size=address.chunk_bytes,
            ),
        )
        try:
            password = find_password(address.password, address.user, address.host, address.port)
        except ConfigError as error:
            raise SourceUnavailable(f"{address}: {error.message}", hint=error.hint or AGAIN_HINT) from error
        login = (("username", address.user), ("password", password)) if address.user else ()
        channel = open_channel(address)
        try:
            is_ready = wait_connected(channel, address)
            open_stream = channel.unary_stream(
                METHOD,
                request_serializer=pb.VStreamRequest.SerializeToString,
                response_deserializer=pb.VStreamResponse.FromString,
            )
            call = open_stream(request, timeout=timeout_seconds, metadata=login)
            if not is_ready:
                # It fails at once, and says why.
                call.code()
                raise translated(call, address)
        except BaseException:
            channel.close()
            raise
        return channel, call

    def _rules(self) -> Iterator[pb.Rule]:
        where = f" where in_keyrange('{self._key_range}')" if self._key_range else ""
        if isinstance(self._tables, MatchedTables):
            for pattern in self._tables.patterns:
                yield pb.Rule(match=f"/{to_expression(pattern)}/", filter=self._key_range)
        for table, columns in sorted(self._columns.items()):
            named = () if self._asks_whole_rows else columns
            chosen = ", ".join(map(_quote, named)) or "*"
            yield pb.Rule(match=table, filter=f"select {chosen} from {_quote(table)}{where}")
        yield pb.Rule(match=HEARTBEAT_TABLE, filter=f"select * from {_quote(HEARTBEAT_TABLE)}")


class VStreamSource:
    """One shard of a keyspace, as `freshness.stream.source.Source`. ``options``: options of `VStream`.
    ``read_purged``: reads the position that a tablet has purged. It is called if two streams in a row bring nothing:
    at first vtgate may only be looking for a tablet, and one made from a backup has purged more than others."""

    def __init__(
        self,
        address: VtgateAddress,
        shard: str,
        tables: Mapping[str, Iterable[str]] | MatchedTables,
        *,
        read_purged: Callable[[], Position] | None = None,
        **options: Any,
    ) -> None:
        self._shard = shard
        self._read_purged = read_purged
        self._stuck_at: Position | None = None
        self._stream = VStream(address, tables, **options)

    def open(self, start: Position) -> None:
        """See `Source.open`. `poll` raises what vtgate refuses in the request itself."""
        self._stream.open({self._shard: start})

    def poll(self, timeout_seconds: float, transactions_max: int) -> list[Transaction]:
        """See `Source.poll`. Raises `ShardsMoved` and `SourceUnsuitable`, too."""
        try:
            return [each.transaction for each in self._stream.poll(timeout_seconds, transactions_max)]
        except NoTablet as error:
            position = self._stream.positions[self._shard]
            if self._stuck_at == position:
                self._require_history(position, error)
            self._stuck_at = position
            raise

    def _require_history(self, position: Position, error: NoTablet) -> None:
        if self._read_purged is None:
            return
        purged = self._read_purged()
        if not position.contains(purged):
            raise HistoryPurged(
                f"shard {self._shard}: its tablets have purged {str(purged.subtract(position))[:200]}, which the"
                f" stream has yet to bring; vtgate says: {error.message}",
                hint=PURGED_HINT,
            ) from error

    def close(self) -> None:
        """See `Source.close`. Returns within `JOIN_SECONDS`."""
        self._stream.close()

    def find_current(self, timeout_seconds: float = CURRENT_SECONDS) -> Position:
        """The shard's current position, to start there. Raises as `VStream.find_current`."""
        current = self._stream.find_current(timeout_seconds)
        if self._shard not in current:
            raise SourceUnsuitable(
                f"the keyspace has no shard {self._shard}: it has {sorted(current)}",
                hint="correct the topology; an unsharded keyspace has one shard, 0 or -",
            )
        return current[self._shard]


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
