"""Files that survive a crash of the machine: a name is given to what is on the disk, and is on the disk itself."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Bring the bytes of a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Bring a file, or a folder with everything below it, to the disk."""
    for each in (*path.rglob("*"), path):
        sync(each)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def publish(draft: Path, path: Path) -> None:
    """Give a complete file or folder its name, in place of a file that has it."""
    sync_tree(draft)
    draft.replace(path)
    sync(path.parent)
