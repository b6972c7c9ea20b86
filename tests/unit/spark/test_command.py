"""``freshness-spark`` before it starts a job."""

from __future__ import annotations

import sys

import pytest

from spark.command import JOBS, main


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_names_the_jobs(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["freshness-spark", option])
    main()
    assert capsys.readouterr() == (
        f"usage: freshness-spark {' | '.join(JOBS)}, then the job's options or --help\n",
        "",
    )


@pytest.mark.parametrize("arguments", [[], ["adit"], ["--version"]])
def test_another_word_is_no_job(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["freshness-spark", *arguments])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err.startswith("usage: freshness-spark")
