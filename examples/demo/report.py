"""What the demo says at the end: the result as values, as JSON, as a table, and in a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

from examples.demo.interrupted import Interruptions
from examples.demo.measurement import Meter, ObjectKey, Row, StaleHit, percentile
from examples.demo.progress_watcher import WATCH_SECONDS
from examples.demo.strategy import EVENT_TOKENS, STRATEGIES
from examples.demo.verdict import Poisoned, Verdict

STALE_EXIT_CODE: Final = 5
EVIDENCE_KEYS_MAX: Final = 5
ANSWERED: Final = frozenset(("hit", "filled", "lost_race", "stripe", "stripe_absent", "together"))
"""Outcomes of reads that know what their rows must show."""


@dataclass(frozen=True, slots=True)
class StrategyResult:
    """All that was measured of one strategy."""

    name: str
    reads: int
    hits: int
    stale_reads: int
    stale_replica_reads: int
    pairs: int
    torn_pairs: int
    invalidations: int
    lag_p50_ms: float
    lag_p99_ms: float
    outcomes: Mapping[str, int]
    stale_examples: tuple[StaleHit, ...]
    verdict: Verdict

    @property
    def hit_rate(self) -> float:
        return self.hits / self.reads if self.reads else 0.0

    @property
    def fresh_hits(self) -> int:
        """Hits that were not stale: what the cache was good for."""
        return self.hits - self.stale_reads

    @property
    def database_reads(self) -> int:
        return self.reads - self.hits

    @property
    def poisoned(self) -> int:
        return len(self.verdict.poisoned)

    @classmethod
    def of(cls, meter: Meter, verdict: Verdict) -> StrategyResult:
        return cls(
            meter.name,
            meter.reads,
            meter.hits,
            meter.stale_hits,
            meter.stale_replica_reads,
            meter.pairs,
            meter.torn_pairs,
            len(meter.lags_ms),
            meter.lag_ms(50),
            meter.lag_ms(99),
            dict(meter.outcomes.most_common()),
            tuple(meter.examples),
            verdict,
        )


@dataclass(frozen=True, slots=True)
class DemoResult:
    """One run. ``replica_lags_seconds``: as seen four times a second while writers wrote; none without a replica,
    and a ``replica_delay_seconds`` of 0. ``lives``: number of lives of each node; more than one means that a node was
    emptied. ``primary_reads``: number of misses of event_tokens that the primary answered since the replica lacked a
    change; ``primary_refusals``: number of those above the bound, which the replica answered."""

    flavor: str
    seconds: float
    seed: int
    writes: int
    replica_delay_seconds: int
    pause_seconds: float
    replica_lags_seconds: Sequence[float]
    interruptions: Interruptions
    lives: Mapping[str, int]
    strategies: Mapping[str, StrategyResult]
    primary_reads: int = 0
    primary_refusals: int = 0

    @property
    def has_replica(self) -> bool:
        return self.replica_delay_seconds > 0

    @property
    def old_misses(self) -> int:
        """Number of old rows from misses of event tokens. 0 if some reads did not know what their rows must show, or
        were above the bound: the old rows may be theirs."""
        ours = self.strategies[EVENT_TOKENS]
        is_known = not self.primary_refusals and ours.outcomes.keys() <= ANSWERED
        return ours.stale_replica_reads if is_known else 0

    @property
    def exit_code(self) -> int:
        """0 only if event tokens kept every promise: no stale read after an acknowledgement, nothing poisoned, no old
        row from a miss, no torn pair, and no answer to another question."""
        ours = self.strategies[EVENT_TOKENS]
        broken = (
            ours.poisoned + ours.stale_reads + ours.torn_pairs + self.old_misses + self.interruptions.wrong_answers
        )
        return STALE_EXIT_CODE if broken else 0


# -- JSON ----------------------------------------------------------------------------------------------


def as_json(result: DemoResult) -> dict[str, Any]:
    """The names are a promise to programs that read the file: they may grow and do not change."""
    return {
        "flavor": result.flavor,
        "seconds": result.seconds,
        "seed": result.seed,
        "writes": result.writes,
        "replica_delay_seconds": result.replica_delay_seconds,
        "applier_pause_seconds": result.pause_seconds,
        "replica_lag_p50_seconds": round(percentile(result.replica_lags_seconds, 50), 3),
        "replica_lag_max_seconds": round(max(result.replica_lags_seconds, default=0.0), 3),
        "node_lives": dict(result.lives),
        "interruptions": asdict(result.interruptions),
        "primary_reads": result.primary_reads,
        "primary_refusals": result.primary_refusals,
        "strategies": {name: _strategy_json(result.strategies[name]) for name in STRATEGIES},
    }


def _strategy_json(one: StrategyResult) -> dict[str, Any]:
    return {
        "reads": one.reads,
        "hit_rate": round(one.hit_rate, 4),
        "stale_reads": one.stale_reads,
        "poisoned": one.poisoned,
        "checked": one.verdict.checked,
        "held": one.verdict.held,
        "database_reads": one.database_reads,
        "database_reads_saved": one.hits,
        "fresh_hits": one.fresh_hits,
        "stale_replica_reads": one.stale_replica_reads,
        "pairs": one.pairs,
        "torn_pairs": one.torn_pairs,
        "invalidations": one.invalidations,
        "lag_p50_ms": round(one.lag_p50_ms, 3),
        "lag_p99_ms": round(one.lag_p99_ms, 3),
        "outcomes": dict(one.outcomes),
        "poisoned_examples": [
            _example(each.key, each.row, each.cached_version, "primary_version", each.primary_version)
            for each in one.verdict.poisoned[:EVIDENCE_KEYS_MAX]
        ],
        "stale_examples": [
            _example(each.key, each.row, each.returned_version, "acknowledged_version", each.acknowledged_version)
            for each in one.stale_examples
        ],
    }


def _example(key: ObjectKey, row: Row, cached: int, other_name: str, other: int) -> dict[str, Any]:
    return {
        "object": key[0],
        "key": key[1],
        "table": row[0],
        "row": row[1],
        "cached_version": cached,
        other_name: other,
    }


# -- for people ----------------------------------------------------------------------------------------


def as_table(result: DemoResult) -> Table:
    late = "without a replica"
    if result.has_replica:
        lags = result.replica_lags_seconds
        late = f"the replica was {percentile(lags, 50):.1f} s late, at most {max(lags, default=0.0):.1f} s"
    table = Table(
        title=f"{result.writes:,} writes in {result.seconds:.0f} s on {result.flavor}, seed {result.seed}; {late}",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("strategy", no_wrap=True)
    for heading in (
        "reads",
        "hit\nrate",
        "stale\nhits*",
        "torn\npairs",
        "poisoned\nat end",
        "reads\nsaved",
        "lag p50\n/ p99 ms",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in STRATEGIES:
        one = result.strategies[name]
        table.add_row(
            name,
            f"{one.reads:,}",
            f"{one.hit_rate:.1%}",
            _judged(one.stale_reads, f"{one.stale_reads:,}"),
            _judged(one.torn_pairs, f"{one.torn_pairs:,}/{one.pairs:,}"),
            _judged(one.poisoned, f"{one.poisoned:,}/{one.verdict.checked:,}"),
            f"{one.hits:,}",
            f"{one.lag_p50_ms:.1f} / {one.lag_p99_ms:.1f}",
        )
    return table


def _judged(count: int, text: str) -> str:
    return f"[red]{text}[/red]" if count else f"[green]{text}[/green]"


def explain(result: DemoResult) -> list[str]:
    """The sentences under the table: why, with evidence, and what event tokens cost."""
    lines = [
        "* hits older than an invalidation that was acknowledged before the read began. Reads saved: database reads "
        "that the cache made unnecessary. Lag: from the commit to the acknowledged invalidation, which for "
        f"event_tokens is looked for every {WATCH_SECONDS * 1000:.0f} ms. Torn pairs: two customers that were read "
        "together, of which one shows a transfer between them and the other does not."
    ]
    evidence = _choose_evidence(result)
    if evidence:
        shown = "; ".join(f"{name} still serves {describe(each)}" for name, each in evidence)
        old = "right after the delete read the old row from the late replica"
        if not result.has_replica:
            old = "read the old row just before a commit"
        lines.append(f"Why: a reader that missed {old} and put it back, and no delete comes again: {shown}.")
    else:
        lines.append("This time no key of the others stayed poisoned; run longer.")
    fresh = ", ".join(f"{name} {result.strategies[name].fresh_hits:,}" for name in STRATEGIES)
    lines.append(f"Hits that were not stale: {fresh}.")
    lines.append(
        "event_tokens stores a value only if the server's position contains every invalidation of its key. "
        f"What became of its reads: {_outcomes(result.strategies[EVENT_TOKENS].outcomes)}."
    )
    lines.append(
        "Rows from misses that were older than an acknowledged invalidation: "
        + ", ".join(f"{name} {result.strategies[name].stale_replica_reads:,}" for name in STRATEGIES)
        + ". "
        + _servers_of(result)
    )
    told = result.interruptions
    if told.reads:
        lines.append(
            f"Besides, event_tokens was read {told.reads:,} times by processes that signals interrupted in "
            f"{told.interrupted:,} of these reads; {told.wrong_answers:,} answers were of another object."
        )
    return lines


def _servers_of(result: DemoResult) -> str:
    """Which servers the misses read."""
    if not result.has_replica:
        return "All misses read the primary."
    return (
        f"Misses go to the late replica. event_tokens read the primary {result.primary_reads:,} times "
        f"({result.primary_reads / max(1, result.strategies[EVENT_TOKENS].reads):.1%} of its reads), because the "
        "replica lacked a change that the cache knew of; the others know of none, and never do."
    )


def _choose_evidence(result: DemoResult) -> list[tuple[str, Poisoned]]:
    """For each of the others the key that is furthest behind, another key for each if possible."""
    chosen: list[tuple[str, Poisoned]] = []
    for name in STRATEGIES:
        if name == EVENT_TOKENS:
            continue
        worst_first = sorted(
            result.strategies[name].verdict.poisoned,
            key=lambda each: (
                each.key in [taken.key for _, taken in chosen],
                each.cached_version - each.primary_version,
            ),
        )
        chosen += [(name, each) for each in worst_first[:1]]
    return chosen


def accuse(result: DemoResult) -> list[str]:
    """The evidence against event tokens, if any."""
    ours, wrong = result.strategies[EVENT_TOKENS], result.interruptions.wrong_answers
    lines = [f"interrupted readers: {wrong} answers of another object"] if wrong else []
    if result.old_misses:
        lines.append(f"misses: {result.old_misses} rows older than an acknowledged invalidation")
    if ours.torn_pairs:
        lines.append(f"torn: {ours.torn_pairs} of {ours.pairs} pairs show half of a transfer")
    lines += [f"poisoned: {describe(each)}" for each in ours.verdict.poisoned[:EVIDENCE_KEYS_MAX]]
    lines += [
        f"stale hit: {each.key[0]} {each.key[1]} with {each.row[0]} {each.row[1]} at version "
        f"{each.returned_version}, when version {each.acknowledged_version} had been acknowledged"
        for each in ours.stale_examples
    ]
    return lines


def describe(one: Poisoned) -> str:
    """For example: profile 7 with orders 700 at version 2 (primary: 5)."""
    inside = "" if one.key[0] == "customer" else f" with {one.row[0]} {one.row[1]}"
    cached = f"at version {one.cached_version}" if one.cached_version else "missing"
    return f"{one.key[0]} {one.key[1]}{inside} {cached} (primary: version {one.primary_version})"


def _outcomes(outcomes: Mapping[str, int]) -> str:
    total = sum(outcomes.values()) or 1
    return ", ".join(f"{name} {count:,} ({count / total:.1%})" for name, count in outcomes.items())
