"""Runs a module with one defence of the product taken out: ``python -m integration.chaos.planted BUG MODULE …``.

The bugs are those of the simulator (`tests.simulation.bugs`), so no code of the product knows of them.
"""

from __future__ import annotations

import runpy
import sys

from tests.simulation.bugs import PLANTED


def main(bug: str, module: str, *arguments: str) -> None:
    sys.argv = [module, *arguments]
    with PLANTED[bug]():
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
