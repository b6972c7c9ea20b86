"""Spoils recorded histories: each plant puts exactly one thing wrong into a clean one, and says what must be found.

A plant looks for a place that allows it and at which it spoils nothing else; None if no place does. It
derives the expected finding from positions and the world's own facts, not from the audit's code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Final, NamedTuple

from freshness.position import Position, parse_position
from tests.simulation.recorded import EPOCH_US, History, Row, digest

SECOND: Final = 1_000_000
HOUR: Final = 3_600 * SECOND
AS_OF_US: Final = EPOCH_US + 100 * HOUR
"""Far behind the end of every world: everything is judged."""
_VIEW_US: Final = 3 * SECOND


class Expected(NamedTuple):
    """One violation. ``item``: None for those of the archive, of clocks, of recorders."""

    world: str
    kind: str
    failure: str
    item: bytes | None = None


Plant = Callable[[History, Random], "set[Expected] | None"]


def at(history: History, text: str) -> Position:
    return parse_position(history.options.flavor, text)


def _of(history: History, *kinds: str) -> list[Row]:
    return [row for row in history.actions if row["action"] in kinds]


def _stamps(row: Row) -> Iterator[tuple[str, bytes, str]]:
    yield from zip(row["lineages"], row["lives"], row["positions"], strict=True)


def _lacking(history: History, row: Row, invalidation: Row) -> bool:
    """Whether an entry lacks everything of an invalidation of its item in the same life of the node. A position of
    MariaDB names its end: an entry that lacks the end lacks the last change."""
    ((lineage, life, event),) = _stamps(invalidation)
    return any(
        (name, of) == (lineage, life) and not _holds_any(history, position, event)
        for name, of, position in _stamps(row)
    )


def _holds_any(history: History, position: str, event: str) -> bool:
    """Whether a position has something of an event; of MariaDB, whether it has its end."""
    if history.options.flavor == "mariadb":
        return at(history, position).contains(at(history, event))
    return not at(history, position).intersection(at(history, event)).is_empty


def _pairs(history: History, kind: str) -> list[tuple[Row, Row]]:
    """(fill or hit, later invalidation that it lacks) on one node in one life."""
    return [
        (row, invalidation)
        for row in _of(history, kind)
        for invalidation in _of(history, "invalidation")
        if (row["item"], row["node"]) == (invalidation["item"], invalidation["node"])
        and row["outcome"] in ("FILLED", "HIT")
        and invalidation["begin_us"] > row["end_us"]
        and _lacking(history, row, invalidation)
    ]


def _first_ack(history: History, row: Row) -> int:
    """When the node first acknowledged something that an entry lacks."""
    return min(
        int(invalidation["end_us"])
        for invalidation in _of(history, "invalidation")
        if (row["item"], row["node"]) == (invalidation["item"], invalidation["node"])
        and _lacking(history, row, invalidation)
    )


def _again(history: History, row: Row, begin_us: int, **columns: object) -> Row:
    return history.clone(row, begin_us=begin_us, end_us=begin_us + 2_000, **columns)


def _fill_again(
    history: History, random: Random, after_us: int, observed: int | None, floor: bool = False
) -> tuple[Row, Row] | None:
    pairs = _pairs(history, "fill")
    if not pairs:
        return None
    fill, invalidation = random.choice(pairs)
    begin_us = _first_ack(history, fill) + after_us
    floors = fill["floors"]
    if floor:
        floors = [str(at(history, p).union(at(history, invalidation["positions"][0]))) for p in fill["positions"]]
    return _again(history, fill, begin_us, version=900_000, observed=observed, floors=floors), invalidation


# -- fills -----------------------------------------------------------------------------------------------


def blind_fill(history: History, random: Random) -> set[Expected] | None:
    found = _fill_again(history, random, 2 * SECOND, None)
    return found and {Expected(history.name, "poisoned_fill", "F1", found[0]["item"])}


def fill_past_absent_stripe(history: History, random: Random) -> set[Expected] | None:
    found = _fill_again(history, random, 2 * SECOND, 899_999)
    return found and {Expected(history.name, "poisoned_fill", "F5", found[0]["item"])}


def poisoned_fill_below_floor(history: History, random: Random) -> set[Expected] | None:
    found = _fill_again(history, random, 2 * SECOND, 899_999, floor=True)
    return found and {Expected(history.name, "poisoned_fill", "F16", found[0]["item"])}


def fill_below_floor(history: History, random: Random) -> set[Expected] | None:
    """The floor has a heartbeat that the position lacks: no change is missing yet."""
    beats = [change for change in history.changes if change["op"] == "heartbeat"]
    pairs = [
        (fill, beat)
        for fill in _of(history, "fill")
        for beat in beats
        if fill["outcome"] == "FILLED"
        and beat["lineage"] == fill["lineages"][0]
        and not at(history, fill["positions"][0]).contains(at(history, beat["gtid"]))
    ]
    if not pairs:
        return None
    fill, beat = random.choice(pairs)
    fill["floors"] = [beat["gtid"], *fill["floors"][1:]]
    return {Expected(history.name, "fill_below_floor", "F16", fill["item"])}


def _served(
    history: History, random: Random, failure: str, observed: int | None, floor: bool = False
) -> set[Expected] | None:
    """A fill that is wrong, and a hit of it: the hit is wrong by the fill's own failure."""
    found = _fill_again(history, random, 2 * SECOND, observed, floor)
    if found is None:
        return None
    fill, _ = found
    _again(history, fill, fill["end_us"] + SECOND, action="hit", outcome="HIT", observed=None, floors=[])
    return {
        Expected(history.name, "poisoned_fill", failure, fill["item"]),
        Expected(history.name, "stale_hit", failure, fill["item"]),
    }


def poisoned_and_served(history: History, random: Random) -> set[Expected] | None:
    return _served(history, random, "F5", 899_999)


def blindly_filled_and_served(history: History, random: Random) -> set[Expected] | None:
    return _served(history, random, "F1", None)


def filled_below_floor_and_served(history: History, random: Random) -> set[Expected] | None:
    return _served(history, random, "F16", 899_999, floor=True)


# -- values ----------------------------------------------------------------------------------------------


def _comparable_fills(history: History) -> list[tuple[Row, list[Row]]]:
    """(fill, changes of its row that its position has) of each fill whose row is known at the token."""
    found = []
    is_raised = any(change["op"] == "raise" and change["table"] == "a" for change in history.changes)
    if is_raised or history.options.gap_share:
        return []
    for fill in _of(history, "fill"):
        its = [
            change
            for change in history.changes
            if fill["item"] in change["row_items"] and change["lineage"] == fill["lineages"][0]
        ]
        position = at(history, fill["positions"][0])
        if fill["outcome"] == "FILLED" and its:
            found.append((fill, [change for change in its if position.contains(at(history, change["gtid"]))]))
    return found


def _replace_value(history: History, fill: Row, value: bytes) -> None:
    """Also in what was read of it: only what was stored is wrong."""
    for row in _of(history, "fill", "hit"):
        if (row["node"], row["version"], row["lives"]) == (fill["node"], fill["version"], fill["lives"]):
            row["digest"] = value


def wrong_value(history: History, random: Random) -> set[Expected] | None:
    fills = _comparable_fills(history)
    if not fills:
        return None
    fill, _ = random.choice(fills)
    _replace_value(history, fill, digest(b"another row"))
    return {Expected(history.name, "digest_mismatch", "F46", fill["item"])}


def older_value(history: History, random: Random) -> set[Expected] | None:
    """The token ran ahead of the data."""
    fills = [(fill, held) for fill, held in _comparable_fills(history) if held]
    if not fills or history.options.is_out_of_order:
        return None
    fill, held = random.choice(fills)
    _replace_value(history, fill, held[-1]["before_digest"])
    return {Expected(history.name, "digest_mismatch", "F2", fill["item"])}


# -- hits ------------------------------------------------------------------------------------------------


def stale_hit(history: History, random: Random) -> set[Expected] | None:
    """The entry outlived its invalidation."""
    pairs = _pairs(history, "hit")
    if not pairs:
        return None
    hit, _ = random.choice(pairs)
    _again(history, hit, _first_ack(history, hit) + SECOND)
    return {Expected(history.name, "stale_hit", "F11", hit["item"])}


def torn_view(history: History, random: Random) -> set[Expected] | None:
    """Two entries are read as a view, though one lacks a change, and the other has that change or a later one. Both
    are right alone: nobody can know so soon that the first one was invalidated."""
    if any(change["op"] == "raise" for change in history.changes) or history.options.gap_share:
        return None
    ended, begun = (
        {
            (item, change[name]): (change["lineage"], change["ordinal"])
            for change in history.changes
            for item in change["row_items"]
        }
        for name in ("before_digest", "after_digest")
    )
    entries = [row for row in _of(history, "fill", "hit") if row["outcome"] in ("FILLED", "HIT")]
    pairs = [
        (old, young)
        for old in entries
        if (end := ended.get((old["item"], old["digest"])))
        for young in entries
        if (begin := begun.get((young["item"], young["digest"])))
        and begin[0] == end[0]
        and begin[1] >= end[1]
        and old["item"] != young["item"]
        and old["end_us"] <= young["end_us"]
        and not any(_ends(history, row, old, int(young["end_us"])) for row in history.actions)
    ]
    if not pairs:
        return None
    for row in (pair := random.choice(pairs)):
        view = {"action": "hit", "outcome": "HIT", "observed": 700_000, "floors": [], "client": pair[1]["client"]}
        _again(history, row, int(pair[1]["end_us"]), **view)
    return {Expected(history.name, "torn_view", "I11", pair[0]["item"])}


def _ends(history: History, row: Row, entry: Row, at_us: int) -> bool:
    """Whether an action on its node ends an entry long before ``at_us``, or makes another life of the node."""
    if row["node"] != entry["node"] or row["begin_us"] > at_us:
        return False
    if row["action"] == "publish":
        return row["begin_us"] > entry["begin_us"] and row["lives"][0] not in entry["lives"]
    is_its = row["action"] == "invalidation" and row["item"] == entry["item"] and _lacking(history, entry, row)
    return is_its and row["end_us"] < at_us - SECOND // 3


def hit_of_nobodys_value(history: History, random: Random) -> set[Expected] | None:
    hits = _young_hits(history)
    if not hits:
        return None
    hit = random.choice(hits)
    history.clone(hit, version=800_000)
    return {Expected(history.name, "thin_air_hit", "F45", hit["item"])}


def hit_of_another_value(history: History, random: Random) -> set[Expected] | None:
    answered = {(row["node"], row["version"]) for row in _of(history, "fill") if row["outcome"] == "FILLED"}
    hits = [
        hit for hit in _of(history, "hit") if (hit["node"], hit["version"]) in answered and hit["outcome"] == "HIT"
    ]
    if not hits:
        return None
    hit = random.choice(hits)
    history.clone(hit, digest=digest(b"another value"))
    return {Expected(history.name, "thin_air_hit", "F45", hit["item"])}


def _young_hits(history: History) -> list[Row]:
    """Hits whose position is younger than the recording, of values that no unanswered fill can have stored."""
    since_us = min(row["begin_us"] for row in history.actions) + SECOND
    unanswered = {(row["item"], *row["positions"]) for row in _of(history, "fill") if row["outcome"] != "FILLED"}
    young = {
        (change["lineage"], change["gtid"])
        for change in history.changes
        if min(change["timestamp_us"], change["received_us"]) > since_us
    }
    return [
        hit
        for hit in _of(history, "hit")
        if hit["outcome"] == "HIT"
        and (hit["item"], *hit["positions"]) not in unanswered
        and not history.options.is_out_of_order
        and any(
            at(history, position).contains(at(history, gtid))
            for name, _, position in _stamps(hit)
            for lineage, gtid in young
            if lineage == name
        )
    ]


def hit_of_a_previous_life(history: History, random: Random) -> set[Expected] | None:
    begins: dict[tuple[str, str], dict[bytes, tuple[int, int]]] = {}
    for row in _of(history, "publish"):
        ((lineage, life, _),) = _stamps(row)
        held = begins.setdefault((row["node"], lineage), {})
        begin_us, end_us = held.get(life, (row["begin_us"], row["end_us"]))
        held[life] = min(begin_us, row["begin_us"]), min(end_us, row["end_us"])
    candidates = []
    for hit in _of(history, "hit"):
        lineage, life, _ = next(_stamps(hit))
        lives = begins.get((hit["node"], lineage), {})
        later = [end for begin, end in lives.values() if life in lives and begin > lives[life][0]]
        if later and hit["outcome"] == "HIT" and not _is_ever_stale(history, hit):
            candidates.append((hit, min(later)))
    if not candidates:
        return None
    hit, ended_us = random.choice(candidates)
    _again(history, hit, ended_us + 2 * _VIEW_US)
    return {Expected(history.name, "dead_life_hit", "F7", hit["item"])}


def _is_ever_stale(history: History, hit: Row) -> bool:
    """Whether anything that the entry lacks was ever acknowledged in its life, by item or by table."""
    lives = set(hit["lives"])
    acknowledged = any(
        row["item"] == hit["item"] and lives & set(row["lives"]) for row in _of(history, "invalidation")
    )
    return acknowledged or any(change["op"] == "raise" for change in history.changes)


def hit_despite_truncate(history: History, random: Random) -> set[Expected] | None:
    """The whole table changed, the node knew it, and no invalidation named the item."""
    candidates = []
    for hit in _of(history, "hit"):
        acked_us = _raise_ack(history, hit)
        lives = set(hit["lives"])
        named = any(row["item"] == hit["item"] and lives & set(row["lives"]) for row in _of(history, "invalidation"))
        if acked_us is not None and not named and hit["outcome"] == "HIT":
            candidates.append((hit, acked_us))
    if not candidates:
        return None
    hit, acked_us = random.choice(candidates)
    _again(history, hit, acked_us + 2 * _VIEW_US)
    return {Expected(history.name, "stale_hit", "F21", hit["item"])}


def _raise_ack(history: History, hit: Row) -> int | None:
    for change in history.changes:
        if change["op"] != "raise" or change["table"] not in hit["tables"]:
            continue
        event = at(history, change["gtid"])
        for lineage, life, position in _stamps(hit):
            if lineage != change["lineage"] or at(history, position).contains(event):
                continue
            ends = [
                int(row["end_us"])
                for row in _of(history, "publish")
                if row["node"] == hit["node"]
                and (row["lineages"], row["lives"]) == ([lineage], [life])
                and at(history, row["positions"][0]).contains(event)
            ]
            if ends:
                return min(ends)
    return None


# -- invalidations ---------------------------------------------------------------------------------------


def _is_within_history(history: History, row: Row) -> bool:
    """Whether the change was committed after the first action, so that nobody can have invalidated it before."""
    since_us = min(each["begin_us"] for each in history.actions) + SECOND
    [lineage], [event] = row["lineages"], row["positions"]
    named_us = [
        min(each["timestamp_us"], each["received_us"])
        for each in history.changes
        if each["lineage"] == lineage
        and row["item"] in each["items"]
        and at(history, event).contains(at(history, each["gtid"]))
    ]
    return bool(max(named_us, default=0) > since_us)


def missed_invalidation(history: History, random: Random) -> set[Expected] | None:
    """Progress names the change, and the item was not invalidated on any node."""
    if history.options.nodes > 1:
        return None
    candidates = [
        row
        for row in _of(history, "invalidation")
        if _names_one(history, row) and _passed(history, row) and _is_within_history(history, row)
    ]
    if not candidates:
        return None
    chosen = random.choice(candidates)
    gone = [
        row
        for row in _of(history, "invalidation")
        if row["item"] == chosen["item"]
        and row["lineages"] == chosen["lineages"]
        and _holds_any(history, row["positions"][0], chosen["positions"][0])
    ]
    if any(not _names_one(history, row) for row in gone):
        return None
    _remove(history, gone)
    return {Expected(history.name, "missed_invalidation", "F14", chosen["item"])}


def _names_one(history: History, row: Row) -> bool:
    return any(change["gtid"] == row["positions"][0] for change in history.changes)


def _passed(history: History, row: Row) -> bool:
    """Whether some life acknowledged the event above its floor, and the item was read there under that floor."""
    event = at(history, row["positions"][0])
    lives: dict[bytes, list[Row]] = {}
    for publish in _of(history, "publish"):
        if publish["lineages"] == row["lineages"] and publish["node"] == row["node"]:
            lives.setdefault(publish["lives"][0], []).append(publish)
    for life, publishes in lives.items():
        floors = [at(history, publish["floors"][0]) for publish in publishes]
        floor = floors[0].union_all(floors)
        since_us = min(publish["begin_us"] for publish, held in zip(publishes, floors, strict=True) if held == floor)
        left = [publish["begin_us"] for publish in publishes if publish["outcome"] == "settling"]
        is_named = any(at(history, publish["positions"][0]).contains(event) for publish in publishes)
        if is_named and not floor.contains(event) and _is_read(history, row, life, max([since_us, *left]) + _VIEW_US):
            return True
    return False


def _is_read(history: History, row: Row, life: bytes, since_us: int) -> bool:
    return any(
        (read["item"], read["node"]) == (row["item"], row["node"])
        and life in read["lives"]
        and read["begin_us"] > since_us
        and read["outcome"] != "STALE_SERVED"
        for read in _of(history, "fill", "hit")
    )


def _remove(history: History, gone: list[Row]) -> None:
    """Without a gap in anybody's numbers: as if it had never been done."""
    ids = {id(row) for row in gone}
    history.actions = [row for row in history.actions if id(row) not in ids]
    for client in history.sequences:
        mine = [row for row in history.actions if row["client"] == client]
        for number, row in enumerate(mine, 1):
            row["sequence"] = number
        history.sequences[client] = len(mine)


# -- the archive -----------------------------------------------------------------------------------------


def _quiet(history: History) -> list[Row]:
    """Heartbeats in the middle of a lineage's archive."""
    last: dict[str, int] = {}
    for row in history.changes:
        last[row["lineage"]] = max(last.get(row["lineage"], 0), row["ordinal"])
    return [
        row for row in history.changes if row["op"] == "heartbeat" and 3 < row["ordinal"] < last[row["lineage"]] - 2
    ]


def _shift(history: History, lineage: str, after: int, by: int) -> None:
    for row in history.changes:
        if row["lineage"] == lineage and row["ordinal"] > after:
            row["ordinal"] += by


def archive_gap(history: History, random: Random) -> set[Expected] | None:
    beats = _quiet(history)
    if not beats:
        return None
    history.changes.remove(random.choice(beats))
    return {Expected(history.name, "archive_gap", "F15")}


def gtid_gap(history: History, random: Random) -> set[Expected] | None:
    """The source never delivered it, so the archive counts on without a gap; but somebody executed it."""
    if history.options.flavor == "mariadb":
        return None
    publishes = _of(history, "publish")
    beats = [
        beat
        for beat in _quiet(history)
        if any(
            row["lineages"] == [beat["lineage"]]
            and at(history, row["positions"][0]).contains(at(history, beat["gtid"]))
            for row in publishes
        )
    ]
    if not beats:
        return None
    beat = random.choice(beats)
    history.changes.remove(beat)
    _shift(history, beat["lineage"], beat["ordinal"], -1)
    return {Expected(history.name, "gtid_gap", "F27")}


def archived_twice(history: History, random: Random) -> set[Expected] | None:
    beats = _quiet(history)
    if not beats:
        return None
    history.changes.append(dict(random.choice(beats)))
    return {Expected(history.name, "archive_duplicate", "F32")}


def archived_again(history: History, random: Random) -> set[Expected] | None:
    """Under the next ordinal."""
    beats = _quiet(history)
    if not beats:
        return None
    beat = random.choice(beats)
    _shift(history, beat["lineage"], beat["ordinal"], 1)
    history.changes.append({**beat, "ordinal": beat["ordinal"] + 1})
    return {Expected(history.name, "archive_duplicate", "F32")}


def archived_in_disorder(history: History, random: Random) -> set[Expected] | None:
    by_place = {(row["lineage"], row["ordinal"]): row for row in _quiet(history)}
    pairs = [
        (row, by_place[lineage, ordinal + 1])
        for (lineage, ordinal), row in by_place.items()
        if (lineage, ordinal + 1) in by_place
    ]
    if not pairs:
        return None
    one, two = random.choice(pairs)
    one["gtid"], two["gtid"] = two["gtid"], one["gtid"]
    return {Expected(history.name, "archive_reordering", "F29")}


# -- clocks and recorders --------------------------------------------------------------------------------


def commit_from_the_future(history: History, random: Random) -> set[Expected] | None:
    return _shift_commit(history, random, HOUR, "F4")


def commit_from_the_past(history: History, random: Random) -> set[Expected] | None:
    return _shift_commit(history, random, -HOUR, "F3")


def _shift_commit(history: History, random: Random, by_us: int, failure: str) -> set[Expected] | None:
    beats = _quiet(history)
    if not beats:
        return None
    random.choice(beats)["timestamp_us"] += by_us
    return {Expected(history.name, "clock_anomaly", failure)}


def client_in_the_past(history: History, random: Random) -> set[Expected] | None:
    """A reader's clock is an hour late: it reads what was committed after it has read."""
    young = {id(hit) for hit in _young_hits(history)}
    clients = sorted({row["client"] for row in _of(history, "hit") if id(row) in young})
    if not clients:
        return None
    chosen = random.choice(clients)
    for row in history.actions:
        if row["client"] == chosen:
            row["begin_us"] -= HOUR
            row["end_us"] -= HOUR
    return {Expected(history.name, "clock_anomaly", "F36")}


def clock_stepped_back(history: History, random: Random) -> set[Expected] | None:
    rows = _of(history, "fill", "hit")
    if not rows:
        return None
    row = random.choice(rows)
    row["end_us"] = row["begin_us"] - 10 * SECOND
    return {Expected(history.name, "clock_anomaly", "F36")}


def _of_known_lineage(history: History) -> Counter[str]:
    """How many actions of each client name a lineage of the archive. Without one, its gap is one in all lineages."""
    archived = {row["lineage"] for row in history.changes}
    return Counter(row["client"] for row in history.actions if archived.intersection(row["lineages"]))


def lost_action(history: History, random: Random) -> set[Expected] | None:
    known = _of_known_lineage(history)
    rows = [
        row
        for row in _of(history, "hit")
        if 1 < row["sequence"] < history.sequences[row["client"]] and known[row["client"]] > 1
    ]
    if not rows:
        return None
    history.actions.remove(random.choice(rows))
    return {Expected(history.name, "recorder_gap", "I8")}


def dropped_actions(history: History, random: Random) -> set[Expected] | None:
    clients = sorted(_of_known_lineage(history))
    if not clients:
        return None
    client = random.choice(clients)
    last_us = max(row["end_us"] for row in history.actions)
    history.add_action(client, action="dropped", outcome="full", count=3, begin_us=last_us, end_us=last_us)
    return {Expected(history.name, "recorder_gap", "I8")}


OF_ITEMS: Final[tuple[Plant, ...]] = (
    blind_fill,
    fill_past_absent_stripe,
    poisoned_fill_below_floor,
    fill_below_floor,
    poisoned_and_served,
    blindly_filled_and_served,
    filled_below_floor_and_served,
    wrong_value,
    older_value,
    stale_hit,
    torn_view,
    hit_of_nobodys_value,
    hit_of_another_value,
    hit_of_a_previous_life,
    hit_despite_truncate,
    missed_invalidation,
)
OF_ARCHIVES: Final[tuple[Plant, ...]] = (
    archive_gap,
    gtid_gap,
    archived_twice,
    archived_again,
    archived_in_disorder,
    commit_from_the_future,
    commit_from_the_past,
    client_in_the_past,
    clock_stepped_back,
    lost_action,
    dropped_actions,
)
PLANTS: Final = OF_ITEMS + OF_ARCHIVES
RARE: Final = hit_of_a_previous_life, hit_despite_truncate, torn_view
"""Possible in few worlds, the first one in the fewest: they are tried before the others."""


class Planted(NamedTuple):
    history: History
    plant: str
    expected: frozenset[Expected]


def plant(history: History, seed: int) -> Planted:
    """Every fourth history stays clean; the others get a plant that is possible."""
    random = Random(f"plant {seed}")
    if seed % 4:
        order = random.sample(PLANTS, len(PLANTS))
        if random.random() < 0.7:
            order.sort(key=lambda each: each in OF_ARCHIVES)
        for chosen in (*RARE, *(each for each in order if each not in RARE)):
            expected = chosen(history, random)
            if expected:
                return Planted(history, chosen.__name__, frozenset(expected))
    return Planted(history, "", frozenset())
