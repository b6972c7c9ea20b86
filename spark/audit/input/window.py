"""A part of the time that an audit judges, and the recorded files that it needs for that.

Files of the archive are chosen by the folder of their hour, before anything of them is read; files of the history by
the statistics of their footers. A file that does not tell its time is read, and so is every file between two files of
one lineage or client that are: a file that is left out must not look like one that is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from freshness.history.archive_file import UNFINISHED, parse_name
from spark.audit.model.timeline import ALWAYS, NEVER

_HOUR: Final = re.compile(r"(.*)/hour=(\d{4}-\d{2}-\d{2}T\d{2})/[^/]*")
_HOUR_US: Final = 3_600_000_000
_UNFINISHED: Final = re.compile(rf"(.*-)(\d{{8}})(\.parquet){re.escape(UNFINISHED)}")
_MINUTE_US: Final = 60_000_000
"""Longer than an action waits until it is written."""


class Window(NamedTuple):
    """Actions later than ``from_us`` are judged, up to ``to_us``. The ``carry_us`` before are evidence. Windows
    that touch judge every action once."""

    from_us: int = ALWAYS
    to_us: int = NEVER
    carry_us: int = 0

    @property
    def since_us(self) -> int:
        """When the evidence begins."""
        return self.from_us - self.carry_us

    def choose_changes(self, paths: Sequence[str]) -> list[str]:
        """The files of the archive: of each lineage from one before the evidence begins to the hour after ``to_us``,
        since changes are archived later than they are committed."""
        chosen: list[str] = []
        lineages: dict[tuple[str, str], list[_HourFile]] = {}
        for path in paths:
            file, match = parse_name(Path(path)), _HOUR.fullmatch(path)
            if file is None or match is None:
                chosen.append(path)
            else:
                hour = datetime.fromisoformat(match[2]).replace(tzinfo=UTC)
                of = lineages.setdefault((match[1], file.lineage_hash), [])
                of.append(_HourFile(file.first, file.last, round(hour.timestamp() * 1e6), path))
        for files in map(sorted, lineages.values()):
            late = [at for at, file in enumerate(files) if file.hour_us + _HOUR_US > self.since_us]
            early = [at for at, file in enumerate(files) if file.hour_us <= self.to_us + _HOUR_US]
            begin = max(0, min(late, default=len(files)) - 1)
            chosen += [file.path for file in files[begin : max(early, default=-1) + 1]]
        return sorted(chosen)

    def choose_actions(self, files: Sequence[Footer]) -> list[Footer]:
        """The files of the history: of each client from the first to the last one that has actions of that time."""
        clients: dict[str, list[Footer]] = {}
        for file in files:
            clients.setdefault(file.client, []).append(file)
        chosen = clients.pop(SEVERAL, [])
        for its in clients.values():
            its.sort(key=lambda file: (file.sequence, file.path))
            needed = [at for at, it in enumerate(its) if self.since_us <= it.last_us and it.first_us <= self.to_us]
            if needed:
                chosen += its[needed[0] : needed[-1] + 1]
        return sorted(chosen, key=lambda file: file.path)

    def choose_unfinished(self, paths: Iterable[str], files: Sequence[Footer]) -> list[str]:
        """The paths of files that may have actions of that time, by the finished file before each."""
        last = {file.path: file.last_us for file in files if file.client != SEVERAL}
        return [path for path in paths if last.get(_find_previous(path), ALWAYS) <= self.to_us + _MINUTE_US]


def _find_previous(path: str) -> str:
    """The file of the same client before an unfinished one, "" if its name does not say which."""
    match = _UNFINISHED.fullmatch(path)
    return f"{match[1]}{int(match[2]) - 1:08d}{match[3]}" if match else ""


class _HourFile(NamedTuple):
    first: int
    last: int
    hour_us: int
    path: str


SEVERAL: Final = ""


class Footer(NamedTuple):
    """A recorded file by its footer. ``rows``: number of rows of each row group. ``client``, ``sequence``,
    ``first_us``, ``last_us``: client of its actions, number of the first, and their times; `SEVERAL` and all times
    for a file that does not name them. ``problem``: "" for none."""

    path: str
    problem: str
    rows: Sequence[int] = ()
    client: str = SEVERAL
    sequence: int = 0
    first_us: int = ALWAYS
    last_us: int = NEVER


ALL: Final = Window()
