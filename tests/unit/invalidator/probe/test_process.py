"""The process of a prober, where the nodes do not list their entries."""

from __future__ import annotations

import logging
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from freshness.config.reader import load_config
from freshness.config.settings import Config
from freshness.errors import ConfigError
from integration.configuration import write_config
from invalidator.probe.prober import ProbePlan, Prober
from invalidator.probe.process import ProbeProcess, Sweeps, find_sweeps


def configure(folder: Path, **cache: object) -> Config:
    path = write_config(folder, "mysql", "mysql://app@127.0.0.1:1/shop", ["127.0.0.1:2"], cache=cache)
    return load_config(path)


def test_nodes_that_do_not_list_their_entries_are_not_swept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prober = create_autospec(Prober, instance=True)
    prober.plan = ProbePlan()
    assert isinstance(find_sweeps(configure(tmp_path), prober), Sweeps)
    assert caplog.records == []
    for cache in ({"backend": "redis"}, {"tls": True}):
        assert find_sweeps(configure(tmp_path, **cache), prober) is None
    with caplog.at_level(logging.WARNING):
        assert all("only changes are followed" in each.getMessage() for each in caplog.records)
    assert len(caplog.records) == 2


def test_one_sweep_of_such_nodes_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    config = configure(tmp_path, backend="redis")
    with pytest.raises(ConfigError, match="not listed"):
        ProbeProcess(lambda: config, ProbePlan(), lambda: False).sweep_once()
