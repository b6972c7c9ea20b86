"""The unit, the image and the manifests of compose/ name what is there: verbs, options, addresses, files, bounds.

No engine of containers is needed. The lines of the Dockerfile run in an environment that holds what they install.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from configparser import RawConfigParser
from pathlib import Path
from typing import Any, Final

import pytest
import typer
import yaml

from freshness import __version__, errors
from freshness.config.config import Config, load_config
from freshness.config.hostport import parse_host_port
from freshness.errors import FreshnessError
from invalidator.archive import record
from invalidator.binlog.source import READ_TIMEOUT_SECONDS
from invalidator.cli import app as program
from invalidator.http import service
from invalidator.http.gates import OPEN_PATHS, SCOPES, read_grants
from invalidator.process import app
from tests.repository.environment import (
    CHECKOUT,
    CONFIG,
    build_wheel,
    copy_sources,
    find_closure,
    find_needed,
    make_environment,
)

COMPOSE: Final = CHECKOUT / "compose"
UNIT: Final = COMPOSE / "systemd" / "freshness-invalidator.service"
MANIFESTS: Final = COMPOSE / "kubernetes" / "invalidator.yaml"
DOCKERFILE: Final = COMPOSE / "Dockerfile"


def find_stop_seconds(config: Config) -> float:
    """The longest that `invalidator run` takes to end after SIGTERM."""
    archives = len(config.keyspaces) if config.archive.path is not None else 0
    return app.WORKER_STOP_SECONDS + service.STOP_SECONDS + archives * record.STOP_SECONDS


def require_run(arguments: list[str]) -> dict[str, Any]:
    """The options of a line that is a `run` of this program, by name."""
    group: Any = typer.main.get_command(program)
    assert arguments[0] == "run"
    command = group.commands["run"]
    context = command.make_context("run", arguments[1:], resilient_parsing=False)
    found: dict[str, Any] = context.params
    return found


# -- systemd -------------------------------------------------------------------------------------------------------


@pytest.fixture
def unit() -> RawConfigParser:
    parser = RawConfigParser(strict=True, comment_prefixes=("#",), inline_comment_prefixes=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT.read_text())
    return parser


def test_systemd_takes_the_unit(unit: RawConfigParser, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    path, _, _ = unit["Service"]["ExecStart"].partition(" ")
    present = tmp_path / UNIT.name
    present.write_text(UNIT.read_text().replace(path, shutil.which("true") or "/bin/true"))
    ended = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", present],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_unit_waits_for_the_end_and_does_not_repeat_a_mistake(unit: RawConfigParser, tmp_path: Path) -> None:
    running = unit["Service"]
    config = tmp_path / "freshness.toml"
    config.write_text(CONFIG)
    assert float(running["TimeoutStopSec"]) > find_stop_seconds(load_config(config))
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FreshnessError)]
    codes = {kind.exit_code for kind in kinds}
    hopeless = {int(code) for code in running["RestartPreventExitStatus"].split()}
    assert hopeless <= codes
    assert not hopeless & {kind.exit_code for kind in kinds if kind.is_retryable}
    assert running["ExecReload"] == "kill -HUP $MAINPID"


def test_the_unit_waits_for_what_the_process_says_and_has_more_patience_than_a_step_takes(
    unit: RawConfigParser,
) -> None:
    running = unit["Service"]
    assert running["Type"] == "notify"
    assert float(running["WatchdogSec"]) > 2 * (app.WORKER_STOP_SECONDS + READ_TIMEOUT_SECONDS)


def test_the_command_of_the_unit_runs_until_it_is_told_to_end(unit: RawConfigParser, tmp_path: Path) -> None:
    """Without its database it waits; SIGTERM ends it with 0, and a mistake in the file with a code that stays."""
    name, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert Path(name).name == "invalidator"
    config = Path(require_run(arguments)["config"])
    present = tmp_path / config.name
    command = [sys.executable, "-m", "invalidator.cli", *arguments]
    command[command.index(str(config))] = str(present)
    present.write_text(CONFIG)
    process = subprocess.Popen(command, cwd=CHECKOUT, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "waits for its database" in line:
                break
        process.send_signal(signal.SIGHUP)
        process.send_signal(getattr(signal, unit["Service"]["KillSignal"]))
        said = process.communicate(timeout=500)[1]
        assert process.returncode == 0, said
    finally:
        process.kill()
        process.wait()
    present.write_text(CONFIG + "[nothing]\n")
    ended = subprocess.run(command, cwd=CHECKOUT, capture_output=True, check=False, timeout=500)
    assert str(ended.returncode) in unit["Service"]["RestartPreventExitStatus"].split()


# -- Kubernetes ----------------------------------------------------------------------------------------------------


@pytest.fixture
def manifests() -> dict[str, dict[str, Any]]:
    """By kind and name."""
    documents = list(yaml.safe_load_all(MANIFESTS.read_text()))
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in documents}


@pytest.fixture
def pod(manifests: dict[str, dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = manifests["Deployment/freshness-invalidator"]["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod["containers"]
    assert isinstance(found, dict)
    return found


@pytest.fixture
def mounted(
    manifests: dict[str, dict[str, Any]], pod: dict[str, Any], container: dict[str, Any], tmp_path: Path
) -> Callable[[str], Path]:
    """The local path of a path in the container, with the files that the manifests put there."""
    volumes = {each["name"]: each for each in pod["volumes"]}
    for mount in container["volumeMounts"]:
        volume = volumes[mount["name"]]
        kind, name = (
            ("ConfigMap", volume["configMap"]["name"])
            if "configMap" in volume
            else ("Secret", volume["secret"]["secretName"])
        )
        held = manifests[f"{kind}/{name}"]
        folder = tmp_path / mount["mountPath"].lstrip("/")
        folder.mkdir(parents=True)
        for key, text in (held.get("data", {}) | held.get("stringData", {})).items():
            (folder / key).write_text(text)
    return lambda path: tmp_path / path.lstrip("/")


@pytest.fixture
def environment(manifests: dict[str, dict[str, Any]], container: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in container["envFrom"]:
        found |= manifests[f"Secret/{each['secretRef']['name']}"]["stringData"]
    return found


def test_the_container_runs_the_verb_with_the_file_that_is_mounted(
    container: dict[str, Any], mounted: Callable[[str], Path], environment: dict[str, str]
) -> None:
    options = require_run(container["args"])
    path = mounted(str(options["config"]))
    # The tokens are read by their absolute names
    path.write_text(path.read_text().replace('"/etc/', f'"{mounted("/etc")}/'))
    config = load_config(path, environment)
    grants = read_grants(config)
    assert set(grants) == {"change-me-3", "change-me-4"}
    assert config.http.listen is not None
    host, port = parse_host_port(config.http.listen)
    assert host == "0.0.0.0", "the kubelet asks the pod's own address"
    assert [each["containerPort"] for each in container["ports"]] == [port]
    assert container["image"].endswith(f":{__version__}")


def test_each_probe_asks_what_is_answered_without_a_token(container: dict[str, Any], pod: dict[str, Any]) -> None:
    ports = {each["name"] for each in container["ports"]}
    probes = {name: container[name]["httpGet"] for name in ("livenessProbe", "readinessProbe", "startupProbe")}
    assert {each["path"] for each in probes.values()} <= OPEN_PATHS
    assert {each["port"] for each in probes.values()} <= ports
    assert probes["livenessProbe"]["path"] == "/healthz", "a node that is away is no reason to start again"
    assert probes["readinessProbe"]["path"] == "/readyz"
    assert ("GET", "/metrics") in SCOPES


def test_the_pod_is_given_the_time_that_its_end_takes(
    pod: dict[str, Any], mounted: Callable[[str], Path], environment: dict[str, str]
) -> None:
    config = load_config(mounted("/etc/freshness/freshness.toml"), environment)
    assert pod["terminationGracePeriodSeconds"] > find_stop_seconds(config)


def test_the_parts_select_one_another(manifests: dict[str, dict[str, Any]]) -> None:
    deployment = manifests["Deployment/freshness-invalidator"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels
    assert manifests["Service/freshness-invalidator"]["spec"]["selector"] == labels
    budget = manifests["PodDisruptionBudget/freshness-invalidator"]["spec"]
    assert budget["selector"]["matchLabels"] == labels
    assert 1 <= budget["minAvailable"] < deployment["replicas"]
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


# -- the image -----------------------------------------------------------------------------------------------------


def read_instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile with their arguments."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def make_tools(folder: Path, needed: set[str]) -> Path:
    """The interpreter of an environment with these distributions, and pip as a command beside it."""
    python = make_environment(folder, None, find_closure((name, "") for name in {"pip", *needed}))
    pip = python.parent / "pip"
    pip.write_text(f'#!/bin/sh\nexec {python} -m pip "$@"\n')
    pip.chmod(0o700)
    return python


def run_line(line: str, python: Path, folder: Path) -> None:
    """A RUN line, where pip is that of the environment, asks no index, and builds with what is there."""
    environment = {
        "PATH": f"{python.parent}:{os.defpath}",
        "HOME": str(folder),
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # that is how pip spells yes
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    ended = subprocess.run(
        ["sh", "-ec", line], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=500
    )
    assert ended.returncode == 0, f"{line}\n{ended.stdout}{ended.stderr}"


def test_the_lines_of_the_dockerfile_give_the_program(tmp_path: Path) -> None:
    """The copied files are enough for the wheel, and its extras for the command of the image."""
    instructions = read_instructions()
    sources, place = tmp_path / "sources", tmp_path / "dist"
    sources.mkdir()
    copied = [shlex.split(rest) for word, rest in instructions if word == "COPY" and "--from" not in rest]
    for *files, target in copied:
        for file in files:
            if (CHECKOUT / file).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(CHECKOUT / file, sources / target, ignore=ignored)
            else:
                shutil.copy(CHECKOUT / file, sources / target)
    building, installing = (rest.replace("/dist", str(place)) for word, rest in instructions if word == "RUN")

    other = tmp_path / "other"
    copy_sources(other)
    wheel = build_wheel(other)
    run_line(building, make_tools(tmp_path / "build", {"hatchling"}), sources)
    (built,) = place.glob("freshness-*.whl")
    assert built.read_bytes() == wheel.read_bytes()

    (extras,) = re.findall(r"freshness\[([\w,]+)\]", installing)
    needed = find_needed(wheel, extras.split(","))
    python = make_tools(tmp_path / "image", needed)
    run_line(installing, python, tmp_path)
    assert not place.exists()

    (entry,) = (yaml.safe_load(rest) for word, rest in instructions if word == "ENTRYPOINT")
    (command,) = (yaml.safe_load(rest) for word, rest in instructions if word == "CMD")
    assert require_run(command)["config"] == Path("/etc/freshness/freshness.toml")
    ended = subprocess.run(
        [python.parent / entry[0], "--version"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=500
    )
    assert ended.stdout == f"freshness {__version__}\n"
    (user,) = (rest for word, rest in instructions if word == "USER")
    assert all(int(number) > 0 for number in user.split(":")), "not root, and a number for runAsNonRoot"
