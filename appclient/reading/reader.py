"""The last stage of a read: the cache nodes, by the procedure of ``freshness.algorithm.read``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from appclient.connection.pool import Pool
from appclient.telemetry.observer import Load
from freshness.algorithm.driver import BlockingDriver
from freshness.algorithm.envelope import record_key
from freshness.algorithm.lookup import Lookup
from freshness.algorithm.node import CacheNode
from freshness.algorithm.read import read_through
from freshness.algorithm.request import Get, Item
from freshness.algorithm.shortway import find_hit, find_hits
from freshness.algorithm.state import Demand, Read, ReadContext
from freshness.algorithm.together import read_together
from freshness.algorithm.view import NodeView
from freshness.config.cache import CacheConfig
from freshness.errors import FreshnessError, Overloaded
from freshness.network import Network

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reader:
    """One read's connections to the nodes, and copies of their records."""

    nodes: Mapping[str, CacheNode]
    driver: BlockingDriver
    context: ReadContext

    def close(self) -> None:
        """Close the connections to all nodes."""
        for node in self.nodes.values():
            node.close()


@dataclass(slots=True, kw_only=True, eq=False)
class NodeReads:
    """Reads on the nodes; each has a reader to itself, which is lent again.

    ``open_node``: a connection to the node of a name. ``make_context``: the context of a new reader. ``load``:
    answers a `Load` step, ``load_together`` one in one snapshot.
    ``recall``: the copy of a lookup that may be served above the database's limit, or None.
    ``note``: called with the reads that took the procedure.
    """

    settings: CacheConfig
    network: Network
    open_node: Callable[[str], CacheNode]
    make_context: Callable[[], ReadContext]
    load: Load
    load_together: Load
    recall: Callable[[Lookup], Read | None]
    note: Callable[[Sequence[Lookup], Sequence[Read]], None]
    readers: Pool[Reader] = field(init=False)

    def __post_init__(self) -> None:
        self.readers = Pool(self.settings.connections_max, "to cache nodes", Reader.close, self.network)

    def read(self, lookups: Sequence[Lookup], demand: Demand, _: Any = None) -> list[Read]:
        """Hits by the short way, and the others by the procedure."""
        reader = self.readers.take()
        try:
            if reader is None:
                reader = self.open_reader()
            if demand.max_staleness_seconds is not None or demand.is_together:
                return self._run(reader, lookups, demand)
            if len(lookups) == 1:
                (lookup,) = lookups
                try:
                    hit = find_hit(reader.context, lookup, reader.nodes[lookup.node].find, demand.at_least)
                except FreshnessError as error:
                    log.debug("%s", error)  # the procedure says what follows from it
                else:
                    if hit is not None:
                        return [hit]
                return self._run(reader, lookups, demand)
            return self._read_many(reader, lookups, demand)
        except BaseException:
            if reader is not None:
                reader.context.views.clear()  # an interruption may have closed the connections that they are of
            raise
        finally:
            self.readers.give_back(reader)

    def look(self, lookup: Lookup) -> tuple[NodeView, bytes | None]:
        """The records of a lookup's node, and behind them its item. Raises what the node raises."""
        reader = self.readers.take()
        try:
            if reader is None:
                reader = self.open_reader()
            context = reader.context
            asked = [Get(record_key(context.namespace, name), is_bound=True) for name in context.lineages]
            fetched_at = context.clock()
            *records, item = reader.nodes[lookup.node].perform([*asked, Get(lookup.item)])
        except BaseException:
            if reader is not None:
                reader.context.forget(lookup.node)  # the connection that its records were read on is closed
            raise
        finally:
            self.readers.give_back(reader)
        view = NodeView(lookup.node, context.lineages, records, fetched_at, context.ring)
        return view, item.value if isinstance(item, Item) else None

    def open_reader(self) -> Reader:
        """A reader of all nodes; it connects at the first request to each."""
        nodes = {name: self.open_node(name) for name in self.settings.all_nodes}
        sleep, run_all = self.network.sleep, self.network.run_all
        driver = BlockingDriver(nodes, sleep, load=self.load, load_together=self.load_together, run_all=run_all)
        return Reader(nodes, driver, self.make_context())

    def _run(self, reader: Reader, lookups: Sequence[Lookup], demand: Demand) -> list[Read]:
        """The procedure; above the limit of database reads, copies if each lookup has one that may be served. A
        connection that was closed while idle is replaced before anything is asked on it."""
        for name in {lookup.node for lookup in (*lookups, *demand.earlier)}:
            if not (node := reader.nodes[name]).is_connected:
                node.close()
                reader.context.forget(name)
        try:
            procedure = read_together if demand.is_together else read_through
            reads = reader.driver.run(procedure(reader.context, lookups, demand))
        except Overloaded:
            if not demand.may_be_stale:
                raise
            recalled = [read for read in map(self.recall, lookups) if read is not None]
            if len(recalled) < len(lookups):
                raise
            return recalled
        self.note(lookups, reads)
        return reads

    def _read_many(self, reader: Reader, lookups: Sequence[Lookup], demand: Demand) -> list[Read]:
        hits = reader.driver.run(find_hits(reader.context, lookups, demand.at_least))
        missing = [lookup for lookup, hit in zip(lookups, hits, strict=True) if hit is None]
        others = iter(self._run(reader, missing, demand) if missing else ())
        return [next(others) if hit is None else hit for hit in hits]
