"""The command line without servers: error lines, exit codes, what goes where."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from freshness import __version__, errors
from freshness.config.schema import describe_file
from freshness.position import MysqlGtidSet
from freshness.position.token import EventToken
from freshness.stream.lines import encode_line
from invalidator import cli
from tests.unit.freshness.stream.test_lines import SCHEMA, update

CHECKOUT = Path(__file__).resolve().parents[4]
USAGE = 2
SECRET = "s3cr3t"
CONFIG = f"""[cache]
nodes = ["127.0.0.1:1"]
namespace = "shop"
[keyspaces.shop]
flavor = "mariadb"
[[keyspaces.shop.shards]]
primary = "mysql://app:{SECRET}@127.0.0.1:1/shop"
[objects.customer]
table = "customers"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "freshness.toml"
    path.write_text(CONFIG)
    return path


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["invalidator", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    code = end.value.code
    assert isinstance(code, int)
    return code


@pytest.mark.parametrize("arguments", [("--version",), ("--version", "run")])
def test_the_version(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, *arguments) == 0
    assert capsys.readouterr().out == f"freshness {__version__}\n"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The console script."""
    path = tmp_path / "bin" / "invalidator"
    path.parent.mkdir()
    path.write_text(f"#!{sys.executable}\nfrom invalidator.cli import main\nmain()\n")
    path.chmod(0o700)
    return path


def complete(program: Path, **variables: str) -> str:
    """The answer of the program to a shell's script."""
    environment = {"PATH": f"{program.parent}:{os.defpath}", "PYTHONPATH": str(CHECKOUT), **variables}
    ended = subprocess.run([program], env=environment, capture_output=True, text=True, check=True, timeout=500)
    return ended.stdout


def test_bash_completes_verbs_and_options(program: Path) -> None:
    script = subprocess.run(
        [sys.executable, "-m", "invalidator.cli", "completion", "bash"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    ask = """
    for line in "invalidator in" "invalidator run --log" "invalidator completion "; do
        IFS=' ' read -ra COMP_WORDS <<< "$line"
        [[ $line == *' ' ]] && COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        $(complete -p invalidator | sed 's/.*-F \\([^ ]*\\) .*/\\1/') invalidator
        (IFS=,; echo "${COMPREPLY[*]}")
    done
    """
    completed = subprocess.run(
        ["bash", "--norc", "-c", f"{script}\n{ask}"],
        env={"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=500,
    )
    assert completed.stdout.split() == ["inspect,invalidate", "--log-level,--log-format", "bash,zsh,fish"]


@pytest.mark.parametrize(
    ("shell", "variables"),
    [
        ("zsh", {"_TYPER_COMPLETE_ARGS": "invalidator in"}),
        ("fish", {"_TYPER_COMPLETE_ARGS": "invalidator in", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}),
    ],
)
def test_other_shells_get_their_answers(
    shell: str,
    variables: dict[str, str],
    program: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As their scripts ask, which name the program and these variables."""
    answer = complete(program, _INVALIDATOR_COMPLETE=f"complete_{shell}", **variables)
    assert [word for word in ("inspect", "invalidate", "check") if word in answer] == ["inspect", "invalidate"]
    assert run_main(monkeypatch, "completion", shell) == 0
    script = capsys.readouterr().out
    for said in (f"_INVALIDATOR_COMPLETE=complete_{shell}", *variables):
        assert said in script


@pytest.mark.parametrize(
    "package", ["fastapi", "uvicorn", "pyarrow", "pymysqlreplication", "prometheus_client", "grpc"]
)
def test_a_verb_does_not_wait_for_the_packages_of_another(package: str) -> None:
    """The web framework alone takes longer to import than all the rest, and every verb would pay for it."""
    loaded = f"import sys, invalidator.cli; sys.exit({package!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loaded], check=False).returncode == 0


def test_help_names_every_verb_and_no_verb_is_a_usage_error() -> None:
    result = CliRunner().invoke(cli.app, ["--help"])
    assert result.exit_code == 0
    for verb in (
        *(
            "run",
            "check",
            "status",
            "inspect",
            "invalidate",
            "stream",
            "schema",
            "record",
            "replay",
            "reshard",
            "compare",
        ),
    ):
        assert verb in result.stdout
        assert CliRunner().invoke(cli.app, [verb, "--help"]).exit_code == 0
    assert CliRunner().invoke(cli.app, []).exit_code == USAGE


@pytest.mark.parametrize(
    "arguments",
    [
        ["rum"],
        ["run", "--log-level", "loud"],
        ["run", "--log-format", "xml"],
        ["inspect"],
        ["inspect", "customer"],
        ["status", "--jsn"],
        ["stream", "--count", "0"],
    ],
)
def test_wrong_usage(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == USAGE
    assert result.stdout == ""
    assert "Usage" in result.stderr


@pytest.mark.parametrize("verb", [["run"], ["check"], ["status"], ["inspect", "customer", "1"]])
def test_a_missing_file_is_one_line_and_its_remedy(
    verb: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "nowhere.toml"
    assert run_main(monkeypatch, *verb, "--config", str(path)) == USAGE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        f"invalidator: {path}: there is no such file",
        "  → create it, or name another, a command's with --config PATH",
    ]


def test_all_problems_of_a_file_in_one_report(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(CONFIG.replace("namespace", "namespce") + '[objects.x]\ntabel = "customers"\n')
    assert run_main(monkeypatch, "run", "-c", str(config)) == USAGE
    report = capsys.readouterr().err
    assert 'did you mean "namespace"?' in report
    assert 'did you mean "table"?' in report
    assert SECRET not in report
    assert "Traceback" not in report


@pytest.mark.parametrize("verb", [["check"], ["inspect", "customer", "1"]])
def test_an_unreachable_database_without_its_password(
    verb: list[str], config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, *verb, "-c", str(config)) == errors.SourceUnavailable.exit_code
    report = capsys.readouterr().err
    assert report.startswith("invalidator: 127.0.0.1:1: connecting: ")
    assert "→ is the server up" in report
    assert SECRET not in report


def test_status_needs_neither_database_nor_nodes(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "status", "-c", str(config)) == 0
    assert "unavailable" in capsys.readouterr().out


def test_the_nodes_of_a_source_are_discovered(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = 'nodes_from = "file:nodes"\nbackend = "memory"\n[keyspaces.shop]'
    config.write_text(CONFIG.replace("[keyspaces.shop]", source, 1))
    (config.parent / "nodes").write_text("127.0.0.1:1\n127.0.0.1:2\n")
    arguments = ("nodes", "discover", "--dry-run", "-c", str(config))
    assert run_main(monkeypatch, *arguments) == 0
    added = '+nodes = ["127.0.0.1:1", "127.0.0.1:2"]\n+previous_nodes = ["127.0.0.1:1"]\n'
    assert added in capsys.readouterr().out
    (config.parent / "nodes").write_text("127.0.0.1:2\n")
    assert run_main(monkeypatch, *arguments) == 4
    assert "invalidator nodes remove 127.0.0.1:1" in capsys.readouterr().err


def test_status_shows_whole_node_names_on_a_narrow_terminal(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    config.write_text(CONFIG.replace('"127.0.0.1:1"', '"127.0.0.1:61211", "[::1]:61212"'))
    assert run_main(monkeypatch, "status", "-c", str(config)) == 0
    printed = capsys.readouterr().out
    assert "127.0.0.1:61211" in printed
    assert "[::1]:61212" in printed


def test_a_long_position_is_one_row_of_status_for_a_program(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    gtids = ",".join(f"3e11fa47-71ca-11e1-9e33-c80aa942956{number}:1-77" for number in range(5))
    node = {"node": "n:1", "lineage": "shop/-", "state": "open", "progress": gtids, "floor": gtids}
    answer = {"nodes": [node], "servers": [{"server": "db:1", "lineage": "shop/-", "error": "no token " * 20}]}
    monkeypatch.setattr("invalidator.process.status.read_status", lambda _: answer)
    assert run_main(monkeypatch, "status", "-c", str(config)) == 0
    _, row, server = capsys.readouterr().out.splitlines()
    assert row.split() == ["n:1", "shop/-", "open", gtids, gtids]
    assert server.startswith("db:1 of shop/-: no token"), server


@pytest.mark.parametrize(
    "kind",
    [
        errors.ConfigError,
        errors.FormatError,
        errors.NodeUnavailable,
        errors.NodeUnsuitable,
        errors.SourceUnavailable,
        errors.SourceUnsuitable,
        errors.StorageUnavailable,
        errors.StreamStopped,
        errors.HistoryLost,
    ],
)
def test_an_error_is_its_message_its_hint_and_its_exit_code(
    kind: type[errors.FreshnessError],
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_: Path) -> None:
        raise kind("what happened", hint="what to do")

    monkeypatch.setattr(cli.status, "load_config", fail)
    code = run_main(monkeypatch, "status", "-c", str(config))
    assert code == kind.exit_code
    assert code in (2, 3, 4)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "invalidator: what happened\n  → what to do\n")


def test_a_bug_is_not_hidden(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli.status, "load_config", fail)
    monkeypatch.setattr(sys, "argv", ["invalidator", "status", "-c", str(config)])
    with pytest.raises(ZeroDivisionError):
        cli.main()


# -- the stream ----------------------------------------------------------------------------------------------


def event_token(number: int, lineage: str = "shop/-") -> str:
    position = MysqlGtidSet.parse(f"3e11fa47-71ca-11e1-9e33-c80aa9429562:1-{number}")
    return str(EventToken(lineage, "-", 1, 0, position))


@pytest.mark.parametrize(
    ("one", "two", "order"),
    [
        (event_token(5), event_token(6), "older"),
        (event_token(6), event_token(6), "equal"),
        (event_token(7), event_token(6), "newer"),
        (event_token(7), event_token(6, "other"), "unknown"),
    ],
)
def test_tokens_are_compared(
    one: str, two: str, order: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "compare", one, two) == 0
    assert capsys.readouterr().out == f"{order}\n"
    assert run_main(monkeypatch, "compare", one, two, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["order"] == order
    assert answer["tokens"][0]["lineage"] == "shop/-"


@pytest.mark.parametrize(
    ("verb", "problem"),
    [
        (["compare", "x", event_token(1)], "'x' is not an event token"),
        (["stream", "--since", "yesterday"], "start 'yesterday'"),
        (["stream", "--since", ""], "--since is empty"),
        (["stream", "--since= "], "--since is empty"),
        (["stream", "--since", "2999-01-01T00:00:00Z"], "start '2999-01-01T00:00:00Z' is in the future"),
        (["stream", "--keyspace", ""], "--keyspace is empty"),
        (["stream", "--key-range", ""], "--key-range is empty"),
        (["record", "--out", "archive", "--since", ""], "--since is empty"),
        (["record", "--out", ""], "--out is empty"),
        (["run", "--shard", "-", "--shard", ""], "--shard is empty"),
        (["replay", ""], "PATH is empty"),
        (["replay", "archive", "--namespace", ""], "--namespace is empty"),
        (["inspect", "", "1"], "OBJECT is empty"),
        (["stream", "--keyspace", "none"], "there is no keyspace 'none'"),
        (["record"], "where to write the archive?"),
        (["replay", "nowhere"], "nowhere: cannot be read: No such file or directory"),
    ],
)
def test_what_was_asked_wrongly_is_one_line(
    verb: list[str], problem: str, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = verb if verb[0] == "compare" else [*verb, "-c", str(config)]
    assert run_main(monkeypatch, *arguments) == USAGE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"invalidator: {problem}")
    assert "Traceback" not in printed.err


def test_a_key_may_be_empty(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a text column it is a key like others. It is the database that is missed here."""
    code = run_main(monkeypatch, "inspect", "customer", "", "-c", str(config))
    assert code == errors.SourceUnavailable.exit_code
    assert "is empty" not in capsys.readouterr().err


@pytest.mark.parametrize("verb", [["stream"], ["record", "--out", "archive"]])
def test_a_stream_of_an_unreachable_database(
    verb: list[str], config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_main(monkeypatch, *verb, "-c", str(config)) == errors.SourceUnavailable.exit_code
    assert SECRET not in capsys.readouterr().err


@pytest.mark.parametrize("since", ["now", "2999-01-01T00:00:00Z", "yesterday"])
def test_run_sends_again_only_from_a_time_that_has_been(
    config: Path, since: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "run", "-c", str(config), "--since", since) == USAGE
    assert since in capsys.readouterr().err


def test_run_sends_nothing_again_where_the_cache_is_emptied(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(CONFIG + '[stream]\nstart = "now"\n')
    assert run_main(monkeypatch, "run", "-c", str(config), "--since", "2026-01-31T12:00:00Z") == USAGE
    assert "--since" in capsys.readouterr().err


def test_the_schema_of_the_configuration(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(monkeypatch, "schema") == 0
    assert json.loads(capsys.readouterr().out) == describe_file()
    for option in (("--id", "x"), ("--format", "avro")):
        assert run_main(monkeypatch, "schema", *option) == USAGE
        assert "need the PATH of a recorded stream" in capsys.readouterr().err


def test_schemas_of_a_recorded_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "stream.jsonl"
    lines.write_bytes(b"".join(encode_line(each) for each in (SCHEMA, update(), SCHEMA)))
    assert run_main(monkeypatch, "schema", str(lines)) == 0
    [plain] = map(json.loads, capsys.readouterr().out.splitlines())
    assert (plain["title"], list(plain["properties"])) == ("shop.customers", ["id", "kind"])
    assert run_main(monkeypatch, "schema", str(lines), "--id", SCHEMA.id, "--format", "avro") == 0
    assert json.loads(capsys.readouterr().out)["schema_id"] == SCHEMA.id
    assert run_main(monkeypatch, "schema", str(lines), "--format", "line") == 0
    assert json.loads(capsys.readouterr().out) == json.loads(encode_line(SCHEMA))
    for wrong, problem in (
        ((str(lines), "--id", "x"), "tells no schema 'x'"),
        ((str(tmp_path / "nowhere"),), "cannot be read"),
        (("",), "PATH is empty"),
    ):
        assert run_main(monkeypatch, "schema", *wrong) == USAGE
        assert problem in capsys.readouterr().err
