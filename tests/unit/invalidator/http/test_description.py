"""The service answers as its description says, whatever schemathesis makes of the description."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from freshness.config.config import Config
from freshness.errors import ConfigError
from invalidator.http import service
from invalidator.http.consumers import StreamHub
from invalidator.http.gates import EVERYTHING, OPEN_PATHS
from invalidator.http.service import create_api
from invalidator.process.app import Invalidator
from invalidator.stream.query import StreamQuery
from tests.unit.invalidator.archive.archive_world import CONFIG, make_config, make_registry
from tests.unit.invalidator.http.test_consumers import ACCESS, ScriptedOpened, ScriptedOpener, ScriptedStream, insert

EXAMPLES = int(os.environ.get("FRESHNESS_HTTP_EXAMPLES", "15"))
"""Requests of each kind for each address: the same each time, unless another number is asked for."""

IS_SAME = "FRESHNESS_HTTP_EXAMPLES" not in os.environ


NOT_MEANT = [not_a_server_error, positive_data_acceptance, ignored_auth]
"""503 is an answer that is described, for what is away; a text can be right and name nothing that is there; and the
last one takes the right token for one that was made up. It is asked below."""


class EndlessOpener(ScriptedOpener):
    """Each stream has a change, and ends."""

    def open(self, query: StreamQuery) -> ScriptedOpened:
        return ScriptedOpened(ScriptedStream([insert(1), ConfigError("the end")]), self)


@pytest.fixture
def api(has_token: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    """Everything but the servers is the real thing."""
    config: Config = make_config(tmp_path, f'{CONFIG}[http]\nhosts = ["testserver"]\n')
    monkeypatch.setattr(service, "load_object", lambda config, _: make_registry(config))
    invalidator = Invalidator(config)
    return create_api(
        invalidator,
        dict,
        streams=StreamHub(cast(Any, EndlessOpener(config))),
        reload=invalidator.change_topology,
        grants={ACCESS: EVERYTHING} if has_token else None,
    )


@pytest.mark.parametrize(
    ("mode", "has_token"),
    [(GenerationMode.POSITIVE, False), (GenerationMode.NEGATIVE, False), (GenerationMode.POSITIVE, True)],
)
def test_answers_are_as_described(mode: GenerationMode, has_token: bool, api: FastAPI) -> None:
    """For requests as they should be, and for others."""
    headers = {"authorization": f"Bearer {ACCESS}"}
    described = schemathesis.openapi.from_asgi("/openapi.json", api, headers=headers)
    asked = set()
    for found in described.get_all_operations():
        assert isinstance(found, Ok), "the description is right"
        operation = found.ok()
        raw = operation.definition.raw
        is_told_apart = "requestBody" in raw or any(each["in"] != "header" for each in raw.get("parameters", ()))
        if mode is GenerationMode.NEGATIVE and not is_told_apart:
            continue  # nothing can be wrong

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=IS_SAME,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: schemathesis.Case[Any]) -> None:
            response = case.call(headers=headers)
            case.validate_response(response, excluded_checks=NOT_MEANT)
            assert response.status_code != 500
            if has_token and case.path not in OPEN_PATHS:
                assert "security" in case.operation.definition.raw
                assert case.call(headers={"authorization": "Bearer other"}).status_code == 401
            asked.add((case.method, case.path))

        ask()
    assert {("GET", "/v1/update-stream"), ("POST", "/v1/invalidate"), ("PUT", "/v1/topology")} <= asked
