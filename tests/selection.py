"""Which tests `make test` runs of those on real servers and on Spark, which costly ones it leaves to `make full`, and
which of these `make full` leaves to `make long`.

A test that `make test` leaves out has the marker ``rest``, one that `make full` leaves out has ``long``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

COSTLY: Final = (
    "integration/",
    "tests/repository/test_deployment.py::test_the_lines_of_the_dockerfile_give_the_program",
    "tests/repository/test_extras.py",
    "tests/repository/test_mutants.py::test_a_sample_is_noticed",
    "tests/unit/spark/audit/test_kernel.py",
    "tests/unit/spark/audit/test_placement.py",
    "tests/unit/spark/audit/test_spread.py",
    "tests/unit/spark/audit/test_worlds.py",
    "tests/unit/spark/copy/test_follow.py",
    "tests/unit/spark/stream/test_source.py",
    "tests/unit/spark/table_at/",
)
"""Beginnings of node ids. `make full` runs them all."""

CORE: Final = (
    # servers and nodes
    "integration/servers/test_servers.py",
    "integration/freshness/test_heartbeat.py",
    "integration/freshness/test_nodes.py::TestMemcached",
    "integration/freshness/test_nodes.py::TestRedis",
    # the library: threads, tasks, the adapters
    "integration/appclient/test_cache.py",
    "integration/appclient/test_composite_keys.py",
    "integration/appclient/test_lists.py::test_rows_enter_leave_and_pass_each_other",
    "integration/appclient/test_own_pool.py",
    "integration/appclient/test_read_your_writes.py",
    "integration/appclient/test_sqlalchemy.py",
    "integration/appclient/test_unique_keys.py::test_a_key_that_moves_from_one_row_to_another",
    "integration/appclient/test_web.py",
    "integration/django/test_reads.py",
    # the invalidator as a process
    "integration/invalidator/test_binlog.py",
    "integration/invalidator/test_checkup.py::test_a_system_as_it_should_be",
    "integration/invalidator/test_fill_from_log.py",
    "integration/invalidator/test_http_access.py",
    "integration/invalidator/test_process.py::test_a_kill_longer_than_the_lease_costs_no_cache",
    "integration/invalidator/test_process.py::test_evicted_stripes_refuse_and_come_back_with_what_they_had",
    "integration/invalidator/test_process.py::test_memcached_restarted_in_the_middle",
    "integration/invalidator/test_process.py::test_sigterm_ends_with_0_and_the_next_start_goes_on",
    # the stream and the archive
    "integration/stream/test_stream_service.py::test_a_consumer_that_is_cut_again_and_again_has_every_change_once",
    "integration/stream/test_stream_service.py::test_the_archive_of_a_killed_invalidator_has_every_change_once",
    "integration/stream/test_update_stream.py::test_a_split_by_replication_brings_each_row_change_once",
    "integration/stream/test_update_stream.py::test_all_that_concurrent_writers_do_comes_once_in_order",
    "integration/vitess/test_cache.py",
    # a job of Spark, and the documentation as a user follows it
    "integration/spark/test_sink.py::test_the_archive_through_the_job_gives_the_same_cache[mariadb]",
    "integration/demo/test_quickstart.py::test_the_readme",
)
"""Beginnings of node ids among the costly ones that `make test` runs all the same: each area on real servers."""

LONG: Final = (
    "integration/appclient/test_cancelled_reads.py::test_a_cancelled_read_never_gives_its_answer_to_another_one[mysql",
    "integration/demo/test_quickstart.py::test_the_page_of_sqlalchemy[mysql",
    "integration/demo/test_quickstart.py::test_the_page_of_the_application_library[mysql",
    "integration/examples/test_shops.py::test_a_profile_names_the_parts_of_a_page[fastapi",
    "integration/invalidator/test_bad_input.py::test_the_http_port_is_taken[mysql",
    "integration/invalidator/test_checkup.py::test_a_node_that_a_neighbour_has_filled_is_told_as_such[mysql",
    "integration/invalidator/test_cli.py::test_the_verbs_that_look[mysql",
    "integration/invalidator/test_group_replication.py::test_a_failover_is_lossless_only_in_a_group_that_is_there",
    "integration/invalidator/test_probe.py::test_lag_alone_is_no_alarm[mysql",
    "integration/invalidator/test_haproxy.py::test_a_planned_switchover_keeps_the_cache[mysql",
    "integration/invalidator/test_haproxy.py::test_a_crash_of_the_primary[mysql",
    "integration/invalidator/test_moving_nodes.py::"
    "test_nodes_come_and_go_under_load_while_processes_are_killed[mariadb-Redis",
    "integration/invalidator/test_moving_nodes.py::"
    "test_nodes_come_and_go_under_load_while_processes_are_killed[mysql-Memcached",
    "integration/invalidator/test_overload.py::test_a_row_that_changes_all_the_time[mysql",
    "integration/invalidator/test_overload.py::test_many_tables_and_columns[mysql",
    "integration/invalidator/test_overload.py::test_one_transaction_of_many_rows[mysql",
    "integration/invalidator/test_overload.py::test_readers_beyond_the_database[mysql",
    "integration/invalidator/test_overload.py::test_writes_beyond_the_invalidator[mysql",
    "integration/invalidator/test_process.py::test_memcached_evicts_stripes_in_the_middle[mysql",
    "integration/invalidator/test_process.py::test_memcached_flushed_by_a_stranger[mysql",
    "integration/invalidator/test_process.py::test_memcached_paused_in_the_middle[mysql",
    "integration/invalidator/test_process.py::test_the_only_invalidator_paused_hits_end_within_max_staleness[mysql",
    "integration/invalidator/test_promotion.py::"
    "test_a_crash_is_followed_by_the_replica_that_was_promoted_also_after_a_restart[mysql",
    "integration/invalidator/test_stable_name.py::test_a_crash_behind_a_name_begins_new_lives[mariadb",
    "integration/invalidator/test_stable_name.py::test_a_previous_primary_that_stores_nothing_behind_a_name[mariadb",
    "integration/servers/test_shards.py::test_a_split_and_a_merge_keep_every_row[mariadb-replicated",
    "integration/servers/test_shards.py::test_a_split_and_a_merge_keep_every_row[mysql-copied",
    "integration/spark/test_sink.py::test_keys_that_are_altered_end_the_job_and_the_next_one_reads_them[mysql",
    "integration/stream/test_stream_service.py::test_a_recorder_that_is_killed_again_and_again[mysql",
    "integration/stream/test_stream_service.py::test_a_recording_is_replayed_into_the_nodes[mariadb-archive",
    "integration/stream/test_stream_service.py::test_a_recording_is_replayed_into_the_nodes[mysql-lines",
    "integration/stream/test_stream_service.py::test_a_slow_consumer_is_disconnected_and_the_invalidator_goes_on[mysql",
    "integration/stream/test_update_stream.py::test_a_million_rows_in_one_transaction_pass_in_bounded_memory[mysql",
    "integration/vitess/real/test_oracle.py::test_the_stream_is_the_log[keys-2",
    "integration/vitess/real/test_oracle.py::test_the_stream_is_the_log[whole rows-2",
)
"""Beginnings of node ids of costly tests whose claim `make full` shows by the same test: on the other flavor, of
another framework, or with another seed."""


def mark(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(LONG):
            item.add_marker("long")
        if item.nodeid.startswith(COSTLY) and not item.nodeid.startswith(CORE):
            item.add_marker("rest")
