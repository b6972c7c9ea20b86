"""The figures of README.md are those of the last run, and lean against this project."""

from __future__ import annotations

from typing import Any

import pytest

from docs.figures import Results, figures


def result(name: str, value: float, ratio: float = 1.0, baseline_value: float = 1.0) -> dict[str, Any]:
    return {"name": name, "value": value, "ratio": ratio, "baseline_value": baseline_value}


RUN = (
    result("end_to_end_mariadb_singles_same_core", 119_900, 30.9),
    result("end_to_end_mysql_singles_other_core", 98_900, 22.9),
    result("end_to_end_mysql_thousands_same_core", 555_000, 31.0),
    result("decode_mysql_rows", 8_690_000.0),
    result("decode_mysql_wide_rows", 1_590_000.0),
    result("decode_mysql_whole_rows", 512_000.0, 7.0),
    result("decode_mariadb_whole_wide_rows", 77_900.0, 5.9),
    result("stream_mysql_wide_rows", 1.0, baseline_value=3_450_000.0),
    result("lag_mysql_p50_same_core", 201.0),
    result("lag_mysql_p50_other_core", 110.0),
    result("lag_mysql_p99_same_core", 500.0),
    result("hit_same_core", 30.0, 1.481),
    result("hit_other_core", 60.0, 1.1),
    result("get_many_same_core", 1.0, 0.301),
    result("get_many_meta_same_core", 1.0, 9.0),
    result("memory_stream", 45.1),
    result("memory_transaction", 68.2),
)


def test_the_worst_of_several_results_counts_and_is_rounded_against_us() -> None:
    text = " ".join(figures(Results(RUN)).split())
    for shown in (
        "98,000 single-row transactions",
        "550,000 rows",
        "at least 22 times",
        "1.5 to 8.6 million",
        "77,000 rows a second and more, 5 times",
        "3.4 to 3.4 million",
        "0.3 ms, and 0.5 ms",
        "1.49 times a `get`",
        "0.31 of its",
        "46 MB",
        "69 MB",
    ):
        assert shown in text


def test_a_result_that_is_missing_is_named() -> None:
    with pytest.raises(LookupError, match="no result hit"):
        figures(Results(tuple(each for each in RUN if not each["name"].startswith("hit"))))
