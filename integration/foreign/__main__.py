"""``make foreign``: each part of the suites without an adapter and with it, and the differences that are not meant.

``python -m integration.foreign [django|sqlalchemy] [PART ...]``: one suite, or these parts of it. The suites are
those of the source distributions of the installed versions, which pip gets. Exit codes: 0 as it is meant, 1 another
difference, 2 usage, 3 a download failed.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from subprocess import STDOUT, run
from typing import Final

from integration import provision
from integration.foreign.outcome import Outcome, judge, read_suite
from integration.foreign.system import FLAVOR
from integration.servers.database import DatabaseServer, make_database

LINES_MAX: Final = 30
"""Differences of one part that are printed."""

PINS: Final = provision.CHECKOUT / "requirements/dev.txt"
TESTS: Final = {"django": "tests", "sqlalchemy": "."}
"""By package, the folder of its tests in the source distribution."""


def fetch(package: str) -> Path:
    """The folder of the source distribution of the installed version. Raises `ProvisionFailed`."""
    folder = provision.cache_directory() / "foreign"
    name = f"{package}-{version(package)}"
    archive = folder / f"{name}.tar.gz"
    if not archive.exists():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "download"]
        provision.say(f"getting the source distribution {name}, about 10 MB")
        provision.run([*pip, "--no-deps", f"--no-binary={package}", f"--dest={folder}", name.replace("-", "==")])
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest not in PINS.read_text():
        raise provision.ProvisionFailed(f"{archive} has the hash {digest}, which {PINS} has not: remove the file")
    if not (folder / name).exists():
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
    return folder / name


def run_part(package: str, tests: Path, server: DatabaseServer, part: str, mode: str) -> Outcome:
    """Raises FileNotFoundError, after the output was printed, if the run broke off."""
    with tempfile.TemporaryDirectory(prefix="foreign-") as folder:
        result, log = Path(folder, "result.json"), Path(folder, "log.txt")
        program = [sys.executable, "-s", "-m", f"integration.foreign.{package}_suite", str(tests)]
        with log.open("w") as output:
            run(
                [*program, str(server.port), str(result), mode, *part.split()],
                env={**os.environ, "PYTHONPATH": str(provision.CHECKOUT)},
                stdout=output,
                stderr=STDOUT,
                check=False,
            )
        if not result.exists():
            print(log.read_text(), flush=True)
        return Outcome.read(result)


def run_suite(package: str, server: DatabaseServer, chosen: Sequence[str]) -> list[str]:
    """Run all its parts, or those chosen; what is not as it is meant."""
    suite, tests = read_suite(package), fetch(package) / TESTS[package]
    parts, wrong = chosen or suite.parts, list[str]()
    counted = compared = hits = changed = 0
    for part in parts:
        began = time.monotonic()
        plain, cached = (run_part(package, tests, server, part, mode) for mode in ("plain", "cached"))
        meant = suite.find_meant(part)
        found = judge(plain, cached, meant)
        print(
            f"{time.monotonic() - began:6.0f} s  {package} {part}: {len(plain.tests)} tests, {len(meant)} meant "
            f"differences, {cached.compared} answers compared, {cached.hits} hits",
            *found[:LINES_MAX],
            sep="\n          ",
            flush=True,
        )
        wrong += found
        counted, changed = counted + len(plain.tests), changed + len(meant)
        compared, hits = compared + cached.compared, hits + cached.hits
    print(
        f"{package}: {len(parts)} parts, {counted} tests, {changed} meant differences, {compared} answers "
        f"compared, {hits} hits, {len(wrong)} other differences"
    )
    return wrong


def main(arguments: Sequence[str]) -> int:
    package, *parts = arguments or [""]
    if package not in ("", *TESTS):
        print(f"expected one of {', '.join(TESTS)}, not {package}")
        return 2
    server = make_database(FLAVOR, server_id=1, options=["--sync-binlog=0"])
    try:
        server.start()
        wrong = [line for each in TESTS if package in ("", each) for line in run_suite(each, server, parts)]
    except provision.ProvisionFailed as error:
        print(error)
        return error.exit_code
    finally:
        server.stop()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
