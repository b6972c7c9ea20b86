"""The counts of a prober: schedule, rate, nines, summary, metrics, and what the command line refuses."""

from __future__ import annotations

import io
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client import generate_latest
from rich.console import Console

from freshness.comparison.comparison import POISONED, EntryVerdict
from freshness.comparison.entry import LIVE, NodeEntry
from freshness.errors import ConfigError
from freshness.exposition import serving
from integration.harness import call_cli
from integration.servers.process import find_free_port
from invalidator.probe.metrics import ProbeMetrics
from invalidator.probe.prober import Budget, Schedule
from invalidator.probe.report import ProbeSummary, print_summary
from invalidator.probe.tally import SWEEP, ProbeTally, count_nines, lower_bound

# -- schedule and rate -----------------------------------------------------------------------------------


def test_work_is_taken_when_it_is_due_and_the_oldest_first() -> None:
    schedule: Schedule[str] = Schedule(10)
    for due, work in ((3.0, "c"), (1.0, "a"), (2.0, "b"), (2.0, "b too")):
        assert schedule.add(due, work)
    assert schedule.take(0.5, 10) == []
    assert schedule.take(2.0, 2) == [(1.0, "a"), (2.0, "b")]
    assert schedule.take(2.0, 10) == [(2.0, "b too")]
    assert len(schedule) == 1


def test_a_full_schedule_refuses() -> None:
    schedule: Schedule[int] = Schedule(2)
    assert [schedule.add(1.0, number) for number in range(3)] == [True, True, False]
    assert len(schedule) == 2
    schedule.take(1.0, 1)
    assert schedule.add(1.0, 3)


def test_a_rate_is_kept_and_what_was_not_used_is_not_saved_up() -> None:
    budget = Budget(10.0, 100.0)
    assert budget.available(100.0) == 0
    assert budget.available(100.5) == 5
    budget.spend(5)
    assert budget.available(100.5) == 0
    assert budget.available(200.0) == 10
    budget.spend(4)
    assert budget.available(200.0) == 6


def test_less_than_one_a_second_comes_in_the_end() -> None:
    budget = Budget(0.5, 0.0)
    assert [budget.available(now) for now in (1.0, 2.0, 60.0)] == [0, 1, 1]


# -- nines -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "total", "nines"),
    [(0, 0, 0.0), (0, 10, 0.0), (1, 1, 0.1), (10, 10, 0.6), (2_703, 2_703, 2.9), (2_704, 2_704, 3.0)],
)
def test_few_comparisons_give_few_nines(right: int, total: int, nines: float) -> None:
    tally = ProbeTally()
    tally.verdicts["customer", "1", "right"] = right
    tally.verdicts["customer", "1", "lag"] = total - right
    [result] = ProbeSummary.of(tally).results
    assert result.nines == nines


def test_the_bound_is_that_of_wilson() -> None:
    """The lower root of (p - s)² = z² p (1 - p) / n."""
    share = lower_bound(90, 100)
    assert 0.8 < share < 0.9
    assert (share - 0.9) ** 2 == pytest.approx(1.645**2 * share * (1 - share) / 100)
    assert count_nines(0.999) == pytest.approx(3)


def test_one_wrong_one_costs_nines() -> None:
    assert count_nines(lower_bound(9_999, 10_000)) < count_nines(lower_bound(10_000, 10_000))


# -- the result ------------------------------------------------------------------------------------------


def tally_of(**verdicts: int) -> ProbeTally:
    tally = ProbeTally()
    for verdict, count in verdicts.items():
        key: Any = ("customer", "10", verdict)
        tally.verdicts[key] = count
    return tally


def lose(tally: ProbeTally) -> ProbeTally:
    entry = NodeEntry("127.0.0.1:1", b"shop:c:[red]1", "customer", b"", LIVE)
    verdict = EntryVerdict(entry, POISONED, cached="'old'", primary="'new'")
    tally.findings[b"shop:c:[red]1", "digest"] = verdict
    tally.losses["customer"] = 1
    return tally


@pytest.mark.parametrize(
    ("tally", "code", "conclusion"),
    [
        (tally_of(right=3), 0, "3 of 3 served entries were right, 0 late, and no loss was found"),
        (tally_of(right=3, lag=1), 0, "3 of 4 served entries were right, 1 late, and no loss was found"),
        (tally_of(), 3, "nothing is proved"),
        (tally_of(absent=9), 3, "nothing is proved"),
        (tally_of(lag=9), 3, "nothing is proved"),
        (tally_of(right=3, unknown=1), 3, "not known: 1 comparisons are undecided; 3 of 3 were right"),
        (lose(tally_of(right=3, loss=1, unknown=1)), 5, "1 poisoned, 0 removed; 4 served entries"),
    ],
)
def test_the_exit_code_and_the_conclusion(tally: ProbeTally, code: int, conclusion: str) -> None:
    summary = ProbeSummary.of(tally)
    assert summary.exit_code == code
    assert summary.conclusion.startswith(conclusion)
    assert summary.to_json()["conclusion"] == summary.conclusion


def test_an_error_is_no_good_news() -> None:
    tally = tally_of(right=3)
    tally.note_error("node [x] is down")
    assert ProbeSummary.of(tally).exit_code == 3


def test_what_is_shown() -> None:
    tally = lose(tally_of(right=3, loss=1))
    tally.verdicts["customer", "2", "right"] = 1
    tally.verdicts["customer", SWEEP, "right"] = 1
    tally.dropped["overdue"] = 7
    tally.note_error("node [x] is down")
    summary = ProbeSummary.of(tally)
    assert [each.scale for each in summary.results] == ["2", "10", SWEEP]
    shown = io.StringIO()
    print_summary(summary, Console(width=160, file=shown))
    for part in ("shop:c:[red]1", "'old'", "'new'", "not compared: 7 (overdue)", "no answer: node [x]", "10 s"):
        assert part in shown.getvalue()


# -- metrics and the command line ------------------------------------------------------------------------


def test_the_metrics_are_those_counts() -> None:
    tally = lose(tally_of(right=3, lag=2))
    tally.note_lag(1.5)
    tally.note_lag(1_000.0)
    tally.repaired["customer"] = 1
    page = generate_latest(ProbeMetrics(tally).registry).decode()
    for line in (
        'freshness_probe_comparisons_total{object="customer",scale="10",verdict="lag"} 2.0',
        'freshness_probe_losses_total{object="customer"} 1.0',
        'freshness_probe_repairs_total{object="customer",result="removed"} 1.0',
        'freshness_probe_lag_seconds_bucket{le="1.0"} 0.0',
        'freshness_probe_lag_seconds_bucket{le="2.0"} 1.0',
        'freshness_probe_lag_seconds_bucket{le="+Inf"} 2.0',
        "freshness_probe_lag_seconds_sum 1001.5",
    ):
        assert line in page.splitlines()


def test_the_metrics_are_served() -> None:
    port = find_free_port()
    with serving(ProbeMetrics(ProbeTally()).registry, f"127.0.0.1:{port}"):
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert b"freshness_probe_sweeps_total 0.0" in answer.read()
        with (
            pytest.raises(ConfigError, match="cannot be served"),
            serving(ProbeMetrics(ProbeTally()).registry, f"127.0.0.1:{port}"),
        ):
            pass
    with (
        pytest.raises(ConfigError, match="--metrics-listen here"),
        serving(ProbeMetrics(ProbeTally()).registry, "here"),
    ):
        pass


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--share", "0"], "--share 0"),
        (["--share", "1.5"], "one key of a hundred"),
        (["--scales", "10,1"], "--scales 10,1"),
        (["--scales", "1,x"], "rising numbers of seconds"),
        (["--scales", "0"], "--scales 0"),
        (["--scales", "1,nan"], "--scales 1,nan"),
    ],
)
def test_a_wrong_option_is_told(arguments: list[str], told: str) -> None:
    answer = call_cli("probe", *arguments)
    assert answer.returncode == 2
    assert told in answer.stderr
    assert answer.stdout == ""
