"""What compression costs and gives, on a document of about 20 kB that is made of rows.

``python -m benchmarks.compression [--json]``. The document has the orders of a customer: numbers, dates, decimals,
short texts and random tokens. A hit is a request to a private memcached, and the value decoded; nothing of freshness
is in it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any, Final

from benchmarks.measure import ROUNDS, Result, interleave, stopwatch
from freshness.algorithm.request import Add
from freshness.nodes.memcached import MemcachedNode
from freshness.values.codec import decode_value, encode_value
from freshness.values.compression import compressing
from integration.servers import Memcached

ORDERS: Final = 118
COUNT: Final = 300
"""Of each piece of work, in a round."""

TTL_SECONDS: Final = 600
CITIES: Final = ("London", "Paris", "Berlin", "Madrid", "Roma", "Wien", "Praha", "Oslo")
WORDS: Final = (
    "blue", "red", "large", "small", "wooden", "steel", "lamp", "table", "chair", "shelf", "garden", "kitchen", "set",
    "of", "two", "four", "with", "without", "cover",
)  # fmt: skip


def make_document(random: Random) -> dict[str, Any]:
    """The same for the same ``random``."""
    begin = datetime(2026, 1, 1)  # noqa: DTZ001 - as a DATETIME column has it
    orders = [
        {
            "id": 1_000_000 + random.randrange(9_000_000),
            "created_at": begin + timedelta(seconds=random.randrange(20_000_000)),
            "status": random.choice(("paid", "sent", "returned")),
            "total": Decimal(random.randrange(100, 100_000)).scaleb(-2),
            "city": random.choice(CITIES),
            "token": random.randbytes(8).hex(),
            "text": " ".join(random.choices(WORDS, k=12)),
        }
        for _ in range(ORDERS)
    ]
    return {"customer": {"id": 42, "name": "Customer 42", "email": "customer42@example.org"}, "orders": orders}


def measure_compression(rounds: int) -> list[Result]:
    """Bytes, fill and hit of the document, compressed against plain."""
    document = make_document(Random(1))
    encode = compressing(encode_value, 1)
    plain, packed = encode_value(document), encode(document)
    assert decode_value(packed) == decode_value(plain) == document

    def repeated(function: Callable[[Any], Any], argument: Any) -> Callable[[int], float]:
        def work() -> None:
            for _ in range(COUNT):
                function(argument)

        return lambda _: stopwatch(work)

    size = len(packed) / len(plain)
    results = [Result("bytes", len(packed), "bytes", "plain", len(plain), (size, size))]
    encoded = interleave(repeated(encode, document), repeated(encode_value, document), rounds)
    decoded = interleave(repeated(decode_value, packed), repeated(decode_value, plain), rounds)
    results += [encoded.microseconds("encode", COUNT, "plain"), decoded.microseconds("decode", COUNT, "plain")]
    with Memcached() as server:
        node = MemcachedNode(server.address)
        node.perform([Add(b"plain", plain, TTL_SECONDS), Add(b"packed", packed, TTL_SECONDS)])

        def hit(key: bytes) -> None:
            data = node.find(key)
            assert data is not None
            decode_value(data)

        timings = interleave(repeated(hit, b"packed"), repeated(hit, b"plain"), rounds)
        node.close()
    return [*results, timings.microseconds("hit", COUNT, "plain")]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compression", description=__doc__)
    parser.add_argument("--json", action="store_true")
    is_json = parser.parse_args(arguments).json
    results = measure_compression(ROUNDS)
    if is_json:
        print(json.dumps([result.as_json() for result in results], indent=2))
        return
    for result in results:
        lowest, highest = result.spread
        print(
            f"{result.name:8} {result.value:10.0f} {result.unit:6} plain {result.baseline_value:10.0f}  "
            f"ratio {result.ratio:.2f} ({lowest:.2f} to {highest:.2f})"
        )


if __name__ == "__main__":
    main()
