"""``freshness-spark JOB …``: a job of this package on one machine, from any folder.

``python -m spark.JOB`` takes the folder in which it is started for the first place of modules, and so do Python's
processes of a local session: a repository with a folder ``spark`` of its own would stand in the way.
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import Final

JOBS: Final = ("archive", "audit", "copy", "sink", "table_at")


def main() -> None:
    """Exit codes: those of the job; 2 if it does not exist."""
    job = sys.argv[1] if len(sys.argv) > 1 else ""
    usage = f"usage: freshness-spark {' | '.join(JOBS)}, then the job's options or --help\n"
    if job in ("-h", "--help"):
        sys.stdout.write(usage)
        return
    if job not in JOBS:
        sys.stderr.write(usage)
        sys.exit(2)
    os.environ["PYTHONSAFEPATH"] = "1"
    del sys.argv[1]
    runpy.run_module(f"spark.{job}", run_name="__main__", alter_sys=True)
