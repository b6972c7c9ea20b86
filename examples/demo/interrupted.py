"""Readers of event_tokens whose signal handler raises in the middle of whatever they do, as a job's time limit does.

Each is a process of its own with one `Cache`, which it goes on using after every interruption. An answer must be of
the object that was asked for. The entries that it stores are read by all readers and judged at the end.
"""

from __future__ import annotations

import json
import math
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from appclient import Cache
from examples.demo.measurement import CUSTOMER, Answer, Request
from examples.demo.strategy import TokenCache
from examples.demo.workload import Plan, draw_requests, load_profile, repeat
from integration.servers.program import PythonProgram
from invalidator.cli.signals import note_stop

INTERRUPTION_SECONDS: Final = 0.0001, 0.1
"""When the signal comes, on a logarithmic scale: on a machine of any speed in some reads, and after others."""


class Interruption(Exception):
    """What the signal handler raises."""


@dataclass(slots=True)
class Interruptions:
    """Results of the reads. ``wrong_answers``: number of answers with another object than requested."""

    reads: int = 0
    interrupted: int = 0
    wrong_answers: int = 0

    @classmethod
    def sum_up(cls, parts: Iterable[Interruptions]) -> Interruptions:
        total: Counter[str] = Counter()
        for part in parts:
            total.update(asdict(part))
        return cls(**total)


class InterruptedReader(PythonProgram):
    """One such process; `finish` brings its result."""

    technology = "interrupted reader"

    def __init__(self, config_path: Path, plan: Plan, number: int) -> None:
        super().__init__("-m", "examples.demo.interrupted")
        self._settings = {"config": str(config_path), "plan": asdict(plan), "number": number}

    def command(self) -> list[str]:
        return [*super().command(), json.dumps({**self._settings, "folder": str(self.directory)})]

    def is_ready(self) -> bool:
        return (self.directory / "ready").exists()

    def finish(self) -> Interruptions:
        self.terminate()
        return Interruptions(**json.loads((self.directory / "result.json").read_text()))


class _Alarm:
    """A signal some time after `arm`, which raises unless `disarm` came first."""

    def __init__(self) -> None:
        self._is_armed = False
        signal.signal(signal.SIGALRM, self._ring)

    def arm(self, seconds: float) -> None:
        self._is_armed = True
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def disarm(self) -> None:
        self._is_armed = False

    def _ring(self, *_: object) -> None:
        if self._is_armed:
            self._is_armed = False
            raise Interruption


def main(settings: dict[str, Any]) -> None:
    plan, folder = Plan(**settings["plan"]), Path(settings["folder"])
    generator = random.Random(plan.seed * 1000 + 900 + settings["number"])
    requests = draw_requests(plan, generator)
    result, alarm = Interruptions(), _Alarm()
    is_stopping = note_stop()
    cache = Cache.open(settings["config"])
    cache.loader("profile")(load_profile)
    with closing(cache), closing(TokenCache(cache)) as reader:

        def work() -> None:
            request = next(requests)
            result.reads += 1
            try:
                alarm.arm(math.exp(generator.uniform(*map(math.log, INTERRUPTION_SECONDS))))
                answers = reader.read(request)
                alarm.disarm()
            except Interruption:
                result.interrupted += 1
                return
            result.wrong_answers += not is_of(request, answers)

        (folder / "ready").touch()
        repeat(plan.requests_per_second / plan.readers, is_stopping, work)
    (folder / "result.json").write_text(json.dumps(asdict(result)))


def is_of(request: Request, answers: list[Answer]) -> bool:
    """Whether each answer is of the object that was asked for; customers are never deleted."""
    if [answer.key for answer in answers] != list(request.objects):
        return False
    for (name, number), value in ((answer.key, answer.value) for answer in answers):
        customer = value if name == CUSTOMER else value["customer"]
        if customer is None or customer["id"] != number:
            return False
        if name != CUSTOMER and any(order["customer_id"] != number for order in value["orders"]):
            return False
    return True


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
