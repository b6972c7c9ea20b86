"""Event tokens: containment decides, timestamps do not; text that was cut or altered is refused."""

from __future__ import annotations

import base64
import dataclasses

import pytest

from freshness.errors import FormatError
from freshness.position import MariadbPosition, MysqlGtidSet, Order, Position
from freshness.position.token import ENCODED_BYTES_MAX, TEXT_PREFIX, EventToken, compare, covers

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
SECOND_US = 1_000_000


def token(
    text: str, *, timestamp_us: int = 0, lineage: str = "shop", shard: str = "-80", epoch: int = 1
) -> EventToken:
    return EventToken(lineage, shard, epoch, timestamp_us, MysqlGtidSet.parse(text))


def test_text_and_bytes_round_trip() -> None:
    one = token(f"{A}:1-5:tag:7", timestamp_us=1_763_700_000_123_456)
    assert EventToken.parse(f" {one}\n") == one
    assert EventToken.decode(one.encode()) == one
    assert hash(EventToken.parse(str(one))) == hash(one)


def test_mariadb_tokens_round_trip() -> None:
    one = EventToken("shöp", "-", 0, 0, MariadbPosition.parse("0-1-100,0-2-100"))
    assert EventToken.parse(one.format()) == one


@pytest.mark.parametrize(
    ("one", "two", "order", "is_covered"),
    [
        (token(f"{A}:1-5"), token(f"{A}:1-5", timestamp_us=9), Order.EQUAL, True),
        (token(f"{A}:1-5"), token(f"{A}:3", timestamp_us=9), Order.NEWER, True),
        (token(f"{A}:3", timestamp_us=9), token(f"{A}:1-5"), Order.OLDER, False),
        (token(f"{A}:1-2:4", timestamp_us=9), token(f"{A}:1-3"), Order.UNKNOWN, False),
        (token(f"{A}:1-5"), token(f"{A}:3", epoch=2), Order.UNKNOWN, False),
        (token(f"{A}:1-5"), token(f"{A}:3", lineage="other"), Order.UNKNOWN, False),
        (token(f"{A}:1-5"), dataclasses.replace(token(""), position=MariadbPosition()), Order.UNKNOWN, False),
        (token(f"{A}:1-5"), token(f"{A}:3", shard="80-"), Order.NEWER, True),  # one lineage is one history
    ],
)
def test_containment_within_one_history_decides(
    one: EventToken, two: EventToken, order: Order, is_covered: bool
) -> None:
    assert compare(one, two) is order
    assert covers(one, two) is is_covered


def test_comparing_timestamps_first_poisons_the_cache() -> None:
    """The schedule of F3, run for real on both databases: with "the newer time wins" v=1 stays in the cache."""
    # t=0  A: UPDATE row 1 SET v=2, which takes 4 s.   t=2  B: UPDATE row 2.
    second = token(f"{A}:1-4", timestamp_us=2 * SECOND_US)
    # t=3  A reader takes the last token it saw, reads row 1 (v=1), and caches it.
    cached = second
    # t=4  A commits. Its event carries the time at which its statement began.
    event = token(f"{A}:5", timestamp_us=0)
    stream_after_event = token(f"{A}:1-5", timestamp_us=0)

    # By time "the entry is fresher", and the invalidation would be discarded.
    assert cached.timestamp_us > max(event.timestamp_us, stream_after_event.timestamp_us)
    assert not covers(cached, event)  # containment: the entry lacks the event, and is invalidated
    assert compare(cached, stream_after_event) is Order.OLDER


@pytest.mark.parametrize(
    "changes",
    [
        {"lineage": ""},
        {"lineage": "x" * 129},
        {"shard": "ü" * 65},
        {"shard": "a\nb"},
        {"shard": "\udc80"},
        {"epoch": -1},
        {"epoch": 1 << 64},
        {"timestamp_us": -1},
    ],
)
def test_fields_out_of_bounds_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(FormatError) as caught:
        dataclasses.replace(token(f"{A}:1"), **changes)  # type: ignore[arg-type]
    assert caught.value.hint


TEXT = str(token(f"{A}:1-5"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        TEXT_PREFIX,
        "ft2." + TEXT.removeprefix(TEXT_PREFIX),
        TEXT.removeprefix(TEXT_PREFIX),
        TEXT + "=",
        TEXT + "A",
        TEXT + "AAAA",
        TEXT[:-1],
        TEXT[:-4],
        TEXT[:10] + " " + TEXT[10:],
        TEXT_PREFIX + "A",
        f"{A}:1-5",
    ],
)
def test_text_that_is_no_token_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(FormatError) as caught:
        EventToken.parse(text)
    assert caught.value.hint


def test_two_spellings_of_one_token_are_not_accepted() -> None:
    """Unused bits of the last base64 character must be zero: one token, one text."""
    one = next(candidate for n in range(1, 4) if len((candidate := token(f"{A}:1", shard="s" * n)).encode()) % 3 == 1)
    text = str(one)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    with pytest.raises(FormatError, match="altered"):
        EventToken.parse(text[:-1] + alphabet[alphabet.index(text[-1]) + 1])


def test_cut_bytes_and_other_versions_are_refused() -> None:
    data = token(f"{A}:1-5:9").encode()
    for broken in [data[:size] for size in range(len(data))] + [data + b"\0", b"\x02" + data[1:]]:
        with pytest.raises(FormatError):
            EventToken.decode(broken)
    with pytest.raises(FormatError, match="UTF-8"):
        EventToken.decode(b"\x01\x01\xff" + data[2:])


def test_sizes_are_bounded() -> None:
    fragmented: Position = MysqlGtidSet.parse(f"{A}:" + ":".join(str(n) for n in range(1, 300_000, 2)))
    with pytest.raises(FormatError, match="bytes"):
        EventToken("shop", "-", 0, 0, fragmented).encode()
    with pytest.raises(FormatError, match="bytes"):
        EventToken.parse(TEXT_PREFIX + base64.urlsafe_b64encode(bytes(ENCODED_BYTES_MAX + 2)).decode())
