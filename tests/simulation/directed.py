"""The directed schedules: the tests of ``tests/schedules`` that lead into one danger each, and which bug breaks
which.

Run by ``python -m tests.simulation``; ``tests/simulation/test_directed.py`` holds the table.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import tests.schedules.world
from freshness.algorithm.envelope import STUB, NodeRecord
from freshness.algorithm.membership import Membership
from freshness.algorithm.request import Add, Cas, Delete, Head, InspectStorage, Reply, Request
from freshness.keys.cachekey import tombstone_key
from freshness.position import MysqlGtidSet
from freshness.position.token import EventToken
from tests.schedules.world import Reader, Replica, Run, World
from tests.simulation.bugs import PLANTED, apply_progress_first
from tests.simulation.reshard import STAYS_OPEN

ROOT: Final = Path(__file__).resolve().parents[2]
SCHEDULE_FILES: Final = tuple(
    f"tests/schedules/test_{name}.py"
    for name in ("defences", "schedules", "holes", "usefulness", "upstream_defences", "sink")
)


@dataclass(frozen=True, slots=True)
class Schedules:
    """``passed``: how many schedules of a file hold; ``complaint``: what pytest says where one does not."""

    file: str
    passed: int
    complaint: str


def run_schedules(file: str) -> Schedules:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    passed = re.search(r"(\d+) passed", run.stdout)
    complaint = "" if run.returncode == 0 else run.stdout + run.stderr
    return Schedules(file, int(passed[1]) if passed is not None else 0, complaint)


DIRECTED: Final[dict[str, str]] = {
    "fill without compare": "defences::test_tombstones_accumulate",
    "floor ignored": "defences::test_floor_outlives_tombstones",
    "life ignored by hits": "defences::test_life_of_a_restarted_node",
    "table floor ignored by hits": "defences::test_table_floor_condemns_what_is_there",
    "delete before tombstone": "defences::test_tombstone_comes_before_delete",
    "a duplicate does not delete again": "defences::test_a_duplicate_deletes_too",
    "a duplicate keeps the old age": "defences::test_a_duplicate_renews_the_tombstone",
    "tombstone replaced": "defences::test_tombstones_accumulate",
    "before-image ignored": "upstream_defences::test_both_images_of_a_change_are_invalidated",
    "progress before acknowledge": "defences::test_progress_follows_acknowledgement",
    "progress late": "defences::test_events_enter_progress_while_their_tombstone_is_young",
    "floor late": "defences::test_floor_outlives_tombstones",
    "foreign progress is never old": "defences::test_what_the_other_one_sent_grows_old",
    "lease without heartbeat": "defences::test_lease_follows_the_own_heartbeat",
    "foreign heartbeat": "upstream_defences::test_a_heartbeat_is_as_old_as_its_writing",
    "lapse and life ignored": "holes::test_a_lapse_of_the_record_is_noticed_by_who_slept_through_it",
    "record put back from memory": "defences::test_a_lapsed_record_is_not_added_again",
    "opened before it caught up": "schedules::test_a_revived_node_does_not_open_on_a_heartbeat_from_before_its_lapse",
    "losses ignored": "defences::test_lost_tombstones_end_the_life",
    "losses ignored at join": "defences::test_who_joins_counts_the_losses",
    "tenure ignored": "schedules::test_table_floor_survives_a_revival_under_a_paused_invalidator",
    "ring ignored": "defences::test_another_ring_neither_fills_nor_hits",
    "object coverage ignored": "defences::test_an_object_that_is_not_covered_is_not_filled",
    "epoch ignored by fills": "holes::test_positions_of_two_epochs_do_not_compare",
    "resume copy without table floors": "holes::test_the_resume_copy_is_a_whole_record",
    "table floor acknowledged at once": "defences::test_a_raise_is_acknowledged_after_views_have_aged",
    "trailing where tombstones are evicted": "defences::test_head_mode_raises_the_floor_before_the_tombstones",
    "revived without sending again": "upstream_defences::test_a_purged_log_ends_the_lives_that_need_it",
    "a node that failed is acknowledged": "sink::test_a_node_that_failed_in_a_micro_batch_is_not_acknowledged",
    "a micro-batch with a hole is acknowledged": "sink::test_a_micro_batch_with_a_hole_is_not_acknowledged",
    "a micro-batch is as old as its commit": "sink::test_a_micro_batch_is_as_old_as_its_permit",
    "only the holder of a lease may fill": "usefulness::test_nobody_depends_on_the_holder_of_a_lease",
    "numbers that were never streamed": "usefulness::test_numbers_that_nobody_executes_are_in_no_tombstone",
    "foreign progress is always old": "usefulness::test_two_invalidators_that_race_leave_the_floor_behind",
    "a revived node never opens": "schedules::test_a_revived_node_does_not_open_on_a_heartbeat_from_before_its_lapse",
    "errant transactions in a floor": "usefulness::test_private_gtids_of_a_replica_are_in_no_floor",
    "blind set": "defences::test_fill_is_by_cas",
    "fill removes the tombstone": "defences::test_tombstone_has_its_own_key",
    "token of the binlog": "defences::test_token_is_what_a_server_shows",
    "floor of a new life is empty": "defences::test_life_of_a_restarted_node",
    "keys move when a node is down": "defences::test_a_key_does_not_move_when_its_node_is_down",
    "snapshot before token": "defences::test_token_is_read_before_rows",
    "timestamps first": "defences::test_containment_decides",
    STAYS_OPEN: "defences::test_a_source_closes_before_its_keys_move",
}
"""Which directed schedule (file::test) fails with which planted bug."""


@contextlib.contextmanager
def planted(bug: str) -> Iterator[None]:
    """The bug, planted in the product, or, as `World.bug` of the simulator is, in the world of the schedules."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(PLANTED[bug]())
        if bug in _IN_THE_WORLD:
            target, name, change = _IN_THE_WORLD[bug]
            stack.enter_context(patch.object(target, name, change(getattr(target, name))))
        yield


def _is_fill(request: Request) -> bool:
    is_entry = not request_key(request).startswith(b"shop:!") and not request_key(request).endswith(b"!")
    return isinstance(request, Cas) and is_entry and request.value != STUB


def request_key(request: Request) -> bytes:
    return b"" if isinstance(request, InspectStorage) else request.key


def _set_blindly(perform: Any) -> Callable[..., Reply]:
    def blind(self: World, node: str, request: Request) -> Reply:
        if isinstance(request, Cas) and _is_fill(request):
            self.stores[node].answer(Delete(request.key))
            request = Add(request.key, request.value, request.ttl_seconds)
        reply: Reply = perform(self, node, request)
        return reply

    return blind


def _remove_tombstone(perform: Any) -> Callable[..., Reply]:
    def remove(self: World, node: str, request: Request) -> Reply:
        if _is_fill(request):
            self.stores[node].evict(tombstone_key(request_key(request)))
        reply: Reply = perform(self, node, request)
        return reply

    return remove


def _of_the_log(token: Any) -> Callable[..., EventToken]:
    return lambda self: replace(token(self), position=self.database.head)


def _by_time(token: Any) -> Callable[..., EventToken]:
    def earlier(self: Replica) -> EventToken:
        own: EventToken = token(self)
        made = self.database.transactions
        numbers = {each.number for each in made if each.timestamp_us < own.timestamp_us} | self.numbers
        return replace(own, position=self.database.position_with(sorted(numbers)))

    return earlier


def _with_errant(read_head: Any) -> Callable[..., Head]:
    def head(self: World, lineage: str) -> Head:
        found: Head = read_head(self, lineage)
        return Head(
            found.position.union(MysqlGtidSet.of("aaaaaaaa-71ca-11e1-9e33-c80aa9429562", 1)), found.epoch
        )

    return head


def _elsewhere(reading: Any) -> Callable[..., Any]:
    def moved(self: Reader, *lookups: Any, **options: Any) -> Run[Any]:
        up = next((name for name, store in self.world.stores.items() if not store.down), "")
        placed = [
            replace(each, node=up) if self.world.stores[each.node].down else each
            for each in lookups or (tests.schedules.world.lookup(),)
        ]
        run: Run[Any] = reading(self, *placed, **options)
        return run

    return moved


def _always_serving(lease: Any) -> Callable[..., Any]:
    def stay_open(self: Membership, record: NodeRecord, now: float) -> Any:
        self.policy = replace(self.policy, is_serving=True)
        return lease(self, record, now)

    return stay_open


def _rows_first(_: bool) -> bool:
    return True


_IN_THE_WORLD: Final[dict[str, tuple[Any, str, Callable[[Any], Any]]]] = {
    "progress before acknowledge": (tests.schedules.world, "apply_batch", lambda _: apply_progress_first),
    "blind set": (World, "perform", _set_blindly),
    "fill removes the tombstone": (World, "perform", _remove_tombstone),
    "token of the binlog": (Replica, "token", _of_the_log),
    "timestamps first": (Replica, "token", _by_time),
    "errant transactions in a floor": (World, "read_head", _with_errant),
    "keys move when a node is down": (Reader, "reading", _elsewhere),
    "snapshot before token": (World, "reads_rows_first", _rows_first),
    STAYS_OPEN: (Membership, "_lease", _always_serving),
}
"""Where a bug is planted: class, name, and what becomes of it."""
