"""How far a long step has come: a bar on a terminal, a line for each step elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars


class Progress:
    """``console``: console that shows the progress, standard error of a command; None to show nothing."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console

    def tell(self, text: str) -> None:
        if self._console is not None:
            self._console.print(text, markup=False, highlight=False)

    @contextmanager
    def watch(self, what: str, rows: int) -> Iterator[Callable[[int], None]]:
        """Show a step of ``rows`` rows, 0 if they are not counted. The function takes the number of rows done since
        its last call."""
        if self._console is None:
            yield lambda _: None
        elif self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
            with Bars(
                *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=self._console, transient=True
            ) as bars:
                task = bars.add_task(what, total=rows or None)
                yield lambda more: bars.update(task, advance=more)
        else:
            start = time.monotonic()
            yield lambda _: None
            told = f"{what}: {rows:,} rows" if rows else what
            self.tell(f"{told}, {time.monotonic() - start:.1f} s")
