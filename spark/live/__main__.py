"""The command line of the live audit: ``freshness-spark live``, or spark-submit with this file.

``--config freshness.toml [--json] [--repair] [--master local[*]]``. Exit codes: 0 everything that is served is right,
2 usage or configuration, 3 not known, 5 stale data was found.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Final

from freshness.errors import FreshnessError, required_packages

with required_packages("spark.live", "spark"):
    from pyspark.sql import SparkSession
    from rich.console import Console

    from freshness.comparison.scope import load_scope
    from freshness.config.config import load_config
    from freshness.nodes.listing import require_listing
    from freshness.nodes.open import open_node
    from spark.arguments import parse_arguments
    from spark.failure import SPARK_ERRORS, tell_failure
    from spark.live.job import audit
    from spark.live.report import print_summary
    from spark.session import require_encryption, using_session

_PRINTED_WIDTH: Final = 160


def main(arguments: Sequence[str] | None = None, session: SparkSession | None = None) -> int:
    """Run the job and print its result. A session that is handed over is not stopped."""
    parser = argparse.ArgumentParser(
        prog="freshness-spark live", description="Compare what the cache nodes hold now with the primary."
    )
    parser.add_argument("--config", default="freshness.toml", help="the configuration file")
    parser.add_argument("--repair", action="store_true", help="remove poisoned entries")
    options = parse_arguments(parser, arguments)
    try:
        config = load_config(options.config)
        require_listing(config.cache.access)
        with required_packages("spark.live", "spark"):  # of its technology; here, and not in a task
            open_node(config.cache.access, config.cache.nodes[0]).close()
        scope = load_scope(config, carries_passwords=True)
        with using_session(session, "freshness audit_live", options.master) as used:
            require_encryption(used, [*scope.servers, scope.access.login])
            summary = audit(used, scope, repairs=options.repair)
    except (FreshnessError, *SPARK_ERRORS) as error:
        return tell_failure(error)
    if options.json:
        sys.stdout.write(json.dumps(summary.to_json(), indent=2, ensure_ascii=False) + "\n")
    else:
        print_summary(summary, Console(width=None if sys.stdout.isatty() else _PRINTED_WIDTH))
    return summary.exit_code


if __name__ == "__main__":
    sys.exit(main())
