"""The process of a prober whose nodes no other program can list."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from freshness.config.config import load_config
from freshness.errors import ConfigError
from integration.configuration import write_config
from invalidator.probe.prober import ProbePlan
from invalidator.probe.process import ProbeProcess


@pytest.mark.parametrize("run", [ProbeProcess.run, ProbeProcess.sweep_once])
def test_nodes_inside_a_program_are_refused_before_anything_is_opened(
    run: Callable[[ProbeProcess], None], tmp_path: Path
) -> None:
    cache = {"backend": "memory"}
    path = write_config(tmp_path, "mysql", "mysql://app@127.0.0.1:1/shop", ["127.0.0.1:2"], cache=cache)
    config = load_config(path)
    with pytest.raises(ConfigError, match="nobody else lists them"):
        run(ProbeProcess(lambda: config, ProbePlan(), lambda: False))
