"""Whether each number of a range is there once, told from sums, without a shuffle of the numbers.

The count alone is deceived where as many are lost as are there twice. So the sum of the numbers and the sum of their
squares must be right, too: a block that is lost and one that is there twice change the sum, two of each change the
squares. Both are taken modulo a prime, so that no sum exceeds 64 bits.
"""

from __future__ import annotations

from typing import Final

PRIME: Final = 2**31 - 1


def has_each_once(first: int, last: int, count: int, total: int, squares: int) -> bool:
    """Whether ``count`` numbers from ``first`` to ``last`` with these sums are all numbers of the range."""
    whole = _total(last) - _total(first - 1), _squares(last) - _squares(first - 1)
    return count == last - first + 1 and (total, squares) == (whole[0] % PRIME, whole[1] % PRIME)


def _total(last: int) -> int:
    return last * (last + 1) // 2


def _squares(last: int) -> int:
    return last * (last + 1) * (2 * last + 1) // 6
