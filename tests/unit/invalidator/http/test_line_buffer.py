"""The lines that wait for a consumer: bounded, in order, and the place to go on only when all are taken."""

from __future__ import annotations

import asyncio

from invalidator.http.line_buffer import CHUNK_BYTES_MAX, LineBuffer


def attached(bytes_max: int) -> LineBuffer:
    made = LineBuffer(bytes_max, "start")
    loop = asyncio.new_event_loop()
    made.attach(loop)
    loop.close()  # nobody waits in it
    return made


def take(buffer: LineBuffer) -> bytes | None:
    return asyncio.run(buffer.take(0))


def test_the_place_to_go_on_is_told_when_all_lines_before_it_are_taken() -> None:
    buffer = attached(2 * CHUNK_BYTES_MAX)
    assert buffer.find_resume() == "start"
    half = b"x" * CHUNK_BYTES_MAX
    assert buffer.put(half, "one", 0)
    assert buffer.put(half, "two", 0)
    assert buffer.find_resume() is None
    assert take(buffer) == half
    assert buffer.find_resume() is None, "the second one is still there"
    assert take(buffer) == half
    assert buffer.find_resume() == "two"
    buffer.note("three")
    assert buffer.find_resume() == "three"


def test_lines_wait_for_room_and_one_that_is_too_large_for_an_empty_buffer() -> None:
    buffer = attached(10)
    assert buffer.put(b"123456", "one", 0)
    assert not buffer.put(b"78901", "two", 0)
    assert buffer.put(b"7890", "two", 0)
    assert take(buffer) == b"1234567890"
    assert buffer.put(b"x" * 100, "three", 0)
    assert not buffer.put(b"y", "four", 0)
    assert take(buffer) == b"x" * 100
    assert buffer.find_resume() == "three"


def test_the_last_line_has_room_and_then_comes_the_end() -> None:
    buffer = attached(2)
    assert buffer.put(b"12", "one", 0)
    buffer.end(b"end")
    assert [take(buffer), take(buffer)] == [b"12end", b""]


def test_a_consumer_that_is_gone_takes_nothing_more() -> None:
    buffer = attached(10)
    buffer.abandon()
    assert buffer.is_abandoned
    assert not buffer.put(b"1", "one", 0)
