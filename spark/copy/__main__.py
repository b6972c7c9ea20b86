"""The command line of the copy: ``freshness-spark copy``, or spark-submit with this file.

``--config freshness.toml --out DIR|--database URL --archive PATH|--url URL [--tables a,b]``; a later run continues
from the state of the previous one. Exit codes: 0 published, 2 usage or configuration, 3 not yet: the stream has not
come so far, 4 changes are missing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from freshness.errors import ConfigError, FreshnessError, SourceUnavailable, required_packages

with required_packages("spark.copy", "spark"):
    from pyspark.sql import SparkSession

    from freshness.config.config import Config, load_config
    from freshness.config.keyspace import Keyspace
    from freshness.config.server import ServerAddress
    from freshness.login import with_password, with_passwords
    from spark.arguments import add_source, choose_keyspace, parse_arguments, read_source
    from spark.copy.database import DatabaseTarget
    from spark.copy.folder import FolderTarget
    from spark.copy.job import ROWS_PER_RANGE, WAIT_SECONDS, Snapshot
    from spark.copy.state import PARQUET
    from spark.copy.target import CopyTarget
    from spark.failure import SPARK_ERRORS, tell_failure
    from spark.session import require_encryption, using_session


def main(arguments: Sequence[str] | None = None, session: SparkSession | None = None) -> int:
    """Run the job and print the state of the copy. A session that is handed over is not stopped."""
    options = _parse(arguments)
    try:
        config = load_config(options.config)
        keyspace, tables = _choose(config, options)
        keyspace = with_passwords(keyspace)
        source = {**read_source(options), "tables": ",".join(tables)}
        make_target = _target(options)
        left_out: dict[str, list[str]] = {}
        for text in options.leave_out:
            table, _, column = text.partition(".")
            left_out.setdefault(table, []).append(column)
        with using_session(session, "freshness snapshot", options.master) as used:
            target = make_target(used)
            require_encryption(used, _servers(keyspace, target))
            state = Snapshot(
                used,
                keyspace,
                target,
                tables,
                source,
                left_out,
                options.rows_per_range,
                options.wait_seconds,
                options.dump_from == "replica",
                options.rows_per_second,
            ).run()
    except (FreshnessError, *SPARK_ERRORS) as error:
        return tell_failure(error)
    missing = [name for name, table in state.tables.items() if table.needs_dump or table.published != table.folder]
    if options.json:
        sys.stdout.write(json.dumps(asdict(state), indent=2) + "\n")
    else:
        sys.stdout.write("".join(f"{lineage}: at {text}\n" for lineage, text in state.position.items()))
    if missing:
        sys.stderr.write(f"not yet: the stream has not come to the dump of {', '.join(missing)}; run it again\n")
    return SourceUnavailable.exit_code if missing else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="freshness-spark copy", description="Copy tables, and keep the copy up to date."
    )
    parser.add_argument("--config", default="freshness.toml", help="the configuration file")
    parser.add_argument("--out", help="folder of the copy, local or mounted on all executors")
    parser.add_argument(
        "--database",
        metavar="URL",
        help="keep the copy in another database: mysql://USER:${VARIABLE}@HOST:PORT/DATABASE, or ?password_file=PATH",
    )
    add_source(parser)
    parser.add_argument("--tables", help="with commas; by default those of the configured objects")
    parser.add_argument("--leave-out", action="append", default=[], metavar="TABLE.COLUMN", help="do not copy it")
    parser.add_argument("--rows-per-range", type=int, default=ROWS_PER_RANGE, help="of one task of a dump")
    parser.add_argument("--rows-per-second", type=float, help="of a dump, at most; by default as fast as it goes")
    parser.add_argument(
        "--dump-from",
        choices=("primary", "replica"),
        default="primary",
        help="the server whose rows are read: the primary, or the first replica of each shard",
    )
    parser.add_argument("--wait-seconds", type=float, default=WAIT_SECONDS, help="for a stream that lags")
    parser.add_argument("--format", help="what Spark writes to --out: parquet (the default), orc")
    return parse_arguments(parser, arguments)


def _choose(config: Config, options: argparse.Namespace) -> tuple[Keyspace, list[str]]:
    name = choose_keyspace(config, options.keyspace)
    lacking = [shard.name for shard in config.keyspaces[name].serving_shards if not shard.replicas]
    if options.dump_from == "replica" and lacking:
        raise ConfigError(
            f"shard {', '.join(lacking)} has no replica", hint="configure its replicas, or --dump-from primary"
        )
    if options.rows_per_second is not None and not options.rows_per_second > 0:
        raise ConfigError(f"--rows-per-second {options.rows_per_second:g}", hint="expected a number above 0")
    cached = {table for each in config.objects.values() if each.keyspace == name for table in each.tables}
    chosen = [part.strip() for part in options.tables.split(",")] if options.tables else sorted(cached)
    if not all(chosen) or not chosen:
        raise ConfigError("which tables?", hint="give --tables a,b: no object is configured, or a name is empty")
    return config.keyspaces[name], chosen


def _servers(keyspace: Keyspace, target: CopyTarget) -> list[ServerAddress]:
    """All databases that executors log in to."""
    servers = [server for shard in keyspace.serving_shards for server in (shard.writable, *shard.replicas)]
    return [*servers, target.address] if isinstance(target, DatabaseTarget) else servers


def _target(options: argparse.Namespace) -> Callable[[SparkSession], CopyTarget]:
    """Checked before there is a session, which a folder needs."""
    if bool(options.out) == bool(options.database):
        raise ConfigError("keep the copy where?", hint="give either --out or --database")
    if not options.database:
        return lambda used: FolderTarget(used, Path(options.out).absolute(), options.format or PARQUET)
    if options.format:
        raise ConfigError("--format says what is written to a folder", hint="leave it out with --database")
    try:
        target = DatabaseTarget(with_password(ServerAddress.parse(options.database, os.environ)))
    except ConfigError as error:
        raise ConfigError(
            f"--database: {error.message}", hint="expected mysql://USER:${VARIABLE}@HOST:PORT/DATABASE"
        ) from None
    return lambda _: target


if __name__ == "__main__":
    sys.exit(main())
