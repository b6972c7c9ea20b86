"""Which keys a dump of memcached names, and that no part of it is taken for the whole."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

import pytest

from freshness.errors import NodeUnavailable, NodeUnsuitable
from freshness.nodes.listing import BUSY_RETRIES_MAX, find_entry_key, open_dump

NODE: Final = "127.0.0.1:11211"


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b"key=shop%3Acustomer%3A1 exp=0 la=1 cas=2 fetch=no cls=1 size=9", b"shop:customer:1"),
        (b"key=shop%3Acustomer%3A%2541 exp=-1", b"shop:customer:%41"),
        (b"key=shop%3A%21shop/- exp=0", None),
        (b"key=shop%3A!shop%2F-!1f exp=-1", None),
        (b"key=shop%3A%21shop%2F-%21wanted exp=0", None),
        (b"key=shop%3A!shop%2F-!resume exp=0", None),
        (b"key=other%3Acustomer%3A1 exp=0", None),
        (b"key=shopping%3A1 exp=0", None),
        (b"key=shop%3Aa%0Ab exp=0", None),
    ],
)
def test_the_keys_of_entries_are_found_in_the_dump(line: bytes, key: bytes | None) -> None:
    assert find_entry_key(line, NODE, "shop") == key


def test_a_node_that_does_not_dump_is_told() -> None:
    with pytest.raises(NodeUnsuitable, match="lru crawler disabled"):
        find_entry_key(b"CLIENT_ERROR lru crawler disabled", NODE, "shop")


class DumpingNode:
    """Gives one answer for each command, repeating the last one, and closes the connection."""

    name = NODE

    def __init__(self, *answers: bytes) -> None:
        self._left = list(answers)

    def read_lines(self, command: bytes) -> Generator[bytes]:
        assert command == b"lru_crawler metadump hash\r\n"
        answer = self._left.pop(0) if len(self._left) > 1 else self._left[0]
        yield from answer.split(b"\n")[:-1]


WHOLE: Final = b"key=shop%3Ac%3A1 exp=0\nkey=shop%3Ac%3A2 exp=0\r\nEND\r\n"


@pytest.mark.parametrize(
    ("answers", "keys", "waits"),
    [
        ([WHOLE], [b"shop:c:1", b"shop:c:2"], 0),
        ([b"END\r\n"], [], 0),
        ([b"NOTSTARTED no items to crawl\r\n"], [], 0),
        ([b"BUSY currently processing crawler request\r\n", WHOLE], [b"shop:c:1", b"shop:c:2"], 1),
    ],
)
def test_a_dump_is_read(answers: list[bytes], keys: list[bytes], waits: int) -> None:
    slept: list[float] = []
    with open_dump(DumpingNode(*answers), "shop", slept.append) as found:
        assert list(found) == keys
    assert len(slept) == waits


@pytest.mark.parametrize(
    ("answer", "message"), [(b"key=shop%3Ac%3A1 exp=0\n", "before END"), (b"BUSY x\r\n", "was busy")]
)
def test_a_dump_that_is_cut_or_never_given_is_no_empty_one(answer: bytes, message: str) -> None:
    slept: list[float] = []
    with pytest.raises(NodeUnavailable, match=message), open_dump(DumpingNode(answer), "shop", slept.append):
        pass
    assert len(slept) in (0, BUSY_RETRIES_MAX)
