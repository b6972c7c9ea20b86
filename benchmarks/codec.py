"""What it costs to turn a cached row into bytes and back, against JSON from the standard library."""

from __future__ import annotations

import json
from typing import Any, Final

from benchmarks.measure import Result, interleave, stopwatch
from freshness.values.codec import decode_value, encode_value

COUNT: Final = 20_000
ROW: Final[dict[str, Any]] = {
    "id": 42,
    "name": "Customer 42",
    "email": "customer42@example.org",
    "visits": 17,
    "city": "London",
    "note": None,
}
"""Only what JSON has too; Decimal and dates it would lose."""


def measure_codec(rounds: int) -> list[Result]:
    """Decoding is in every hit, encoding in every fill."""
    packed, text = encode_value(ROW), json.dumps(ROW)
    assert decode_value(packed) == json.loads(text) == ROW

    def repeated(function: Any, argument: Any) -> float:
        def work() -> None:
            for _ in range(COUNT):
                function(argument)

        return stopwatch(work)

    decoded = interleave(lambda _: repeated(decode_value, packed), lambda _: repeated(json.loads, text), rounds)
    encoded = interleave(lambda _: repeated(encode_value, ROW), lambda _: repeated(json.dumps, ROW), rounds)
    return [
        decoded.microseconds("codec", COUNT, "json.loads"),
        encoded.microseconds("codec_encode", COUNT, "json.dumps"),
    ]
