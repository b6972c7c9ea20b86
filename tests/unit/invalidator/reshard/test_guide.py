"""Which step is due, by what is seen: without servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from freshness.errors import FreshnessError, SourceUnavailable
from freshness.position import parse_position
from invalidator.replica.server import ServerState
from invalidator.reshard.guide import Guide
from invalidator.reshard.plan import Stage
from invalidator.reshard.sight import Sight
from tests.unit.invalidator.reshard.test_plan import PREVIOUS, head, shard, write

UUID = "00000000-0000-0000-0000-00000000000"
CONTINUES = 'continues = ["a"]\n'
REPLICATED = head(2) + shard("-40", "c", CONTINUES) + shard("40-80", "d", CONTINUES) + shard("80-", "b")
COPIED = head(2) + shard("-40", "c") + shard("40-80", "d") + shard("80-", "b")


def state(executed: str, *, follows: bool = False, is_read_only: bool = False) -> ServerState:
    nothing = parse_position("mysql", "")
    position = parse_position("mysql", executed)
    return ServerState("", position, nothing, follows, "", "", {}, is_read_only=is_read_only)


OWN = f"{UUID}1:1-9"
CLOSED = state(OWN, is_read_only=True)
READY = state(f"{OWN},{UUID}2:1-3")


def entry(lineage: str, record: str, topology: int = 2) -> dict[str, Any]:
    return {"node": "n", "lineage": lineage, "state": record, "topology": topology}


def sight(
    stage: Stage,
    records: Mapping[str, Any] = {},
    primaries: Mapping[str, ServerState | FreshnessError] = {},
    sessions: Mapping[str, int] = {},
) -> Sight:
    nodes = [
        value if isinstance(value, dict) else entry(lineage, value)
        for lineage, value in ({"a": "closed", "c": "open", "d": "open"} | dict(records)).items()
    ]
    return Sight(stage, nodes, {"a": CLOSED, "c": READY, "d": READY} | dict(primaries), sessions)


def due(folder: Path, seen: Sight, *, final: str = REPLICATED, word: bool = False) -> tuple[str, str]:
    step, missing = Guide(write(folder, PREVIOUS, final), folder / "freshness.toml").find_present(seen, word=word)
    return "" if step is None else step.name, "; ".join(missing)


@pytest.mark.parametrize(
    ("seen", "step", "why"),
    [
        (sight(Stage.PREVIOUS), "follow", "does not name c, d"),
        (sight(Stage.FOLLOWED, {"d": "unknown"}), "follow", "d on n: no invalidator"),
        (sight(Stage.FOLLOWED, {"d": "lapsed"}), "follow", "d on n"),
        (sight(Stage.FOLLOWED, primaries={"a": READY}), "close", "is writable"),
        (sight(Stage.FOLLOWED, primaries={"a": SourceUnavailable("gone")}), "close", "cannot be asked: gone"),
        (sight(Stage.FOLLOWED, primaries={"c": state(f"{UUID}1:1-8")}), "promote", "not executed all of a"),
        (sight(Stage.FOLLOWED, primaries={"d": SourceUnavailable("x")}), "promote", "cannot be asked"),
        (sight(Stage.FOLLOWED, primaries={"d": replace(READY, follows=True)}), "promote", "still follows"),
        (sight(Stage.FOLLOWED, {"c": "unknown"}, {"c": replace(READY, is_read_only=True)}), "promote", "read-only"),
        (sight(Stage.FOLLOWED), "swap", "still lets a serve"),
        (sight(Stage.SWAPPED, {"a": "open"}), "swap", "a on n: open"),
        (sight(Stage.SWAPPED, {"a": "clock"}), "swap", "a on n: clock"),
        (sight(Stage.SWAPPED, {"a": "unavailable"}), "swap", "a on n: unavailable"),
        (sight(Stage.SWAPPED, {"a": entry("a", "closed", 1)}), "swap", "still of topology 1"),
        (sight(Stage.SWAPPED, primaries={"a": READY}), "close", "is writable"),
        (sight(Stage.SWAPPED, {"c": "closed"}), "switch", "not open yet"),
        (sight(Stage.SWAPPED, {"a": "unknown"}), "switch", "--done"),
        (sight(Stage.FINAL), "retire", "still follows it"),
        (sight(Stage.FINAL, {"a": "lapsed"}, sessions={"app@h on p": 2}), "stop", "2 sessions of app@h on p"),
        (sight(Stage.FINAL, {"a": "lapsed"}), "", ""),
    ],
)
def test_the_step_that_is_due(tmp_path: Path, seen: Sight, step: str, why: str) -> None:
    found = due(tmp_path, seen)
    assert found[0] == step
    assert why in found[1]


def test_the_word_of_the_operator_is_for_one_step_that_nothing_shows(tmp_path: Path) -> None:
    assert due(tmp_path, sight(Stage.FOLLOWED), final=COPIED)[0] == "compare"
    assert due(tmp_path, sight(Stage.FOLLOWED), final=COPIED, word=True)[0] == "swap"
    assert due(tmp_path, sight(Stage.FOLLOWED, primaries={"a": READY}), final=COPIED, word=True)[0] == "close"
    assert due(tmp_path, sight(Stage.SWAPPED), final=COPIED)[0] == "switch"
    assert due(tmp_path, sight(Stage.SWAPPED), final=COPIED, word=True)[0] == "retire"
    assert due(tmp_path, sight(Stage.SWAPPED, {"a": "open"}), final=COPIED, word=True)[0] == "swap"
    assert due(tmp_path, sight(Stage.SWAPPED, {"c": "lapsed"}), final=COPIED, word=True)[0] == "switch"


def test_behind_a_vtgate_no_server_is_asked(tmp_path: Path) -> None:
    def tablets(text: str) -> str:
        lines = text.replace('flavor = "mysql"', 'flavor = "vitess"').replace("pass%22word@", "@").splitlines()
        vtgate = 'vtgate = "vitess://vtgate:15991/shop"'
        return "\n".join(f"{line}\n{vtgate}" if line.startswith("primary") else line for line in lines) + "\n"

    previous, final = tablets(PREVIOUS), tablets(COPIED)
    guide = Guide(write(tmp_path, previous, final), tmp_path / "freshness.toml")
    seen = replace(sight(Stage.FOLLOWED), primaries={})
    steps = [each.name for each in guide.list_steps()]
    assert steps == ["follow", "copy", "swap", "switch", "retire", "stop"]
    assert [step.name for step in [guide.find_present(seen, word=word)[0] for word in (False, True)] if step] == [
        "copy",
        "swap",
    ]
    [switch] = [each for each in guide.list_steps() if each.name == "switch"]
    assert "SwitchTraffic" in switch.todo[0]
