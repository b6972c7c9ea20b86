"""Runs a module with one defence of the product taken out: ``python -m integration.chaos.planted BUG MODULE …``.

The bugs are those of the simulator, and some that take out so much that any run shows it.
"""

from __future__ import annotations

import runpy
import sys
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

import appclient.database.shard
import freshness.algorithm.applier
import freshness.algorithm.apply
import freshness.algorithm.together
from freshness.algorithm.apply import apply_batch
from freshness.algorithm.membership import Membership
from tests.simulation.bugs import PLANTED, Plant, _without_deletes


def _raise_nothing() -> AbstractContextManager[Any]:
    def apply(member: Membership, batch: freshness.algorithm.apply.Batch) -> Any:
        return apply_batch(member, replace(batch, raised={}))

    return patch.object(freshness.algorithm.applier, "apply_batch", apply)


BUGS: Final[dict[str, Plant]] = {
    **PLANTED,
    "entries are not deleted": lambda: patch.object(freshness.algorithm.apply, "invalidate", _without_deletes),
    "changes of whole tables are left out": _raise_nothing,
    "entries of any moment are together": lambda: patch.object(
        freshness.algorithm.together, "are_of_one_state", lambda spans: True
    ),
    "a loader has no snapshot": lambda: patch.object(appclient.database.shard, "_SNAPSHOT", "DO 0"),
}


def main(bug: str, module: str, *arguments: str) -> None:
    sys.argv = [module, *arguments]
    with BUGS[bug]():
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
