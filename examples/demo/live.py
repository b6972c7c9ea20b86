"""The run while it goes on: a live table on a terminal, a line now and then elsewhere. All of it on stderr."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from examples.demo.run import Sample
from examples.demo.strategy import STRATEGIES

LINE_SECONDS: Final = 5.0
RECENT_WRITES: Final = 200


class LineView:
    """Plain lines, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown_at = time.monotonic()

    def say(self, text: str) -> None:
        self._console.print(f"demo: {text}", highlight=False, markup=False, soft_wrap=True)

    def show(self, sample: Sample) -> None:
        now = time.monotonic()
        if now - self._shown_at < LINE_SECONDS:
            return
        self._shown_at = now
        parts = [
            f"{name} {meter.reads} reads, {_rate(meter.hits, meter.reads)} hits, {meter.stale_hits} stale"
            for name, meter in ((name, sample.meters[name]) for name in STRATEGIES)
        ]
        lag = sample.replica_lag_seconds
        late = "" if lag is None else f", replica {lag:.1f} s late"
        self.say(f"{sample.seconds_left:.0f} s left{late}: {'; '.join(parts)}")


class LiveView:
    """A table that changes in place."""

    def __init__(self, console: Console, live: Live) -> None:
        self._console = console
        self._live = live
        self._before: tuple[float, dict[str, int]] = (time.monotonic(), {})

    def say(self, text: str) -> None:
        self._console.print(f"[dim]{text}[/dim]", highlight=False)

    def show(self, sample: Sample) -> None:
        now = time.monotonic()
        elapsed, reads = now - self._before[0], {name: sample.meters[name].reads for name in STRATEGIES}
        table = Table("strategy", box=None, header_style="bold")
        for heading in ("reads/s", "hit rate", "stale reads after ack", "lag p50", "lag p99", "not yet ack"):
            table.add_column(heading, justify="right")
        for name in STRATEGIES:
            meter = sample.meters[name]
            rate = (reads[name] - self._before[1].get(name, 0)) / elapsed if elapsed > 0 else 0.0
            table.add_row(
                name,
                f"{rate:.0f}",
                _rate(meter.hits, meter.reads),
                Text(f"{meter.stale_hits:,}", style="red" if meter.stale_hits else "green"),
                f"{meter.lag_ms(50, last=RECENT_WRITES):.1f} ms",
                f"{meter.lag_ms(99, last=RECENT_WRITES):.1f} ms",
                str(meter.unacknowledged),
            )
        self._before = (now, reads)
        head = f"{sample.phase}, {sample.seconds_left:.0f} s left"
        if sample.replica_lag_seconds is not None:
            paused = "  (its applier is paused)" if sample.is_paused else ""
            head += f"; the replica is {sample.replica_lag_seconds:.1f} s late{paused}"
        self._live.update(Group(Text(head, style="bold"), table))


def _rate(hits: int, reads: int) -> str:
    return f"{hits / reads:.1%}" if reads else "-"


@contextmanager
def open_view(console: Console, *, is_live: bool) -> Iterator[LineView | LiveView]:
    """The live table where ``is_live``, else lines."""
    if not is_live:
        yield LineView(console)
        return
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        yield LiveView(console, live)
