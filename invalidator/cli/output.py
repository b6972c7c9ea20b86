"""How verbs print: JSON on stdout, and the state of a long work on stderr."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, default=str, ensure_ascii=False))


def to_plain(value: Any) -> str:
    """A value as JSON on one line."""
    return json.dumps(value, default=str, ensure_ascii=False)


@contextmanager
def show_progress(title: str) -> Iterator[Callable[[str], None]]:
    """A line on the terminal with the title, the time and a text. Yields a function that replaces the text. Nothing
    is shown where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[shown]}"),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=None, shown="")
        yield lambda shown: progress.update(task, shown=shown)
