"""Invalidation on a cluster: the update stream into the cache nodes, as a structured streaming job.

``freshness-spark sink --config freshness.toml --archive PATH|--url URL --checkpoint DIR``, or spark-submit.
The same stripes, table floors and progress as `invalidator run` writes, for when one machine's decoding and
sending do not suffice. Runs until it is stopped, or with ``--once`` until it has caught up. The work is done by
``spark.sink.sender`` on the executors and ``spark.sink.keeper`` on the driver. While Spark starts, or stalls, the
driver does it alone (``spark.sink.stand_in``).
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final

from freshness.errors import FreshnessError, required_packages

with required_packages("spark.sink", "spark"):
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from freshness.config.config import Config, load_config
    from freshness.exposition import serving
    from spark.arguments import add_source, choose_keyspace, parse_arguments, read_source
    from spark.batch import BATCH_ROWS
    from spark.failure import SPARK_ERRORS, tell_failure
    from spark.session import using_session
    from spark.sink.keeper import Keeper
    from spark.sink.metrics import SinkMetrics
    from spark.sink.sink import NAME, open_sink
    from spark.sink.stand_in import StandIn
    from spark.stream import source as updatestream

TRIGGER_SECONDS: Final = 1.0
STOP_SEEN_SECONDS: Final = 0.5
JOIN_SECONDS: Final = 10.0


def start_query(
    session: SparkSession,
    config: Config,
    keeper: Keeper,
    source: Mapping[str, str],
    checkpoint: str,
    *,
    trigger_seconds: float | None = TRIGGER_SECONDS,
) -> StreamingQuery:
    """The streaming query. ``source``: options of the update stream. Without a checkpoint and without ``since`` it
    begins at the positions that all nodes have acknowledged. ``trigger_seconds`` None: until it has caught up."""
    options = dict(source)
    if "since" not in options:
        keeper.begin()
        starts = keeper.find_starts()
        keeper.require_keys(keeper.lineages)
        if len(starts) == len(keeper.lineages):
            options["since"] = ",".join(map(str, starts))
    updatestream.register(session)
    frame = session.readStream.format(updatestream.NAME).options(**options).load()
    writer = frame.writeStream.format(NAME).option("config", str(config.path))
    writer = writer.option("checkpointLocation", checkpoint)
    if trigger_seconds is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{trigger_seconds} seconds")
    return updatestream.start_query(writer)


def main(arguments: Sequence[str] | None = None, session: SparkSession | None = None) -> int:
    """Run the job. A session that is handed over is not stopped."""
    parser = argparse.ArgumentParser(
        prog="freshness-spark sink", description="Invalidate from the update stream, on a Spark cluster."
    )
    parser.add_argument("--config", default="freshness.toml", help="the configuration file")
    add_source(parser)
    parser.add_argument("--checkpoint", required=True, help="folder or URI for Spark's own state")
    parser.add_argument("--since", help='where to begin without a checkpoint: "first", "now" or event tokens')
    parser.add_argument("--trigger-seconds", type=float, default=TRIGGER_SECONDS, help="between micro-batches")
    parser.add_argument("--once", action="store_true", help="end when everything there is has been applied")
    parser.add_argument("--metrics-listen", help="serve metrics for Prometheus there, as HOST:PORT")
    options = parse_arguments(parser, arguments)
    try:
        config = load_config(options.config)
        source = {**read_source(options), "keyspace": choose_keyspace(config, options.keyspace)}
        if options.since:
            source["since"] = options.since
        with ExitStack() as stack:
            stand_in = None
            metrics = SinkMetrics()
            if options.metrics_listen:
                stack.enter_context(serving(metrics.registry, options.metrics_listen))
            if options.url and not options.once:
                # Before the session, which takes longer to start than nodes stay open
                stand_in = stack.enter_context(StandIn(config, source))
                metrics.find_stand_in = stand_in.find_keeper
            used = stack.enter_context(using_session(session, "freshness invalidate", options.master, BATCH_ROWS))
            described = _run(used, config, source, options, stand_in, metrics)
    except (FreshnessError, *SPARK_ERRORS) as error:
        return tell_failure(error)
    if options.json:
        sys.stdout.write(json.dumps(described, indent=2) + "\n")
    else:
        sys.stdout.write(f"{described['batches']} micro-batches, {described['items']} items invalidated\n")
    return 0


def _run(
    session: SparkSession,
    config: Config,
    source: Mapping[str, str],
    options: argparse.Namespace,
    stand_in: StandIn | None,
    metrics: SinkMetrics,
) -> dict[str, Any]:
    stops: list[int] = []  # no Event: its lock may be the one that the interrupted thread holds
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: stops.append(number))
    with open_sink(session, config) as keeper:
        metrics.keeper = keeper
        if stand_in is not None:
            stand_in.watch(keeper)
        trigger = None if options.once else options.trigger_seconds
        query = start_query(session, config, keeper, source, options.checkpoint, trigger_seconds=trigger)
        try:
            while not stops and not query.awaitTermination(STOP_SEEN_SECONDS):
                metrics.query.note(query)
                if stand_in is not None:
                    stand_in.check()
        finally:
            with suppress(PySparkException):  # what it failed with has been raised by awaitTermination
                query.stop()
        return keeper.describe()


if __name__ == "__main__":
    sys.exit(main())
