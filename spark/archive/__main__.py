"""The command line of archive maintenance: ``freshness-spark archive``, or spark-submit with this file.

``PATH [--keep-days N] [--grace-seconds N] [--check] [--json]``. Exit codes: 0 whole, 2 usage or a file that cannot be
understood, 4 transactions are missing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from freshness.errors import FreshnessError, required_packages

with required_packages("spark.archive", "spark"):
    from pyspark.sql import SparkSession

    from spark.archive.compaction import GRACE_SECONDS, check_archive, compact, list_local
    from spark.arguments import parse_arguments
    from spark.failure import SPARK_ERRORS, tell_failure
    from spark.session import using_session

MISSING: Final = 4


def main(arguments: Sequence[str] | None = None, session: SparkSession | None = None) -> int:
    """Run the job and print what it did. A session that is handed over is not stopped."""
    parser = argparse.ArgumentParser(prog="freshness-spark archive", description="Merge, check and prune an archive.")
    parser.add_argument("archive", help="its folder")
    parser.add_argument("--keep-days", type=float, help="delete files that are older, from the front")
    parser.add_argument(
        "--grace-seconds", type=float, default=GRACE_SECONDS, help="how long merged files stay for their readers"
    )
    parser.add_argument("--check", action="store_true", help="only check")
    options = parse_arguments(parser, arguments)
    try:
        list_local(options.archive)  # a folder that cannot be one is refused before Spark starts
        with using_session(session, "freshness compact", options.master) as used:
            result = (
                check_archive(used, options.archive)
                if options.check
                else compact(used, options.archive, keep_days=options.keep_days, grace_seconds=options.grace_seconds)
            )
    except (FreshnessError, *SPARK_ERRORS) as error:
        return tell_failure(error)
    _print(result, is_json=options.json)
    return MISSING if result["problems"] else 0


def _print(result: Mapping[str, Any], *, is_json: bool) -> None:
    if is_json:
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
        return
    for problem in result["problems"]:
        sys.stdout.write(f"{problem['path']}: {problem['problem']}\n")
    for lineage, holes in result["holes"].items():
        sys.stdout.write(f"{lineage}: numbers that never came, unless they were handed out in blocks: {holes}\n")
    for merged in result["merged"]:
        sys.stdout.write(
            f"{merged['folder']}: {merged['inputs']} files, {merged['bytes_before']:,} bytes, became "
            f"{merged['outputs']}, {merged['bytes_after']:,} bytes\n"
        )
    sys.stdout.write(f"{result['deleted']} files deleted, {len(result['problems'])} problems\n")


if __name__ == "__main__":
    sys.exit(main())
