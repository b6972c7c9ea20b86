"""Every state in which a kill or a crash of the machine may leave a folder, at every moment.

`find_crashes` runs a writer and looks at its folder around each of its calls of the system. A file that was not
synced may then have any part of its bytes, or zeros in place of them. A name that was made, changed or removed since
its folder was synced is there or is not, each for itself. Arrow's own calls need not be seen for that.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import pytest

ALL_SUBSETS_MAX: Final = 5
"""Of more names than that: those up to each, all but each, and each alone."""

_CALLS: Final = ("fsync", "mkdir", "rename", "replace", "unlink", "rmdir")

Folders = dict[int, dict[str, int]]
"""By folder, the names in it and what they stand for: numbers of files and folders, of which none comes twice."""

Change = tuple[tuple[int, str, int | None], ...]
"""One call's changes of names: (folder, name, what it stands for now, or None)."""


@dataclass(frozen=True)
class Crash:
    """``files``: by path, the bytes of a file, None for a folder. ``promised``: number that the
    writer had promised before."""

    files: tuple[tuple[str, bytes | None], ...]
    promised: int

    def restore(self, root: Path) -> Path:
        root.mkdir()
        for name, held in self.files:
            if held is None:
                (root / name).mkdir()
            else:
                (root / name).write_bytes(held)
        return root


@dataclass
class Disk:
    """``saved``: names that survive a crash; ``waiting``: changes of names after that."""

    root: Path
    numbers: dict[int, int] = field(default_factory=dict)
    folders: Folders = field(default_factory=lambda: {0: {}})
    contents: dict[int, bytes] = field(default_factory=dict)
    saved: Folders = field(default_factory=lambda: {0: {}})
    saved_contents: dict[int, bytes] = field(default_factory=dict)
    waiting: list[Change] = field(default_factory=list)
    count: int = 0
    promised: int = 0
    crashes: dict[tuple[tuple[str, bytes | None], ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """All that is there is on the disk."""
        self._find_changes()
        self.saved, self.saved_contents = (
            {number: dict(its) for number, its in self.folders.items()},
            {**self.contents},
        )

    def look(self) -> None:
        """Note what has changed since the last look, and every state that a crash may leave now."""
        self.waiting += self._find_changes()
        for names in self._choose_names():
            for part in ("all", "none", "half", "zeros"):
                files = tuple(sorted(self._walk(names, 0, "", part)))
                self.crashes[files] = max(self.promised, self.crashes.get(files, 0))

    def _find_changes(self) -> list[Change]:
        folders: Folders = {}
        living: dict[int, int] = {}
        self._scan(self.root, 0, folders, living)
        changes = list(_compare(self.folders, folders))
        self.numbers, self.folders = living, folders
        return changes

    def _scan(self, path: Path, own: int, folders: Folders, living: dict[int, int]) -> None:
        names = folders[own] = {}
        with os.scandir(path) as entries:
            for entry in entries:
                inode = entry.inode()
                if inode not in self.numbers and inode not in living:
                    self.count += 1
                    living[inode] = self.count
                number = living[inode] = living.get(inode) or self.numbers[inode]
                names[entry.name] = number
                if entry.is_dir():
                    self._scan(path / entry.name, number, folders, living)
                else:
                    with open(entry.path, "rb") as file:  # Path.open is watched
                        self.contents[number] = file.read()

    def sync(self, inode: int) -> None:
        number = 0 if inode == self.root.stat().st_ino else self.numbers.get(inode)
        if number in self.contents:
            self.saved_contents[number] = self.contents[number]
        elif number is not None:
            done = [change for change in self.waiting if any(folder == number for folder, _, _ in change)]
            self.waiting = [change for change in self.waiting if change not in done]
            _apply(self.saved, done)

    def _choose_names(self) -> Iterator[Folders]:
        count = len(self.waiting)
        if count <= ALL_SUBSETS_MAX:
            chosen = {each for size in range(count + 1) for each in combinations(range(count), size)}
        else:
            every = tuple(range(count))
            chosen = {every[:at] for at in range(count + 1)} | {(at,) for at in every}
            chosen |= {every[:at] + every[at + 1 :] for at in every}
        for each in sorted(chosen):
            names = {number: dict(held) for number, held in self.saved.items()}
            _apply(names, [self.waiting[at] for at in each])
            yield names

    def _walk(self, names: Folders, own: int, path: str, part: str) -> Iterator[tuple[str, bytes | None]]:
        for name, number in names.get(own, {}).items():
            if number in self.contents:
                yield f"{path}{name}", self._leave(number, part)
            else:
                yield f"{path}{name}", None
                yield from self._walk(names, number, f"{path}{name}/", part)

    def _leave(self, number: int, part: str) -> bytes:
        content, saved = self.contents[number], self.saved_contents.get(number, b"")
        if part == "all" or content == saved:
            return content
        size = len(saved) if content.startswith(saved) else 0
        rest = content[size:]
        return {"none": saved, "half": content[: size + len(rest) // 2], "zeros": content[:size] + bytes(len(rest))}[
            part
        ]


def _compare(before: Folders, after: Folders) -> Iterator[Change]:
    """The changes of names; a file that has another name now is one change."""
    gone, come = (
        {
            (folder, name): number
            for folder, names in these.items()
            for name, number in names.items()
            if others.get(folder, {}).get(name) != number
        }
        for these, others in ((before, after), (after, before))
    )
    for (folder, name), number in come.items():
        moved = [place for place, its in gone.items() if its == number]
        for place in moved:
            del gone[place]
        yield ((folder, name, number), *((*place, None) for place in moved if place not in come))
    yield from (((folder, name, None),) for folder, name in gone if (folder, name) not in come)


def _apply(names: Folders, changes: list[Change]) -> None:
    for folder, name, number in (each for change in changes for each in change):
        if number is None:
            names.setdefault(folder, {}).pop(name, None)
        else:
            names.setdefault(folder, {})[name] = number


def find_crashes(root: Path, write: Callable[[Path], Iterator[int]]) -> list[Crash]:
    """All that may be left of the folder at any moment while ``write`` fills it; it yields how much it promises."""
    disk = Disk(root)

    def looking(call: Callable[..., Any]) -> Callable[..., Any]:
        def touch(*arguments: Any, **options: Any) -> Any:
            disk.look()
            done = call(*arguments, **options)
            disk.look()
            return done

        return touch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: disk.sync(os.fstat(descriptor).st_ino))
        for module, name in (*((os, name) for name in _CALLS), (io, "open")):
            patch.setattr(module, name, looking(getattr(module, name)))
        for promised in write(root):
            disk.promised = promised
            disk.look()
    return [Crash(files, promised) for files, promised in disk.crashes.items()]
