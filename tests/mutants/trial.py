"""Tries mutants: each in a copy of the tree, one change at a time, with the tests that must fail.

Nothing is ever changed in the tree itself. Before a mutant is tried, its tests are run without a change: they must
pass, and the time that they take sets the time limit of the mutant.
"""

from __future__ import annotations

import itertools
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from tests.mutants.catalogue import Mutant

LIMIT_SECONDS_MIN: Final = 60.0
LIMIT_FACTOR: Final = 10
"""A mutant may take this many times as long as its tests take without it; after that, its run is ended as hung."""

BASELINE_SECONDS_MAX: Final = 600.0
_FIRST: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_PASSED, _FAILED, _ENDED = 0, 1, -1

Outcome: TypeAlias = Literal["killed", "timed out", "survived", "equivalent", "not equivalent", "broken"]
GOOD: Final = ("killed", "timed out", "equivalent")


@dataclass(frozen=True, slots=True)
class Verdict:
    """``by``: the first test that failed, or the reason why the mutant says nothing."""

    mutant: Mutant
    outcome: Outcome
    seconds: float
    by: str

    @property
    def is_good(self) -> bool:
        return self.outcome in GOOD


@dataclass(frozen=True, slots=True)
class _Run:
    """``code``: pytest's exit code, or `_ENDED` if the time limit ended it."""

    code: int
    seconds: float
    output: str

    @property
    def first(self) -> str:
        found = _FIRST.search(self.output)
        return found[1] if found else self.output.strip()[-300:]


def try_all(
    mutants: Sequence[Mutant], tree: Path, processes: int, tell: Callable[[Verdict], None] = lambda _: None
) -> list[Verdict]:
    """The verdicts, in order; ``tell`` gets each at once. Raises `ValueError` or `SyntaxError` for a mutant that does
    not fit the code."""
    for mutant in mutants:
        mutant.check(tree)
    with _copies(tree, processes) as copies, ThreadPoolExecutor(processes) as pool:

        def run_baseline(tests: tuple[str, ...]) -> _Run:
            with copies.one() as copy:
                return _run_tests(copy, tests, BASELINE_SECONDS_MAX)

        def run_mutant(mutant: Mutant) -> Verdict:
            baseline = baselines[mutant.tests]
            with copies.one() as copy:
                if baseline.code == _PASSED:
                    verdict = _try(mutant, copy, max(LIMIT_SECONDS_MIN, LIMIT_FACTOR * baseline.seconds))
                else:  # so a failure with the mutant says nothing
                    verdict = Verdict(mutant, "broken", 0.0, f"fails without a mutant: {baseline.first}")
            tell(verdict)
            return verdict

        layers = list(dict.fromkeys(mutant.tests for mutant in mutants))
        try:
            baselines = dict(zip(layers, pool.map(run_baseline, layers), strict=True))
            return list(pool.map(run_mutant, mutants))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _try(mutant: Mutant, copy: Path, limit_seconds: float) -> Verdict:
    changed = mutant.apply(copy)
    path = copy / mutant.path
    original = path.read_text()
    try:
        _write(path, changed)
        run = _run_tests(copy, mutant.tests, limit_seconds)
    finally:
        _write(path, original)
    return Verdict(mutant, _outcome(mutant, run), run.seconds, "" if run.code == _PASSED else run.first)


def _outcome(mutant: Mutant, run: _Run) -> Outcome:
    if run.code == _PASSED:
        return "equivalent" if mutant.equivalent else "survived"
    if run.code == _FAILED:
        return "not equivalent" if mutant.equivalent else "killed"
    return "timed out" if run.code == _ENDED and not mutant.equivalent else "broken"


_moments = itertools.count(1)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    # Python matches a compiled module to its source by size and second: no two writes share one.
    moment = next(_moments)
    os.utime(path, (moment, moment))


def _run_tests(copy: Path, tests: Sequence[str], limit_seconds: float) -> _Run:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider"]
    command += ["-p", "pytest_timeout", *tests]
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    # Plugins that other packages bring take seconds to import, and each mutant starts a run.
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    began = time.monotonic()
    # In a session of its own, so that what the tests started ends with them.
    with subprocess.Popen(
        command,
        cwd=copy,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit_seconds)
            code = process.returncode
        except subprocess.TimeoutExpired:
            output, code = f"ended after {limit_seconds:.0f} s", _ENDED
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return _Run(code, time.monotonic() - began, output)


class _Copies:
    """Copies of the tree, of which each thread takes one for a while."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._free: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for folder in folders:
            self._free.put(folder)

    @contextmanager
    def one(self) -> Iterator[Path]:
        folder = self._free.get()
        try:
            yield folder
        finally:
            self._free.put(folder)


@contextmanager
def _copies(tree: Path, count: int) -> Iterator[_Copies]:
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        folders = [Path(temporary, str(number)) for number in range(count)]
        for folder in folders:
            for name in _files_of(tree):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(tree / name, folder / name)
        yield _Copies(folders)


def _files_of(tree: Path) -> list[str]:
    """What is under version control, or will be, as far as it is there."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=tree, check=True, capture_output=True, text=True).stdout
    return [name for name in listing.split("\0") if name and (tree / name).is_file()]
