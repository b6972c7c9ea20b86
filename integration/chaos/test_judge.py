"""The judge finds what is wrong in journals, and nothing in those that are right. Times are in seconds here."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any, Final

import pytest

from integration.chaos.judge import SECOND, Bounds, Judge, Verdict

BOUNDS: Final = Bounds("mariadb", staleness=13, refresh=0.2)
NODE: Final = "node"


def commit(version: int, end: float | None = None, unit: str = "group 1", value: Any = ...) -> list[dict[str, Any]]:
    """Lines of a transaction that began when its version says; without ``end`` nobody knows its outcome."""
    order = version * SECOND
    line = {"kind": "intent", "units": {unit: order if value is ... else value}, "version": order, "begin": order}
    done = {"kind": "commit", "version": order, "end": (end or 0) * SECOND, "gtids": f"0-1-{version}"}
    return [line] if end is None else [line, done]


def told(at: float, number: int, life: str = "a", primary: str = "P") -> dict[str, Any]:
    progress = {"progress": f"0-1-{number}", "life": life, "primary": primary}
    return {"kind": "record", "node": NODE, "at": at * SECOND, **progress}


def read(begin: float, *values: Any, outcome: str = "HIT", unit: str = "group 1", **fields: Any) -> dict[str, Any]:
    shown = [(unit, v * SECOND if isinstance(v, int) else v) for v in values]
    reads = [(outcome, NODE, outcome == "ENGINE", shown)]
    times = {"begin": begin * SECOND, "end": (begin + 0.5) * SECOND}
    line = {"kind": "read", "name": "customer", "reads": reads, "own": {}, "together": False}
    return line | times | fields


def promotion(at: float, kept: int) -> dict[str, Any]:
    return {"kind": "promotion", "begin": (at - 1) * SECOND, "at": at * SECOND, "kept": {"group 1": kept * SECOND}}


NOTE: Final = commit(5, 6, "note 1")
LOSS: Final = promotion(22, 10)


def judge(*lines: dict[str, Any]) -> Verdict:
    initial = {"kind": "initial", "units": {"group 1": 0, "note 1": None}}
    return Judge([initial, *commit(10, 11), *commit(20, 21), *lines], BOUNDS).judge()


@pytest.mark.parametrize(
    "lines",
    [
        [read(5, 0)],
        [read(20.5, 10), read(20.5, 20)],
        [told(30, 20), read(29, 10)],
        [told(30, 20), read(31, 20)],
        [read(33, 10)],
        [read(60, 10, outcome="CLOSED")],
        [told(30, 20), read(31, 10, outcome="BOUNDED")],
        [read(22, 20, outcome="ENGINE")],
        [*commit(40), read(60, 20), read(61, 40)],
        [
            read(5, None, unit="note 1"),
            *commit(6, 7, "note 1"),
            *commit(8, 9, "note 1", None),
            read(30, None, unit="note 1"),
        ],
        [read(22, 20, own={"group 1": 20 * SECOND})],
        [read(22, 20, 20, together=True)],
        [promotion(22, 10), read(25, 10), read(25, 20), told(26, 20, primary="S"), read(60, 10)],
        [*NOTE, *commit(22, 23, "note 1"), promotion(24, 10), read(40, 5, unit="note 1")],
        [*NOTE, *commit(15, 16, "note 1"), promotion(24, 10), read(40, 5, unit="note 1")],
        [*NOTE, *commit(22, 23, "note 1", None), read(23.1, None, unit="note 1"), promotion(24, 10)],
        [told(1, 0, "a"), told(30, 20, "b"), read(30.1, 10)],
        [
            told(5, 9),
            promotion(22, 10),
            *commit(23, 24),
            read(25, 10, own={"group 1": 23 * SECOND}),
            told(26, 30, primary="S"),
        ],
        [told(5, 9), LOSS, *commit(23, 24), read(25, 20, 23, together=True), told(26, 30, primary="S")],
    ],
)
def test_what_is_right(lines: list[dict[str, Any]]) -> None:
    assert judge(*lines).violations == []


@pytest.mark.parametrize(
    ("rule", "lines"),
    [
        ("I1", [told(30, 20), read(31, 10)]),
        ("I1", [told(1, 0, "a"), told(30, 20, "b"), read(30.3, 10)]),
        ("I10", [told(30, 20), read(31, 10, outcome="FILLED")]),
        ("I7", [read(35, 10)]),
        ("I7", [promotion(22, 10), read(36, 20)]),
        ("I7", [*NOTE, *commit(22, 23, "note 1"), promotion(24, 10), read(40, 22, unit="note 1")]),
        ("I7", [*NOTE, *commit(22, 23, "note 1", None), promotion(24, 10), read(40, None, unit="note 1")]),
        ("I7", [*NOTE, *commit(7, 8, "note 1"), promotion(24, 10), read(40, 5, unit="note 1")]),
        (
            "I9",
            [
                told(5, 9),
                promotion(22, 10),
                *commit(23, 24),
                told(26, 9, primary="S"),
                read(29, 10, own={"group 1": 23 * SECOND}),
            ],
        ),
        ("I9", [read(22, 10, own={"group 1": 20 * SECOND})]),
        ("I11", [read(22, 10, 20, together=True)]),
        ("I11", [read(22, "torn: 10, 20")]),
        ("I11", [told(5, 9), LOSS, *commit(23, 24), read(25, 10, 23, together=True), told(26, 30, primary="S")]),
        ("I11", [told(5, 9), LOSS, *commit(23, 24), told(26, 30, primary="S"), read(29, 20, 23, together=True)]),
        ("primary", [read(22, 10, outcome="ENGINE")]),
        ("value", [read(22, 15)]),
        ("value", [read(8, 10)]),
        ("I8", [{"kind": "refused", "error": "KeyError", "unknown": "KeyError('v')"}]),
        ("end", [{"kind": "rows", "units": {"group 1": 20 * SECOND}}, read(22, 10, final=True)]),
        ("I5", [{"kind": "cold", "name": "customer"}]),
        ("I7", [*commit(6, 7, "note 1"), read(30, None, unit="note 1")]),
    ],
)
def test_what_is_wrong(rule: str, lines: list[dict[str, Any]]) -> None:
    assert [each.partition(":")[0] for each in judge(*lines).violations] == [rule]


@pytest.mark.parametrize(
    ("flavor", "gtids", "found"), [("mysql", f"{uuid.UUID(int=1)}:1-", ["I10"]), ("mariadb", "0-1-", [])]
)
def test_an_old_miss_of_a_primary_that_is_none_any_more(flavor: str, gtids: str, found: list[str]) -> None:
    """Its reader knows by its position that it lacks something, except on MariaDB."""
    old = read(30, 10) | {"reads": [("STRIPE", NODE, True, [("group 1", 10 * SECOND)])]}
    lines = [*commit(10, 11), *commit(20, 21), told(5, 9), promotion(22, 20), told(26, 20, primary="S"), old]
    of_flavor = [
        {
            name: value.replace("0-1-", gtids) if name in ("gtids", "progress") else value
            for name, value in line.items()
        }
        for line in lines
    ]
    violations = Judge(of_flavor, replace(BOUNDS, flavor=flavor)).judge().violations
    assert [each.partition(":")[0] for each in violations] == found


@pytest.mark.parametrize(
    ("outcome", "is_primary", "found"),
    [("STRIPE", True, []), ("STRIPE", False, ["I10"]), ("FILLED", True, ["I10"]), ("HIT", False, ["I1"])],
)
def test_a_commit_that_waits_for_a_replica(outcome: str, is_primary: bool, found: list[str]) -> None:
    """MariaDB's log has it, and its primary shows it to nobody yet. Elsewhere the same read is wrong."""
    old = read(30, 10) | {"reads": [(outcome, NODE, is_primary, [("group 1", 10 * SECOND)])]}
    lines = [*commit(10, 11), *commit(20, 40), told(25, 20), old]
    for is_semisynchronous in (True, False):
        bounds = replace(BOUNDS, staleness=60, is_semisynchronous=is_semisynchronous)
        violations = Judge(lines, bounds).judge().violations
        expected = found if is_semisynchronous else [found[0] if found else "I10"]
        assert [each.partition(":")[0] for each in violations] == expected
