"""The process of a prober: streams, connections, sweeps, until it is to stop. `invalidator probe`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from freshness.comparison.comparison import Comparison
from freshness.comparison.entry import ENTRIES_PER_BATCH_MAX
from freshness.comparison.scope import Connections, load_scope
from freshness.config.config import Config
from freshness.errors import FreshnessError
from freshness.keys.placement import Placement
from freshness.nodes.listing import open_entry_keys, require_listing
from invalidator.probe.prober import Budget, ProbePlan, Prober
from invalidator.probe.tally import ProbeTally
from invalidator.stream.open import OpenedStream, StreamOpener
from invalidator.stream.query import StreamQuery

POLL_SECONDS: Final = 0.1
MESSAGES_PER_ROUND_MAX: Final = 1_000
SETTLE_SECONDS: Final = 10.0
"""How long the last suspects are looked at before the end."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ProbeProcess:
    """``read_config``: reads the current configuration; everything is opened again for another one. ``is_stopping``:
    called several times a second."""

    read_config: Callable[[], Config]
    plan: ProbePlan
    is_stopping: Callable[[], bool]
    tally: ProbeTally = field(default_factory=ProbeTally)

    def run(self, seconds: float | None = None) -> None:
        """Probe until ``is_stopping``, or for the seconds. Raises the errors that end a stream, and `ConfigError`."""
        ends_at = None if seconds is None else time.monotonic() + seconds
        while not self._is_over(ends_at):
            config = self.read_config()
            require_listing(config.cache.access)
            with ExitStack() as stack:
                prober = self._open(config, stack)
                opener = StreamOpener(self.read_config)
                streams = []
                for name in config.keyspaces:
                    opened = opener.open(StreamQuery(name, minimize_skew=False), pause_seconds=POLL_SECONDS)
                    stack.callback(opened.stream.close)
                    streams.append(opened)
                sweeps = Sweeps(config, prober)
                stack.callback(sweeps.close)
                is_behind = False
                while self.read_config() is config and not self._is_over(ends_at):
                    # Not woken by each change: most of them are not sampled
                    time.sleep(0 if is_behind else POLL_SECONDS)
                    is_behind = sum(_take(opened, prober) for opened in streams) > 0
                    prober.run_due()
                    sweeps.run_due()
                self._settle(prober)

    def sweep_once(self) -> None:
        """Compare every sampled entry once, without the streams. Raises `ConfigError` if it cannot."""
        config = self.read_config()
        require_listing(config.cache.access)
        with ExitStack() as stack:
            prober = self._open(config, stack)
            sweeps = Sweeps(config, prober)
            stack.callback(sweeps.close)
            while not self.tally.sweeps and not self.is_stopping():
                sweeps.run_due()
                prober.run_due()
                time.sleep(POLL_SECONDS / 2)
            self._settle(prober)

    def _open(self, config: Config, stack: ExitStack) -> Prober:
        scope = load_scope(config)
        servers = stack.enter_context(closing(Connections(scope)))
        comparison = Comparison(scope, servers.find_node, servers.find_primary, servers.find_replicas)
        return Prober(scope, comparison, servers.find_node, self.plan, time.monotonic, self.tally)

    def _settle(self, prober: Prober) -> None:
        ends_at = time.monotonic() + SETTLE_SECONDS
        while not (prober.is_settled or self.is_stopping() or time.monotonic() > ends_at):
            time.sleep(POLL_SECONDS)
            prober.look_again()
        prober.give_up()

    def _is_over(self, ends_at: float | None) -> bool:
        return self.is_stopping() or (ends_at is not None and time.monotonic() > ends_at)


def _take(opened: OpenedStream, prober: Prober) -> bool:
    """Take the messages that the stream has by now. True if there may be more."""
    for _ in range(MESSAGES_PER_ROUND_MAX):
        message = opened.stream.poll(0)
        if message is None:
            return False
        items, _ = opened.finder.find(message.transaction)
        prober.note_change(items, message.token.lineage, message.token.position)
    return True


class Sweeps:
    """Lists the entries of all nodes again and again, and has the sampled ones compared, no faster than the rate."""

    def __init__(self, config: Config, prober: Prober) -> None:
        self._config = config
        self._prober = prober
        self._node_for = Placement(config.cache.nodes, config.cache.namespace).node_for
        self._keys: Generator[bytes] | None = None
        self._begins_at = time.monotonic()
        self._budget = Budget(prober.plan.rate, self._begins_at)

    def run_due(self) -> None:
        """Compare as many as the rate allows by now."""
        now = time.monotonic()
        if self._keys is None and now < self._begins_at:
            return
        count = min(self._budget.available(now), ENTRIES_PER_BATCH_MAX)
        if not count:
            return
        if self._keys is None:
            self._begins_at = now + self._prober.plan.sweep_seconds
            self._keys = self._list()
        items = list(islice(self._keys, count))
        self._budget.spend(len(items))
        self._prober.compare_now(items)
        if len(items) < count:
            self._keys = None
            self._prober.tally.sweeps += 1

    def _list(self) -> Generator[bytes]:
        """The sampled keys, each from the node that readers ask for it."""
        samples, node_for = self._prober.plan.samples, self._node_for
        cache = self._config.cache
        for node in cache.nodes:
            try:
                with open_entry_keys(cache.access, node, cache.namespace) as keys:
                    yield from (key for key in keys if samples(key) and node_for(key) == node)
            except FreshnessError as error:
                self._prober.tally.note_error(str(error))
                log.warning("the entries of %s are not compared: %s", node, error)

    def close(self) -> None:
        """Close the list that is under way."""
        if self._keys is not None:
            self._keys.close()
