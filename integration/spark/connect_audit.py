"""Audits recorded history on Spark Connect, in a process of its own: a process has one kind of session.

``python -m integration.spark.connect_audit ARCHIVE HISTORY`` prints the summary and the violations as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

from spark.audit.finding import Rules
from spark.audit.job import audit
from spark.history import read_actions, read_changes
from tests.simulation.planted import AS_OF_US


def audit_folders(session: SparkSession, archive: str, history: str) -> dict[str, Any]:
    """What an audit says."""
    changes, actions = read_changes(session, archive), read_actions(session, history)
    result = audit(changes, actions, rules=Rules(0), as_of_us=AS_OF_US, partitions=4)
    violations = sorted(str(row.asDict()) for row in result.violations.collect())
    result.close()
    return {"summary": json.loads(json.dumps(result.summary.to_json())), "violations": violations}


if __name__ == "__main__":
    connected = SparkSession.builder.remote("local[2]").getOrCreate()
    try:
        sys.stdout.write(json.dumps(audit_folders(connected, *sys.argv[1:])))
    finally:
        connected.stop()
