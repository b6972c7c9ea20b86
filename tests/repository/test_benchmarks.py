"""The benchmarks' arithmetic, their report and their command line. No time is asserted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import __main__ as program
from benchmarks.measure import ROUNDS_MIN, Criterion, Result, Timings, interleave, stopwatch
from benchmarks.report import END, START, describe_machine, find_regressions, replace_section, write_document
from benchmarks.soak import judge
from freshness.errors import ConfigError

MACHINE = {"cpu": "x", "cores": 2, "load": 0.5, "python": "3", "memcached": "1", "date": "2026-01-31"}


def result(ratio: float, criterion: Criterion | None = None) -> Result:
    return Result("hit", 10 * ratio, "µs", "a client", 10.0, (ratio, ratio), criterion)


def test_rounds_alternate_and_the_first_of_each_is_not_counted() -> None:
    order: list[tuple[str, int]] = []

    def work(who: str, number: int) -> float:
        order.append((who, number))
        return 100.0 + number

    timings = interleave(lambda n: work("candidate", n), lambda n: work("baseline", n), 5)
    assert order == [(who, n) for n in range(6) for who in ("baseline", "candidate")]
    assert timings.candidate == timings.baseline == (101.0, 102.0, 103.0, 104.0, 105.0)


def test_too_few_rounds_are_refused() -> None:
    with pytest.raises(ConfigError, match=f"at least {ROUNDS_MIN}"):
        interleave(lambda _: 1.0, lambda _: 1.0, ROUNDS_MIN - 1)


def test_the_values_are_those_of_the_round_with_the_median_ratio() -> None:
    timings = Timings(candidate=(2.0, 1.0, 2.0, 2.0, 90.0), baseline=(4.0, 4.0, 50.0, 4.0, 3.0))
    rate = timings.per_second("n", 100, "keys/s", "b")
    assert (rate.value, rate.baseline_value, rate.ratio) == (50.0, 25.0, 2.0)
    cost = timings.microseconds("n", 2, "b")
    assert (cost.value, cost.baseline_value, cost.ratio, cost.unit) == (1e6, 2e6, 0.5, "µs")
    assert cost.spread == (2.0 / 50.0, 30.0)


def test_a_machine_that_changes_its_pace_does_not_change_the_ratio() -> None:
    """The medians of each side are 9 and 2: a ratio that only the round of the change had."""
    timings = Timings(candidate=(3.0, 3.0, 9.0, 9.0, 9.0), baseline=(2.0, 2.0, 2.0, 6.0, 6.0))
    assert timings.microseconds("n", 1, "b").ratio == 1.5


def test_of_an_even_number_the_lower_of_the_middle_two_counts() -> None:
    timings = Timings((1.0, 2.0, 3.0, 4.0, 5.0, 6.0), (1.0,) * 6)
    assert timings.microseconds("n", 1, "b").value == 3e6


@pytest.mark.parametrize(
    ("criterion", "ratio", "is_met"),
    [
        (Criterion(at_least=8), 8.0, True),
        (Criterion(at_least=8), 7.9, False),
        (Criterion(at_most=1.6), 1.6, True),
        (Criterion(at_most=1.6), 1.7, False),
        (None, 99.0, True),
    ],
)
def test_a_criterion_holds_at_its_bound(criterion: Criterion | None, ratio: float, is_met: bool) -> None:
    assert result(ratio, criterion).is_met is is_met


def test_the_stopwatch_does_the_work() -> None:
    done: list[int] = []
    assert stopwatch(lambda: done.append(1)) >= 0
    assert done == [1]


def test_json_has_what_users_read() -> None:
    line = result(1.5, Criterion(at_most=1.6)).as_json()
    assert {"name", "value", "unit", "baseline", "baseline_value", "ratio"} <= line.keys()
    assert (line["ratio"], line["criterion"], line["is_met"]) == (1.5, "≤ 1.6", True)
    assert describe_machine().keys() == MACHINE.keys()


def test_the_table_replaces_only_its_section() -> None:
    document = f"# Title\n{START}\nold\n{END}\nafter\n"
    changed = replace_section(document, "new")
    assert changed == f"# Title\n{START}\nnew\n{END}\nafter\n"
    assert replace_section(changed, "new") == changed
    for without in (f"{START} no end", f"no start {END}", ""):
        with pytest.raises(ConfigError, match="markers"):
            replace_section(without, "new")


def test_the_document_is_made_where_there_is_none(tmp_path: Path) -> None:
    path = tmp_path / "performance.md"
    for ratio in (1.5, 1.7):
        write_document(path, MACHINE, [result(ratio, Criterion(at_most=1.6)), result(1.9)])
    text = path.read_text()
    assert text.count("| hit |") == 1
    assert "1.70" in text
    assert "✗ missed" in text
    assert "1.50" not in text
    assert "1.90" not in text, "it has no criterion"


def test_the_document_has_the_worse_placement(tmp_path: Path) -> None:
    path = tmp_path / "performance.md"
    for better, worse in (("same", "other"), ("other", "same")):
        ratios = {"same": 1.5, "other": 1.5} | {worse: 1.7}
        placed = [replace(result(ratios[at], Criterion(at_most=2)), name=f"hit_{at}_core") for at in ratios]
        write_document(path, MACHINE, placed)
        assert f"| hit_{worse}_core |" in path.read_text()
        assert f"| hit_{better}_core |" not in path.read_text()


def test_an_unknown_name_is_a_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--only", "hits", "--json"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "no benchmark 'hits'" in printed.err
    assert "did you mean hit?" in printed.err
    with pytest.raises(ConfigError, match="lag, lock"):
        program.choose(["zzz"])


def test_too_few_rounds_are_an_error_of_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--only", "codec", "--rounds", "1"]) == 2
    assert "at least" in capsys.readouterr().err


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, float]:
    """What the one benchmark, ``hit``, is made to answer; files go to the temporary folder."""
    ratios = {"hit": 1.5}
    criterion = Criterion(at_most=1.6)
    monkeypatch.setattr(program, "BENCHMARKS", {"hit": lambda _: [result(ratios["hit"], criterion)]})
    monkeypatch.setattr(program, "RESULTS_PATH", tmp_path / "results.json")
    monkeypatch.setattr(program, "DOCUMENT_PATH", tmp_path / "performance.md")
    return ratios


def test_json_stands_alone_and_writes_nothing(
    measured: dict[str, float], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert program.main(["--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.keys() == {"machine", "results"}
    assert printed["results"][0]["ratio"] == measured["hit"]
    assert list(tmp_path.iterdir()) == []


def test_a_whole_run_is_kept(measured: dict[str, float], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert program.main([]) == 0
    assert "1.50" in capsys.readouterr().out
    assert json.loads((tmp_path / "results.json").read_text())["results"][0]["ratio"] == measured["hit"]
    assert "1.50" in (tmp_path / "performance.md").read_text()


def test_a_missed_criterion_is_told(measured: dict[str, float], capsys: pytest.CaptureFixture[str]) -> None:
    measured["hit"] = 1.7
    assert program.main(["--json"]) == 0
    assert "missed: hit has ratio 1.70, expected ≤ 1.6" in capsys.readouterr().err


def test_a_check_holds_ratios_against_those_that_were_kept(
    measured: dict[str, float], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert program.main(["--check"]) == 2
    assert "run make bench once" in capsys.readouterr().err
    assert program.main([]) == 0
    kept = (tmp_path / "results.json").read_text()
    measured["hit"] = 1.5 * 1.24
    assert program.main(["--check"]) == 0
    measured["hit"] = 1.5 * 1.26
    assert program.main(["--json"]) == 0
    assert program.main(["--json", "--check"]) == 1
    assert "worse: hit: ratio 1.89, kept 1.50" in capsys.readouterr().err
    assert program.main(["--check"]) == 1
    # and it never moves what it is held against
    assert (tmp_path / "results.json").read_text() == kept


def test_of_rates_less_is_worse_and_of_times_more() -> None:
    kept = {
        "results": [
            {"name": "rate", "ratio": 10.0, "spread": [8.0, 12.0]},
            {"name": "time", "ratio": 1.5, "spread": [1.0, 2.0]},
            {"name": "share", "ratio": 0.0, "spread": [0.0, 0.0]},
        ]
    }

    def worse(rate: float, time: float) -> list[str]:
        results = [
            Result("rate", rate, "keys/s", "b", 1.0, (rate, rate)),
            Result("time", time, "µs", "b", 1.0, (time, time)),
            Result("new", 99.0, "µs", "b", 1.0, (1.0, 1.0)),
            Result("share", 0.5, "µs", "b", 1.0, (0.5, 0.5), is_share=True),
        ]
        return [line.partition(":")[0] for line in find_regressions(results, kept)]

    assert worse(6.1, 2.4) == []
    assert worse(99.0, 0.1) == []
    assert worse(5.9, 2.4) == ["rate"]
    assert worse(6.1, 2.6) == ["time"]


def test_a_curve_is_drawn_beside_the_document(tmp_path: Path) -> None:
    points = ((1.0, 10.0), (10.0, 40.0), (100.0, 20.0))
    curve = Result("growth_x", 20.0, "keys/s", "b", 10.0, (2.0, 2.0), points=points, axis="a < b")
    path = tmp_path / "performance.md"
    write_document(path, MACHINE, [curve, result(1.5)])
    assert "(plots/growth_x.svg)" in path.read_text()
    plot = ElementTree.parse(tmp_path / "plots" / "growth_x.svg")
    circles = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in plot.iter(f"{SVG}circle")]
    assert len(circles) == 3
    (left, low), (middle, high), (right, between) = circles
    assert middle - left == pytest.approx(right - middle)  # the scale is logarithmic
    assert high < between < low  # y grows downwards
    assert any(text.text == "a < b" for text in plot.iter(f"{SVG}text"))
    assert list((tmp_path / "plots").iterdir()) == [tmp_path / "plots" / "growth_x.svg"]


SVG = "{http://www.w3.org/2000/svg}"


def samples(memory: Callable[[int], float], files: Callable[[int], float]) -> list[dict[str, Any]]:
    """A hundred looks at one process."""
    return [
        {"processes": {"invalidator": {"memory_mb": memory(n), "files": files(n), "threads": 9}}} for n in range(100)
    ]


def test_a_soak_is_judged_by_the_rise_of_its_second_half() -> None:
    flat = judge(samples(lambda n: min(n, 50) + 50 + n % 2, lambda n: 15 + (n % 10 == 0)))
    assert [growth.is_flat for growth in flat] == [True, True, True]
    leaking = judge(samples(lambda n: 100 + n / 10, lambda n: 15 + n // 30))
    assert [growth.is_flat for growth in leaking] == [False, False, True]
    assert leaking[0].rise == pytest.approx(4.9)
