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
from freshness.algorithm.request import Add, Cas, Delete, Head, Reply, Request
from freshness.position import MysqlGtidSet
from freshness.position.token import EventToken
from tests.schedules.world import LivingConnection, Reader, Replica, Run, World
from tests.simulation.bugs import PLANTED, apply_progress_first
from tests.simulation.network import BOUND_ANYWHERE
from tests.simulation.reshard import STAYS_OPEN

ROOT: Final = Path(__file__).resolve().parents[2]
SCHEDULE_FILES: Final = tuple(
    f"tests/schedules/test_{name}.py"
    for name in (
        "defences",
        "schedules",
        "holes",
        "usefulness",
        "upstream_defences",
        "sink",
        "stripes",
        "at_least",
        "misses",
        "broken",
        "rings",
        "together",
    )
)


@dataclass(frozen=True, slots=True)
class Schedules:
    """``passed``: the number of schedules of a file that hold; ``complaint``: pytest's output if one does not."""

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
    "fill without compare": "defences::test_stripes_accumulate",
    "an absent stripe allows": "stripes::test_an_absent_stripe_refuses",
    "a pending stripe allows": "stripes::test_a_pending_stripe_refuses",
    "a stripe of any life counts": "stripes::test_a_stripe_of_a_previous_life_refuses",
    "stripe read before the stub": "stripes::test_the_stub_stands_before_the_stripe_is_read",
    "the record of another name is trusted": "stripes::test_two_names_of_one_server_share_no_record",
    "life ignored by hits": "defences::test_life_of_a_restarted_node",
    "table floor ignored by hits": "defences::test_table_floor_condemns_what_is_there",
    "a view outlives its connection": "broken::test_the_short_way_meets_the_failure_first",
    "a view outlives an interruption": "broken::test_an_interrupted_read_forgets_what_vouches",
    "a bound of one call is ignored": "holes::test_no_clock_of_a_client_decides",
    "the bound of an entry is its position": "together::test_the_bound_is_read_after_the_rows",
    "each node has its own progress": "together::test_the_progress_of_each_node_counts",
    "delete before stripe": "defences::test_the_append_comes_before_the_delete",
    "a refused append counts as done": "stripes::test_a_stripe_that_took_no_append_is_deleted",
    "keys are not deleted after a refusal": "stripes::test_keys_are_deleted_again_behind_their_stripe",
    "a pending stripe is not appended to": "stripes::test_a_put_back_keeps_what_was_appended_meanwhile",
    "chunk of the batch before": "defences::test_stripes_accumulate",
    "shortened to the first chunk": "stripes::test_a_shortened_stripe_is_the_union_of_its_chunks",
    "shortened by set": "stripes::test_a_shortened_stripe_is_the_union_of_its_chunks",
    "before-image ignored": "upstream_defences::test_both_images_of_a_change_are_invalidated",
    "numbers are asked for as text": "upstream_defences::test_a_number_is_asked_for_as_a_number",
    "every key is taken for exact": "upstream_defences::"
    "test_no_row_is_not_stored_where_equal_keys_have_several_spellings",
    "put back with an older heartbeat": "stripes::test_a_put_back_waits_for_a_heartbeat",
    "put back with another primary's heartbeat": "stripes::"
    "test_a_put_back_waits_for_a_heartbeat_of_the_primary_that_the_record_follows",
    "put back with the floor alone": "stripes::test_a_put_back_holds_what_was_streamed",
    "what was appended is dropped": "stripes::test_a_put_back_keeps_what_was_appended_meanwhile",
    "nonce ignored": "stripes::test_a_put_back_replaces_its_own_pending_stripe_alone",
    "put back by set": "stripes::test_a_put_back_is_by_cas",
    "put back by add": "stripes::test_a_put_back_never_adds_where_nothing_is",
    "progress before acknowledge": "defences::test_progress_follows_acknowledgement",
    "lease without heartbeat": "defences::test_lease_follows_the_own_heartbeat",
    "foreign heartbeat": "upstream_defences::test_a_heartbeat_is_as_old_as_its_writing",
    "one lease is counted": "holes::test_a_renewal_that_arrives_late_is_counted",
    "a longer lease is not counted": "holes::test_a_renewal_can_wait_for_the_longer_lease_of_another",
    "the clock of a node is trusted": "holes::test_a_heartbeat_that_was_seen_for_too_long_is_not_trusted",
    "a replica that reorders is followed": "holes::test_the_log_of_a_replica_that_commits_out_of_order_is_not_read",
    "lapse and life ignored": "holes::test_a_lapse_of_the_record_is_noticed_by_who_slept_through_it",
    "record put back from memory": "defences::test_a_lapsed_record_is_not_added_again",
    "opened before it caught up": "schedules::test_a_revived_node_does_not_open_on_a_heartbeat_from_before_its_lapse",
    "tenure ignored": "schedules::test_table_floor_survives_a_revival_under_a_paused_invalidator",
    "a new primary is trusted": "upstream_defences::test_a_commit_that_only_a_reader_saw_is_lost",
    "topology ignored": "defences::test_a_previous_topology_opens_nothing_again",
    "ring ignored": "defences::test_another_ring_neither_fills_nor_hits",
    "start of a ring ignored by hits": "rings::test_an_entry_from_before_the_start_of_its_ring_is_no_hit",
    "a previous ring is not sent": "rings::test_keys_are_sent_by_each_ring_that_is_served",
    "start of an object ignored by hits": "rings::"
    "test_an_entry_of_a_definition_that_has_left_is_no_hit_when_it_comes_back",
    "published while readers are waited for": "rings::"
    "test_what_was_sent_by_the_next_file_alone_is_published_behind_the_readers",
    "published before the record is covered": "rings::test_a_record_names_what_is_sent_before_that_is_published",
    "a ring leaves at once": "rings::test_a_ring_leaves_behind_the_copies_of_readers",
    "a second ring leaves at once": "rings::"
    "test_a_ring_that_leaves_during_a_wait_for_readers_is_waited_for_from_then_on",
    "a ring that is not known is published": "rings::"
    "test_an_invalidator_publishes_no_record_with_a_ring_that_it_does_not_know",
    "an entry moves at another progress": "rings::test_an_entry_moves_as_old_as_the_record_of_its_node",
    "object coverage ignored": "defences::test_an_object_that_is_not_covered_is_not_filled",
    "epoch ignored by fills": "holes::test_positions_of_two_epochs_do_not_compare",
    "resume copy without table floors": "holes::test_the_resume_copy_is_a_whole_record",
    "table floor acknowledged at once": "defences::test_a_raise_is_acknowledged_after_views_have_aged",
    "second raise acknowledged with the first": "defences::test_a_raise_is_not_acknowledged_with_the_one_before",
    "revived without sending again": "upstream_defences::test_a_purged_log_ends_the_lives_that_need_it",
    "floor of a new life is empty": "defences::test_life_of_a_restarted_node",
    "a node that failed is acknowledged": "sink::test_a_node_that_failed_in_a_micro_batch_is_not_acknowledged",
    "a micro-batch with a hole is acknowledged": "sink::test_a_micro_batch_with_a_hole_is_not_acknowledged",
    "only the holder of a lease may fill": "usefulness::test_nobody_depends_on_the_holder_of_a_lease",
    "numbers that were never streamed": "usefulness::test_numbers_that_nobody_executes_are_in_no_table_floor",
    "a revived node never opens": "schedules::test_a_revived_node_does_not_open_on_a_heartbeat_from_before_its_lapse",
    "a doubtful stripe is kept": "stripes::test_a_stripe_that_demands_a_lost_event_is_put_back",
    "stripes are never put back": "stripes::test_what_a_reader_missed_is_put_back_first",
    "errant transactions in a floor": "usefulness::test_private_gtids_of_a_replica_are_in_no_floor",
    "blind set": "defences::test_fill_is_by_cas",
    "a session that was moved is not noticed": "upstream_defences::test_a_proxy_that_answers_from_two_servers",
    "token and rows are read apart": "upstream_defences::test_token_and_rows_are_of_one_server",
    "one domain speaks for all": "upstream_defences::test_the_token_of_a_domain_says_nothing_of_another",
    "token of the binlog": "upstream_defences::test_the_token_is_of_what_is_shown_and_not_of_the_log",
    "keys move when a node is down": "defences::test_a_key_does_not_move_when_its_node_is_down",
    "snapshot before token": "upstream_defences::test_the_token_is_not_younger_than_the_snapshot",
    "own commits ignored by hits": "at_least::test_an_entry_from_before_the_own_commit_is_no_hit",
    "own commits ignored by servers": "at_least::test_a_server_that_lacks_the_own_commit_is_not_read",
    "stripe not required of a miss": "misses::test_a_row_that_lacks_what_its_stripe_holds_is_not_fresh",
    "floor not required of a miss": "misses::test_a_row_that_lacks_what_was_before_the_life_is_not_fresh",
    "start of a ring not required of a miss": "rings::test_a_row_from_before_the_start_of_a_ring_is_not_fresh",
    "table floors not required of a miss": "misses::test_a_row_from_before_a_raise_of_its_table_is_not_fresh",
    "absent stripe requires nothing": "misses::test_where_the_stripe_is_absent_the_progress_is_required",
    "a miss is fresh without its token": "misses::test_a_row_at_no_known_position_is_not_fresh",
    "timestamps first": "defences::test_containment_decides",
    STAYS_OPEN: "defences::test_a_source_closes_before_its_keys_move",
    BOUND_ANYWHERE: "broken::test_no_life_is_revived_in_an_older_memory",
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
    is_entry = not request.key.startswith(b"shop:!")
    return isinstance(request, Cas) and is_entry and request.value != STUB


def _set_blindly(perform: Any) -> Callable[..., Reply]:
    def blind(self: World, node: str, request: Request) -> Reply:
        if isinstance(request, Cas) and _is_fill(request):
            self.stores[node].answer(Delete(request.key))
            request = Add(request.key, request.value, request.ttl_seconds)
        reply: Reply = perform(self, node, request)
        return reply

    return blind


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
        return Head(found.position.union(MysqlGtidSet.of("aaaaaaaa-71ca-11e1-9e33-c80aa9429562", 1)), found.epoch)

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


_IN_THE_WORLD: Final[dict[str, tuple[Any, str, Callable[[Any], Any]]]] = {
    "progress before acknowledge": (tests.schedules.world, "apply_batch", lambda _: apply_progress_first),
    "blind set": (World, "perform", _set_blindly),
    "timestamps first": (Replica, "token", _by_time),
    "errant transactions in a floor": (World, "read_head", _with_errant),
    "keys move when a node is down": (Reader, "reading", _elsewhere),
    STAYS_OPEN: (Membership, "_lease", _always_serving),
    BOUND_ANYWHERE: (LivingConnection, "_is_refused", lambda _: lambda *_: False),
}
"""The place of each planted bug: class, name, and replacement."""
