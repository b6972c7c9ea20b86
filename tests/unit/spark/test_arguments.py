"""The command lines of the jobs: an option is never empty."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark.archive.__main__ import main as archive
from spark.audit.__main__ import main as audit
from spark.copy.__main__ import main as copy
from spark.sink.__main__ import main as sink
from spark.table_at.__main__ import main as table_at

USAGE = 2


@pytest.mark.parametrize(
    ("main", "arguments", "name"),
    [
        (archive, [""], "archive"),
        (audit, ["--archive", "a", "--history", "h", "--report", "r", "--save-state", ""], "save-state"),
        (audit, ["--archive", "a", "--history", "h", "--report", ""], "report"),
        (copy, ["--out", " ", "--archive", "a"], "out"),
        (table_at, ["--archive", "a", "--copy", "c", "--table", "t", "--at", "", "--out", "o"], "at"),
        (sink, ["--checkpoint", "c", "--url", "u", "--token-file", ""], "token-file"),
    ],
)
def test_an_empty_option_is_refused(
    main: Callable[[list[str]], int], arguments: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == USAGE
    assert f"{name} is empty" in capsys.readouterr().err
