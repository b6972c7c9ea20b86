"""`make hour`: what a newcomer does to the first cached read, as the pages say it, with the seconds of each step.

``python -m integration.hour [--flavor mysql] [FRAMEWORK ...]`` plays it for Django, FastAPI and Flask, or for these:
the quickstart, then the framework's page, each in an environment of its own with an empty home folder. The code
blocks of the pages are the script, in their order: there is nothing else to do. SQL and the settings of servers go to
private ones, a comment behind a command or a ``print`` is its answer, and only ports are replaced. pip asks the index
that the machine is configured for. Exit code: 1 if a block fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pymysql

from integration.servers import Flavor, Memcached, Pair, ServerFailed, ServerProcess, database_pair
from integration.servers.process import find_free_port
from tests.repository.environment import copy_sources

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
SERVING: Final = ("invalidator run", "uvicorn ", "flask ")
"""Beginnings of commands that run until they are stopped: the newcomer leaves them in a shell of their own."""
FRAMEWORKS: Final = {
    "django": ("django.md", "Tutorial"),
    "fastapi": ("read-your-writes.md", "Web applications", "FastAPI and Starlette"),
    "flask": ("read-your-writes.md", "Web applications", "Flask"),
}
"""The page, and the sections that follow the quickstart."""


class StepFailed(ServerFailed):
    """A code block did not do what its page says."""


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    page: str
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}, {self.language}: {self.text.splitlines()[0]}"


def find_blocks(page: str, *sections: str) -> list[Block]:
    """The code blocks of a page, or of its sections with these headings."""
    text = (DOCS / page).read_text()
    if sections:
        parts = re.split(r"^## (?=.*\n)", text, flags=re.MULTILINE)
        text = "".join(next(part for part in parts if part.startswith(f"{each}\n")) for each in sections)
    found = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [Block(page, language, code) for language, code in found]


def read_settings(text: str, flavor: Flavor) -> tuple[list[str], list[str]]:
    """The options of a primary and of its replica in the quickstart's block of settings."""
    parts = re.split("# MariaDB\n|# MySQL .*\n|# On a replica.*\n", text.partition("\n")[2])
    common, of_mariadb, of_mysql, of_replica = (part.replace("# ", "") for part in parts)
    own = common + (of_mariadb if flavor == "mariadb" else of_mysql)
    first, second = (
        ["--" + re.sub(r"\s*=\s*", "=", line) for line in text.splitlines()] for text in (own, of_replica)
    )
    return first, first + second


class Serving(ServerProcess):
    """A command of the newcomer that runs until it is stopped."""

    def __init__(self, line: str, folder: Path, environment: Mapping[str, str]) -> None:
        super().__init__()
        self.technology = line.split()[0]
        self._line, self._folder, self._environment = line, folder, environment

    def command(self) -> list[str]:
        given = [f"{name}={text}" for name, text in self._environment.items()]
        return ["env", "-i", *given, "bash", "-c", f"cd {shlex.quote(str(self._folder))} && exec {self._line}"]

    def is_ready(self) -> bool:
        """As a newcomer sees it: by ``invalidator status``, or by the address in the log."""
        if self.technology != "invalidator":
            return "running on http" in self.log().lower()
        ended = subprocess.run(
            ["invalidator", "status", "--json"],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            check=False,
        )
        nodes = json.loads(ended.stdout or "{}").get("nodes", [])
        return bool(nodes) and all(n["state"] == "open" and n["stripes_there_percent"] == 100 for n in nodes)


class Newcomer:
    """Somebody with a checkout, an empty home and the pages. A context manager that stops all servers at its end."""

    def __init__(self, flavor: Flavor, folder: Path) -> None:
        self._flavor, self._root = flavor, folder
        self._folder = folder / "freshness"
        self._home = folder / "home"
        self._home.mkdir()
        copy_sources(self._folder)
        hidden = ("PYTHON", "VIRTUAL_ENV", "XDG_", "PIP_CACHE", "FRESHNESS", "DJANGO")
        self._environment = {name: text for name, text in os.environ.items() if not name.startswith(hidden)}
        own = str(Path(sys.executable).parent)
        paths = [path for path in os.environ["PATH"].split(os.pathsep) if path != own]
        self._environment |= {"HOME": str(self._home), "PATH": os.pathsep.join(paths), "COLUMNS": "200"}
        self._ports = {"8000": str(find_free_port())}
        self._pair: Pair | None = None
        self._running: dict[str, Serving] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Newcomer:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def carry_out(self, block: Block) -> None:
        """Do what a code block is for. Raises `StepFailed`."""
        text = block.text
        for documented, port in self._ports.items():
            text = re.sub(rf"\b{documented}\b", port, text)
        match block.language:
            case "ini" if text.startswith("[mysqld]"):
                first, second = read_settings(text, self._flavor)
                pair = self._stack.enter_context(
                    database_pair(self._flavor, primary_options=first, replica_options=second)
                )
                self._pair = pair
                self._ports |= {"3306": str(pair.primary.port), "3307": str(pair.replica.port)}
            case "sql":
                assert self._pair is not None
                with self._pair.primary.connect(user="root") as connection, connection.cursor() as cursor:
                    for statement in filter(str.strip, text.split(";")):
                        cursor.execute(statement)
                self._pair.wait_caught_up()
            case "toml":
                (self._folder / "freshness.toml").write_text(text.replace('"mariadb"', f'"{self._flavor}"'))
            case "python" if text.startswith("# shell\n"):
                self._compare(text, self.run(f"python manage.py shell -c {shlex.quote(text)}"))
            case "python":
                path = self._folder / text.partition("\n")[0].removeprefix("# ")
                with path.open("a") as file:
                    file.write(text)
            case "sh":
                self._run_lines(text)

    def _run_lines(self, text: str) -> None:
        if text.startswith("memcached "):
            node = self._stack.enter_context(Memcached(options=text.partition(" -p ")[0].split()[1:]))
            self._ports["11211"] = str(node.port)
            return
        for line in text.splitlines():
            if line.startswith(SERVING):
                self._serve(line)
            elif line == "python app.py":
                self._compare((self._folder / "app.py").read_text(), self.run(line))
            else:
                self._compare(line, self.run(line))

    def _serve(self, line: str) -> None:
        """Start it, or start it again."""
        if before := self._running.pop(line, None):
            before.stop()
        serving = Serving(line, self._folder, self._environment)
        self._stack.callback(serving.stop)
        self._running[line] = serving.start()

    def run(self, line: str) -> str:
        """The output of a command in the newcomer's shell, which keeps its folder and its variables."""
        state = self._root / "state"
        ended = subprocess.run(
            ["bash", "-c", f"set -e\n{line}\n{{ pwd; env -0; }} > {shlex.quote(str(state))}"],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            raise StepFailed(f"{line}\n{ended.stdout}{ended.stderr}\n{self._logs()}")
        folder, _, variables = state.read_text().partition("\n")
        self._folder = Path(folder)
        self._environment = dict(each.split("=", 1) for each in variables.split("\0") if each)
        return ended.stdout

    def _logs(self) -> str:
        return "\n".join(each.log_tail() for each in self._running.values())

    def _compare(self, text: str, shown: str) -> None:
        """Each answer that a comment promises is in the output, in order; ``...`` stands for anything."""
        promised = re.findall(r"^(?:print|curl).*  # (.*)$", text, re.MULTILINE)
        pattern = ".*".join(re.escape(each).replace(r"\.\.\.", ".*") for each in promised)
        if not re.search(pattern, shown, re.DOTALL):
            raise StepFailed(f"the page promises {promised}, and this was shown:\n{shown}\n{self._logs()}")


def find_script(framework: str) -> list[Block]:
    """The hour of a framework: the numbered sections of the quickstart, then its page."""
    page, *sections = FRAMEWORKS[framework]
    numbered = re.findall(r"^## (\d.*)$", (DOCS / "quickstart.md").read_text(), re.MULTILINE)
    return find_blocks("quickstart.md", *numbered) + find_blocks(page, *sections)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.hour")
    parser.add_argument("--flavor", choices=["mariadb", "mysql"], default="mariadb")
    parser.add_argument("frameworks", nargs="*", choices=[*FRAMEWORKS, []], metavar="FRAMEWORK")
    options = parser.parse_args(arguments)
    for framework in options.frameworks or FRAMEWORKS:
        begins = [time.monotonic()]
        with (
            tempfile.TemporaryDirectory(prefix="hour-") as folder,
            Newcomer(options.flavor, Path(folder)) as newcomer,
        ):
            for block in find_script(framework):
                try:
                    newcomer.carry_out(block)
                except (ServerFailed, pymysql.Error) as error:
                    print(f"{framework}: failed at {block}\n{error}")
                    return 1
                begins.append(time.monotonic())
                print(f"{begins[-1] - begins[-2]:7.1f} s  {block}", flush=True)
        print(f"{begins[-1] - begins[0]:7.1f} s  {framework}: {len(begins) - 1} steps\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
