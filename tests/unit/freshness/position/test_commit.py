"""Commit tokens: what is in them, how two become one, and their text."""

from __future__ import annotations

import base64

import pytest

from freshness.errors import FlavorMismatch, FormatError
from freshness.position import parse_position
from freshness.position.commit import TEXT_PREFIX, CommitToken
from freshness.position.token import ENCODED_BYTES_MAX, EventToken

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def token(lineage: str, text: str, epoch: int = 1, flavor: str = "mysql") -> EventToken:
    return EventToken(lineage, "-", epoch, 0, parse_position(flavor, text))


A = token("shop/-80", f"{UUID}:5")
B = token("shop/80-", f"{UUID}:7")


def test_one_token_for_each_lineage_in_the_order_of_their_names() -> None:
    assert CommitToken.of([B, A]).tokens == (A, B)
    for tokens in ((), (B, A), (A, A)):
        with pytest.raises(FormatError, match="one event token for each lineage"):
            CommitToken(tokens)


def test_a_union_has_the_commits_of_both() -> None:
    later = token("shop/-80", f"{UUID}:9")
    both = CommitToken.of([A, B]).union(CommitToken.of([later]))
    assert [str(each.position) for each in both.tokens] == [f"{UUID}:5:9", f"{UUID}:7"]


def test_of_two_epochs_the_lower_one_stays() -> None:
    """Its commits compare with nothing of the later epoch, so the primary is read. The later ones alone would
    forget them."""
    later = token("shop/-80", f"{UUID}:9", epoch=2)
    for tokens in ([A, later], [later, A]):
        assert CommitToken.of(tokens).tokens == (A,)


def test_positions_of_two_flavors_are_no_union() -> None:
    with pytest.raises(FlavorMismatch):
        CommitToken.of([A, token("shop/-80", "0-1-5", flavor="mariadb")])


@pytest.mark.parametrize("tokens", [[A], [A, B], [token("shop/-", "0-1-5,3-1-8", 7, "mariadb")]])
def test_the_text_comes_back(tokens: list[EventToken]) -> None:
    made = CommitToken.of(tokens)
    assert str(made) == made.format()
    assert made.format().startswith("fc1.")
    assert CommitToken.parse(f" {made.format()}\n") == made


def _text(data: bytes) -> str:
    return TEXT_PREFIX + base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not a commit token"),
        (A.format(), "is not a commit token"),
        (TEXT_PREFIX, "is not a commit token"),
        (TEXT_PREFIX + "A", "impossible length"),
        (_text(b"\0\0"), "event token"),
        (_text(b"\0\0\x09abc"), "event token"),
        (_text(len(A.encode()).to_bytes(3, "big") + A.encode()[:-1]), "inside a number"),
        (_text((len(A.encode()) + 1).to_bytes(3, "big") + A.encode()), "was altered"),
        (TEXT_PREFIX + "A" * (ENCODED_BYTES_MAX * 2), "bytes"),
    ],
)
def test_any_other_text_is_refused(text: str, says: str) -> None:
    with pytest.raises(FormatError, match=says):
        CommitToken.parse(text)
