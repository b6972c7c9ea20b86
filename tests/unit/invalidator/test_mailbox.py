"""The mailbox between a reader thread and the caller: bounded, in order, errors last."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from freshness.errors import SourceUnavailable
from freshness.position import MariadbPosition, MysqlGtidSet
from freshness.stream.source import Transaction
from invalidator.mailbox import Mailbox, QueueBounds, measure
from invalidator.vstream.reader import ShardsMoved

JOIN_SECONDS = 30.0


def box(transactions_max: int = 10, rows_max: int = 100, bytes_max: int = 1000) -> Mailbox[int]:
    """Of numbers, each of which is its own number of rows, of 10 bytes each."""
    return Mailbox(
        lambda numbers: (sum(numbers), 10 * sum(numbers)), QueueBounds(transactions_max, rows_max, bytes_max)
    )


def test_what_goes_in_comes_out_in_order_and_at_most_as_many_as_wanted() -> None:
    mailbox = box()
    for number in (3, 1, 2):
        assert mailbox.put([number])
    assert mailbox.take(0, 2) == [3, 1]
    assert mailbox.take(0, 2) == [2]
    assert mailbox.take(0, 2) == []


@pytest.mark.parametrize(
    ("bounds", "held", "next_one"),
    [((2, 100, 1000), [1, 1], 1), ((9, 10, 1000), [4, 5], 2), ((9, 100, 100), [4, 5], 2)],
)
def test_a_full_mailbox_makes_the_reader_wait(bounds: tuple[int, int, int], held: list[int], next_one: int) -> None:
    mailbox = box(*bounds)
    for number in held:
        mailbox.put([number])
    is_in = threading.Event()

    def put() -> None:
        assert mailbox.put([next_one])
        is_in.set()

    thread = threading.Thread(target=put, daemon=True)
    thread.start()
    assert not is_in.wait(0.05)
    assert mailbox.take(0, 1) == held[:1]
    assert is_in.wait(JOIN_SECONDS)
    assert mailbox.take(0, 9) == [*held[1:], next_one]


def test_one_that_is_larger_than_all_goes_in_alone() -> None:
    mailbox = box(rows_max=10)
    assert mailbox.put([1000])
    assert mailbox.take(0, 1) == [1000]


def test_a_reader_that_waits_is_released_when_nobody_takes_any_more() -> None:
    mailbox = box(transactions_max=1)
    mailbox.put([1])
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(mailbox.put([2])), daemon=True)
    thread.start()
    mailbox.close()
    thread.join(JOIN_SECONDS)
    assert answers == [False]
    assert not mailbox.put([3])


def test_an_error_comes_after_everything_before_it_and_then_each_time() -> None:
    mailbox = box()
    mailbox.put([1])
    mailbox.fail(SourceUnavailable("gone", hint="try again"))
    assert mailbox.take(0, 9) == [1]
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match="gone") as caught:
            mailbox.take(0, 9)
        assert caught.value.hint == "try again"


def test_an_error_that_carries_more_comes_out_whole() -> None:
    mailbox = box()
    new = {"-": MysqlGtidSet()}
    mailbox.fail(ShardsMoved("ks", 7, ("-80", "80-"), new))
    with pytest.raises(ShardsMoved) as caught:
        mailbox.take(0, 1)
    assert (caught.value.journal_id, caught.value.old, caught.value.new) == (7, ("-80", "80-"), new)


# -- transactions, by their rows -------------------------------------------------------------------------


def transaction(number: int, rows: int = 1) -> Transaction:
    return Transaction(MariadbPosition.of(0, 1, number), 0, items=tuple(b"%d" % row for row in range(rows)))


def rows_of(transactions: Sequence[Transaction]) -> int:
    return sum(len(each.items) for each in transactions)


@pytest.mark.parametrize("lot", [1, 3, 7, 50])
@pytest.mark.parametrize(("transactions_max", "rows_max"), [(10, 1000), (1000, 12), (4, 9)])
def test_all_come_in_order_and_never_too_many_wait(lot: int, transactions_max: int, rows_max: int) -> None:
    sent = [transaction(number, rows=number % 5) for number in range(1, 101)]
    mailbox = Mailbox(measure, QueueBounds(transactions_max, rows_max))
    results: list[bool] = []

    def put_all() -> None:
        results.extend(mailbox.put(sent[place : place + lot]) for place in range(0, len(sent), lot))

    writer = threading.Thread(target=put_all, daemon=True)
    writer.start()
    received: list[Transaction] = []
    while len(received) < len(sent):
        taken = mailbox.take(JOIN_SECONDS, 6)
        assert taken, "the writer is stuck"
        assert len(taken) <= 6
        assert rows_of(taken) <= rows_max
        received += taken
        with mailbox._changed:
            waiting = list(mailbox._waiting)
            assert len(waiting) <= transactions_max
            assert mailbox._rows == rows_of(waiting) <= rows_max
    writer.join(JOIN_SECONDS)
    assert received == sent
    assert all(results)


def test_a_transaction_above_the_bound_waits_until_it_is_alone() -> None:
    mailbox = Mailbox(measure, QueueBounds(10, 5))
    results: list[bool] = []
    sent = [transaction(1), transaction(2, rows=50), transaction(3)]
    writer = threading.Thread(target=lambda: results.append(mailbox.put(sent)), daemon=True)
    writer.start()
    taken = [mailbox.take(JOIN_SECONDS, 10) for _ in range(3)]
    writer.join(JOIN_SECONDS)
    assert [[len(each.items) for each in lot] for lot in taken] == [[1], [50], [1]]
    assert results == [True]
