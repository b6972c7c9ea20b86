"""Audits recorded history on Spark Connect, in a process of its own: a process has one kind of session.

``python -m integration.spark.connect_audit ARCHIVE HISTORY`` prints the summary and the violations as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

from spark.audit.engine.cluster import SparkEngine
from spark.audit.engine.step import Engine
from spark.audit.input.recording import open_actions, open_changes
from spark.audit.job import audit
from spark.audit.model.finding import Rules
from spark.audit.shuffle.survey import Scope
from tests.simulation.planted import AS_OF_US


def audit_folders(engine: Engine, archive: str, history: str, **options: Any) -> dict[str, Any]:
    """What an audit says."""
    changes, actions = open_changes(engine, archive), open_actions(engine, history)
    result = audit(engine, changes, actions, rules=Rules(0), scope=Scope(AS_OF_US), pieces=4, **options)
    result.close()
    violations = list(map(str, result.violations.to_pylist()))
    return {"summary": json.loads(json.dumps(result.summary.to_json())), "violations": violations}


if __name__ == "__main__":
    connected = SparkSession.builder.remote("local[2]").getOrCreate()
    try:
        sys.stdout.write(json.dumps(audit_folders(SparkEngine(connected), *sys.argv[1:])))
    finally:
        connected.stop()
