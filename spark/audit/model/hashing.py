"""Hashes of names: the numbers that stand for items, clients, nodes and lineages in all steps of the audit.

XXH3 is fast, and the same on every machine and in every release: a saved state holds its results. An item has 96
bits, so that two of a thousand million items hardly ever are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy
import pyarrow
import pyarrow.compute
import xxhash
from numpy.typing import NDArray

from spark.audit.model.row import NO_NUMBER

_DENSE_MAX: Final = 1 << 20
DIGEST_BYTES: Final = 8
"""Bytes of a digest that are compared; they are a hash already."""


@lru_cache(65536)
def hash_name(name: str) -> int:
    """64 bits, signed."""
    return int.from_bytes(xxhash.xxh3_64_digest(name.encode()), "little", signed=True)


def hash_names(names: pyarrow.Array) -> NDArray[numpy.int64]:
    """As `hash_name`; null is a name of no letter."""
    distinct = names.dictionary_encode()
    numbers = [hash_name(name) for name in distinct.dictionary.to_pylist()]
    known = numpy.array([*numbers, hash_name("")], numpy.int64)
    found: NDArray[numpy.int64] = known[distinct.indices.fill_null(len(numbers)).to_numpy()]
    return found


def hash_items(items: pyarrow.Array) -> tuple[NDArray[numpy.int64], NDArray[numpy.int32]]:
    """(h1, h2) of each item; none of them is null."""
    distinct = items.dictionary_encode()
    digests = b"".join(map(xxhash.xxh3_128_digest, distinct.dictionary.to_pylist()))
    at = distinct.indices.to_numpy()
    h1 = numpy.frombuffer(digests, "<i8")[::2].astype(numpy.int64)
    h2 = numpy.frombuffer(digests, "<i4")[2::4].astype(numpy.int32)
    return h1[at], h2[at]


def shorten(digests: pyarrow.Array) -> pyarrow.Array:
    """The first `DIGEST_BYTES` of each digest as a number; a hash of one that is shorter; null for null."""
    length = pyarrow.compute.binary_length(digests).fill_null(0).to_numpy(zero_copy_only=False)
    is_long = length >= DIGEST_BYTES
    numbers = numpy.zeros(len(digests), numpy.int64)
    if is_long.any():
        offsets = numpy.frombuffer(digests.buffers()[1], numpy.int32, len(digests) + 1, digests.offset * 4)
        numbers[is_long] = read_at(digests.buffers()[2], offsets[:-1][is_long], numpy.dtype("<i8"))
    for at in numpy.flatnonzero((length > 0) & ~is_long).tolist():
        numbers[at] = numpy.frombuffer(xxhash.xxh3_64_digest(digests[at].as_py()), "<i8")[0]
    is_there = digests.is_valid().to_numpy(zero_copy_only=False)
    # The number that stands for null in the replay is not a digest.
    numbers[numbers == NO_NUMBER] = 0
    return pyarrow.array(numbers, mask=~is_there)


def read_at(data: Any, starts: NDArray[Any], kind: numpy.dtype[Any]) -> NDArray[Any]:
    """The element that begins at each of these bytes of a buffer."""
    count = max(0, memoryview(data or b"").nbytes - kind.itemsize + 1)
    found: NDArray[Any] = numpy.ndarray((count,), kind, data or b"", strides=(1,))[starts]
    return found


def number_values(values: NDArray[Any]) -> tuple[NDArray[numpy.int64], NDArray[Any]]:
    """(for each value the number of its like, from 0 on, the different values in the order of their numbers)."""
    if values.dtype.kind == "S":
        kind = pyarrow.binary(values.itemsize)
        held = pyarrow.Array.from_buffers(kind, len(values), [None, pyarrow.py_buffer(values)])
    else:
        held = pyarrow.array(values)
    encoded = held.dictionary_encode()
    distinct = encoded.dictionary.to_numpy(zero_copy_only=False)
    return encoded.indices.to_numpy().astype(numpy.int64), distinct


def find_distinct(values: NDArray[Any]) -> NDArray[Any]:
    """The different values, rising. Fast if there is only one, as in most histories."""
    if len(values) and (values == values[0]).all():
        return values[:1]
    return numpy.unique(values)


def find_firsts(codes: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
    """Where each number of `number_values` comes first."""
    first = numpy.empty(int(codes.max()) + 1 if len(codes) else 0, numpy.int64)
    first[codes[::-1]] = numpy.arange(len(codes))[::-1]
    return first


def combine(columns: Sequence[pyarrow.Array]) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]:
    """(for each row the number of its combination of values, from 0 on, for each combination one of its rows)."""
    keys, size = numpy.zeros(len(columns[0]), numpy.int64), 1
    for column in columns:
        encoded = column.dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy().astype(numpy.int64) + 1
        keys, size = keys * (len(encoded.dictionary) + 1) + codes, size * (len(encoded.dictionary) + 1)
        if size > _DENSE_MAX:
            keys, distinct = number_values(keys)
            size = len(distinct)
    is_there = numpy.zeros(size, numpy.bool_)
    is_there[keys] = True
    keys = (numpy.cumsum(is_there) - 1)[keys]
    return keys, find_firsts(keys)


def join_lists(lists: pyarrow.Array, separator: str) -> pyarrow.Array:
    """Each list of texts as one text; "" for null."""
    lengths = pyarrow.compute.list_value_length(lists).fill_null(0).to_numpy()
    joined: Any
    if (lengths == 1).all():
        joined = lists.flatten()
    else:
        joined = pyarrow.compute.binary_join(lists.cast(pyarrow.list_(pyarrow.string())), separator)
    return joined.fill_null("")
