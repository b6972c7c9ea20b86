"""The thread that receives a VStream, and the hand-out of its events to their shards. For
``invalidator.vstream.source``."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import grpc

from freshness.config.vtgate_address import VtgateAddress
from freshness.errors import FreshnessError, SourceUnavailable, StreamStopped
from freshness.position import Position
from freshness.stream.source import Transaction
from invalidator.mailbox import Mailbox
from invalidator.vstream.error import translated
from invalidator.vstream.position import parse_gtid
from invalidator.vstream.proto import vitess_pb2 as pb
from invalidator.vstream.transaction import ShardAssembler

JOIN_SECONDS: Final = 5.0


class ShardsMoved(FreshnessError):
    """The stream's shards ``old`` are at their end: from here on writes go to the shards of ``new``. Raised when
    everything before was delivered; handled by the owner of the topology.

    Open the stream of each new shard at the position given with it; it continues at the end of the old ones, in the
    lineage of the new shard. The journal's own transaction is not delivered: a stream that is opened again from what
    was delivered meets the journal again. ``journal_id`` is the same for every participant.
    """

    exit_code = 4

    def __init__(self, keyspace: str, journal_id: int, old: tuple[str, ...], new: Mapping[str, Position]) -> None:
        super().__init__(
            f"keyspace {keyspace}: shards {', '.join(old)} were replaced by {', '.join(sorted(new))}",
            hint="put the new shards into freshness.toml, each with a lineage of its own, and load it (SIGHUP); who"
            " reads VStream itself goes on at the positions of the journal",
        )
        self.keyspace = keyspace
        self.journal_id = journal_id
        self.old = old
        self.new = dict(new)

    def __reduce__(self) -> tuple[Any, ...]:
        return (ShardsMoved, (self.keyspace, self.journal_id, self.old, self.new))


class ShardTransaction(NamedTuple):
    """A transaction and the shard that it is of."""

    shard: str
    transaction: Transaction


class Splitter:
    """Hands each event to its shard, and notices when all shards of a journal have come to it."""

    def __init__(self, keyspace: str, assemblers: dict[str, ShardAssembler]) -> None:
        self._keyspace = keyspace
        self._assemblers = assemblers

    def add(self, event: pb.VEvent) -> list[ShardTransaction]:
        """Raises `StreamStopped` and `ShardsMoved`."""
        if event.type == pb.HEARTBEAT:
            return []
        shard = self._find_shard(event)
        assembler = self._assemblers[shard]
        done = [ShardTransaction(shard, transaction) for transaction in assembler.add(event)]
        if event.type == pb.JOURNAL and assembler.journal is not None:
            self._hand_over(assembler.journal)
        return done

    def _find_shard(self, event: pb.VEvent) -> str:
        shard: str = event.shard
        if not shard and len(self._assemblers) == 1:
            (shard,) = self._assemblers  # versions before 13 do not name it
        if shard not in self._assemblers or event.keyspace not in ("", self._keyspace):
            raise StreamStopped(
                f"an event of {event.keyspace}/{event.shard or '?'} in a stream of {self._keyspace}"
                f" {sorted(self._assemblers)}",
                hint="was the keyspace resharded? Open the stream with its shards of now",
            )
        return shard

    def _hand_over(self, journal: pb.Journal) -> None:
        """Participants are all old shards of the workflow, also those that this stream does not have. It waits for
        its own."""
        old = sorted({each.shard for each in journal.participants if each.keyspace == self._keyspace})
        journals = [self._assemblers[shard].journal for shard in old if shard in self._assemblers]
        if any(each is None or each.id != journal.id for each in journals):
            return  # the others are on their way to it
        new = {
            entry.shard: parse_gtid(entry.gtid, f"the position of shard {entry.shard} in a journal")
            for entry in journal.shard_gtids
        }
        raise ShardsMoved(self._keyspace, journal.id, tuple(old), new)


class VStreamReader:
    """The thread that receives, decodes, and puts into the mailbox, until an error or `stop`. ``heard_at``: when
    something came last. ``event_at``: the same without vtgate's own heartbeats."""

    def __init__(
        self, address: VtgateAddress, channel: Any, call: Any, splitter: Splitter, mailbox: Mailbox[ShardTransaction]
    ) -> None:
        self.mailbox = mailbox
        self.heard_at = self.event_at = time.monotonic()
        self._address = address
        self._channel = channel
        self._call = call
        self._splitter = splitter
        self._thread = threading.Thread(target=self._run, name=f"vstream {address.target}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread: it waits either in the mailbox or in the call."""
        self.mailbox.close()
        self._call.cancel()
        self._thread.join(JOIN_SECONDS)
        self._channel.close()

    def _run(self) -> None:
        try:
            for response in self._call:
                for event in response.events:
                    for done in self._splitter.add(event):
                        if not self.mailbox.put([done]):
                            return
                self.heard_at = time.monotonic()  # not before: waiting for room in the mailbox is not silence
                if any(event.type != pb.HEARTBEAT for event in response.events):
                    self.event_at = self.heard_at
            raise ended(self._address)
        except Exception as error:  # noqa: BLE001 - it must reach the caller, whatever it is
            self.mailbox.fail(self._describe(error))
        finally:
            self._call.cancel()

    def _describe(self, error: Exception) -> FreshnessError:
        if isinstance(error, FreshnessError):
            return error
        if isinstance(error, grpc.RpcError):
            described = translated(error, self._address)
        else:
            described = StreamStopped(
                f"{self._address}: an event could not be decoded: {error!r}",
                hint="report it with the version of Vitess",
            )
        described.__cause__ = error
        return described


def ended(address: VtgateAddress) -> SourceUnavailable:
    """The error for a stream that ended without one."""
    return SourceUnavailable(
        f"{address}: vtgate ended the stream", hint="it shuts down, or moves streams to another vtgate"
    )
