"""Between the reader's thread and the applier: in order, bounded by transactions and by rows, and errors last."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence

import pytest

from freshness.errors import StreamStopped
from freshness.position import MariadbPosition
from freshness.source import Transaction
from invalidator.garbage import NEW_OBJECTS_MIN, seldom_collected
from invalidator.mailbox import Mailbox, measure

WAIT_SECONDS = 30.0


def transaction(number: int, rows: int = 1) -> Transaction:
    return Transaction(MariadbPosition.of(0, 1, number), 0, items=tuple(b"%d" % row for row in range(rows)))


def put_beside(
    mailbox: Mailbox[Transaction], transactions: list[Transaction], results: list[bool]
) -> threading.Thread:
    thread = threading.Thread(target=lambda: results.append(mailbox.put(transactions)), daemon=True)
    thread.start()
    return thread


def rows_of(transactions: Sequence[Transaction]) -> int:
    return sum(len(each.items) for each in transactions)


@pytest.mark.parametrize("lot", [1, 3, 7, 50])
@pytest.mark.parametrize(("transactions_max", "rows_max"), [(10, 1000), (1000, 12), (4, 9)])
def test_all_come_in_order_and_never_too_many_wait(lot: int, transactions_max: int, rows_max: int) -> None:
    sent = [transaction(number, rows=number % 5) for number in range(1, 101)]
    mailbox = Mailbox(measure, transactions_max, rows_max)
    results: list[bool] = []

    def put_all() -> None:
        results.extend(mailbox.put(sent[place : place + lot]) for place in range(0, len(sent), lot))

    writer = threading.Thread(target=put_all, daemon=True)
    writer.start()
    received: list[Transaction] = []
    while len(received) < len(sent):
        taken = mailbox.take(WAIT_SECONDS, 6)
        assert taken, "the writer is stuck"
        assert len(taken) <= 6
        assert rows_of(taken) <= rows_max
        received += taken
        with mailbox._changed:
            waiting = list(mailbox._waiting)
            assert len(waiting) <= transactions_max
            assert mailbox._rows == rows_of(waiting) <= rows_max
    writer.join(WAIT_SECONDS)
    assert received == sent
    assert all(results)


def test_a_transaction_above_the_bound_waits_until_it_is_alone() -> None:
    mailbox = Mailbox(measure, 10, 5)
    results: list[bool] = []
    writer = put_beside(mailbox, [transaction(1), transaction(2, rows=50), transaction(3)], results)
    taken = [mailbox.take(WAIT_SECONDS, 10) for _ in range(3)]
    writer.join(WAIT_SECONDS)
    assert [[len(each.items) for each in lot] for lot in taken] == [[1], [50], [1]]
    assert results == [True]


def test_nobody_waits_in_a_closed_mailbox() -> None:
    mailbox = Mailbox(measure, 2, 100)
    results: list[bool] = []
    writer = put_beside(mailbox, [transaction(number) for number in range(1, 6)], results)
    assert mailbox.take(WAIT_SECONDS, 1) == [transaction(1)]
    mailbox.close()
    writer.join(WAIT_SECONDS)
    assert results == [False]
    assert not mailbox.put([transaction(9)])


def test_an_error_comes_behind_what_was_put_before_it_and_again_each_time() -> None:
    mailbox = Mailbox(measure, 10, 100)
    mailbox.put([transaction(1)])
    mailbox.fail(StreamStopped("over", hint="h"))
    assert mailbox.take(0, 10) == [transaction(1)]
    for _ in range(2):
        with pytest.raises(StreamStopped, match="over"):
            mailbox.take(0, 10)


def test_an_empty_mailbox_is_left_in_time() -> None:
    assert Mailbox(measure, 10, 100).take(0, 10) == []


def test_garbage_is_looked_for_as_before_when_the_invalidator_has_ended() -> None:
    before = gc.get_threshold()
    with pytest.raises(StreamStopped), seldom_collected():
        fail_where_it_is_seldom(before)
    assert gc.get_threshold() == before


def fail_where_it_is_seldom(before: tuple[int, int, int]) -> None:
    assert gc.get_threshold() == (NEW_OBJECTS_MIN, *before[1:])
    raise StreamStopped("over")
