"""Sharding functions: the ids that Vitess's own tests publish, and no id at all instead of a guess."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pytest

from freshness.database.sharding import FUNCTIONS, keyspace_id, weigh_loosely
from freshness.errors import ConfigError, FormatError

TEST_MD5 = "0b5e dbb4 01fd 7524 3936 9049 1d64 f1f5"
TEST_XX = "42d2 1361 087a 4c07"


@pytest.mark.parametrize(
    ("function", "value", "expected"),
    [
        ("hash", 1, "166b40b44aba4bd6"),
        ("hash", 2, "06e7ea22ce92708f"),
        ("hash", 3, "4eb190c9a2fa169c"),
        ("hash", 4, "d2fd8867d50d2dfe"),
        ("hash", 5, "70bb023c810ca87a"),
        ("hash", 6, "f098480ac4c4be71"),
        ("xxhash", "test1", "d01ab7e4d6978f0b"),
        ("xxhash", "test2", "87eb11714c0a0e89"),
        ("xxhash", b"testaverylongvaluetomakesurethisworks", "81d8c38e0d850e6a"),
        ("xxhash", 1, "d46405367612b4b7"),
        ("xxhash", -1, "d8e2a6a7c8c7623d"),
        ("xxhash", 2**64 - 1, "477cfa8d6d8f1f8d"),
        ("xxhash", 2**63 - 1, "b37eb01f7bffafd8"),
        ("xxhash", -(2**63), "102c27ddb26a609e"),
        ("numeric", 1, "0000000000000001"),
        ("numeric", 8, "0000000000000008"),
        ("reverse_bits", 1, "8000000000000000"),
        ("reverse_bits", 5, "a000000000000000"),
        ("reverse_bits", 6, "6000000000000000"),
        ("binary", b"test2", b"test2".hex()),
        ("binary_md5", "Test", "0cbc6611f5540bd0809a388dc95a615b"),
        ("binary_md5", "TEST", "033bd94b1168d7e4f0d644c3c95e35bf"),
        *(("unicode_loose_md5", text, TEST_MD5) for text in ("Test", "TEST", "Te\u0301st", "Tést", "Test ")),
        ("unicode_loose_md5", "Bést", "c2b2 332e 4f73 d007 4102 6249 706f 2fb6"),
        ("unicode_loose_md5", " Test", "a2e3 515c 7e8d f1ff d2cc fc11 c6b1 9dd1"),
        ("unicode_loose_md5", "Test\t", "8245 6dd8 7a9c 7a02 b1c2 056b 5aba a272"),
        ("unicode_loose_md5", "TéstLooong", "9683 e12b 8043 0cd4 53f5 dfdf ba81 c9a5"),
        ("unicode_loose_md5", "T", "ac0f 9179 f51d b87f e8ec c0cf 40ca b97a"),
        *(("unicode_loose_xxhash", text, TEST_XX) for text in ("Test", "TEst", "Te\u0301st", "Tést", b"Test ")),
        ("unicode_loose_xxhash", "Bést", "9269 75b9 ce2e c316"),
        ("unicode_loose_xxhash", " Test", "4fcb 8be3 4ec0 5775"),
        ("unicode_loose_xxhash", "Test\t", "20af 87fc 36e3 fd51"),
        ("unicode_loose_xxhash", "TéstLooong", "d3ea 8739 42b4 84a7"),
        ("unicode_loose_xxhash", "T", "f81c 3be2 d501 fe18"),
    ],
)
def test_ids_are_those_of_vitess(function: str, value: object, expected: str) -> None:
    assert keyspace_id(function, value).hex() == expected.replace(" ", "")


def test_des_is_des() -> None:
    """Published ciphertexts under the zero key; a negative number is its two's complement."""
    assert keyspace_id("hash", 0).hex() == "8ca64de9c1b123a7"
    assert keyspace_id("hash", -1) == keyspace_id("hash", 2**64 - 1)
    assert keyspace_id("hash", -1).hex() == "355550b2150e2451"


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("TéstLooong", "1816164c17f318161711177117711771174f1691"),
        (" Test", "01091816164c17f31816"),
        ("Test\t ", "1816164c17f318160100"),
        ("straße", "17f3181617bd15ef17f317f3164c"),
        ("Æ…", "15ef164c017201720172"),
        ("", ""),
        ("\u0301", ""),
    ],
)
def test_weights_are_primary_ones(text: str, weights: str) -> None:
    assert weigh_loosely(text).hex() == weights


@pytest.mark.parametrize("pair", [("ł", "L"), ("Ångström", "angstrom"), ("ﬁ", None), ("Ệ", "e"), ("№", None)])
def test_accents_do_not_count_and_unknown_text_is_refused(pair: tuple[str, str | None]) -> None:
    text, equal = pair
    if equal is None:
        with pytest.raises(FormatError, match=r"U\+"):
            weigh_loosely(text)
    else:
        assert weigh_loosely(text) == weigh_loosely(equal)


@pytest.mark.parametrize("text", ["l·l", "привет", "日本", "\x00", "\u00ad", "😀", "a\u0363"])
@pytest.mark.parametrize("function", ["unicode_loose_md5", "unicode_loose_xxhash"])
def test_text_without_known_weights_has_no_id(function: str, text: str) -> None:
    with pytest.raises(FormatError) as caught:
        keyspace_id(function, text)
    assert "Latin" in caught.value.hint


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
@pytest.mark.parametrize("value", [None, 1.0, True, Decimal("1.5"), Decimal("5.00"), Decimal("NaN"), [1]])
def test_values_of_a_wrong_type_are_refused(function: str, value: object) -> None:
    with pytest.raises(FormatError) as caught:
        keyspace_id(function, value)
    assert function in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("function", "value"),
    [
        ("numeric", -1),
        ("reverse_bits", -1),
        ("numeric", 2**64),
        ("hash", 2**64),
        ("hash", -(2**63) - 1),
        ("xxhash", 2**64),
        ("hash", "-1"),
        ("hash", "one"),
        ("hash", ""),
        ("hash", " 1"),
        ("hash", "²"),
        ("hash", b"\xff"),
        ("hash", "1" * 21),
        ("xxhash", "\ud800"),
        ("unicode_loose_md5", b"\xff"),
    ],
)
def test_values_out_of_range_are_refused(function: str, value: object) -> None:
    with pytest.raises(FormatError) as caught:
        keyspace_id(function, value)
    assert caught.value.hint


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
@pytest.mark.parametrize(
    "forms", [(7, Decimal(7), "7", b"7"), ("Test", b"Test", bytearray(b"Test")), (12345678901234567890,) * 2]
)
def test_one_row_has_one_id_whatever_form_its_value_has(function: str, forms: Sequence[object]) -> None:
    if isinstance(forms[0], str) and function in ("hash", "numeric", "reverse_bits"):
        for form in forms:
            with pytest.raises(FormatError):
                keyspace_id(function, form)
    else:
        assert len({keyspace_id(function, form) for form in forms}) == 1


def test_an_unknown_function_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        keyspace_id("md5", 1)
    assert all(name in caught.value.hint for name in FUNCTIONS)


def test_without_the_package_xxhash_only_its_functions_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_xxhash(name: str, globals: Mapping[str, Any] | None = None, *rest: Any) -> Any:
        if name == "xxhash":
            raise ImportError(name)
        return real(name, globals, *rest)

    monkeypatch.delitem(sys.modules, "xxhash", raising=False)
    monkeypatch.setattr(builtins, "__import__", without_xxhash)
    assert keyspace_id("hash", 1).hex() == "166b40b44aba4bd6"
    for function in ("xxhash", "unicode_loose_xxhash"):
        with pytest.raises(ConfigError, match="sharding"):
            keyspace_id(function, "a")
