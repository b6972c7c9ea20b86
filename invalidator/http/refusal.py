"""Refusals: every answer of the HTTP service that is not a success has one shape.

It is that of `RefusalBody`, for our own errors, for the framework's (no such address, a parameter of another type)
and for bugs. Added to the application by ``invalidator.http.service``.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from freshness.errors import ConfigError, FormatError, FreshnessError, HistoryLost

NEAREST_CUTOFF: Final = 0.5
"""How much alike a wrong name and the one that is proposed must be."""

RETRY_SECONDS: Final = "5"

_MEANINGS: Final = {
    400: "The keyspace, key range, start, key or another parameter is wrong, or its name is",
    401: "The access token is missing or wrong",
    403: "The token does not open this",
    404: "There is nothing under that address",
    408: "The document did not come in time",
    410: "No server has the logs from there on",
    413: "The document is too large",
    421: "The service is not called by a name of its own",
    422: "A parameter or the document has another type or is out of bounds",
    500: "A bug, or an operator is needed",
    503: "A server or node cannot be reached, or too many consumers are connected",
}

log = logging.getLogger(__name__)


class NotAllowed(FreshnessError):
    """The token of a client does not open this."""


class SchemaUnknown(FreshnessError):
    """No schema with this id is remembered."""


class Problem(BaseModel):
    """``error``: the kind of error; ``message``: the place and the reason; ``hint``: the remedy."""

    error: str
    message: str
    hint: str


class RefusalBody(BaseModel):
    detail: Problem


def describe_refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals of a route, for the description of the service."""
    return {status: {"model": RefusalBody, "description": _MEANINGS[status]} for status in statuses}


def refuse(
    status: int, error: str, message: str, hint: str = "", headers: Mapping[str, str] | None = None
) -> JSONResponse:
    problem = Problem(error=error, message=_to_unicode(message), hint=_to_unicode(hint))
    return JSONResponse(RefusalBody(detail=problem).model_dump(), status, headers)


def find_status(error: FreshnessError) -> int:
    """400 for what was asked wrongly, 403 for what the token does not open, 404 for a schema that is not known, 410
    for history that is gone, 503 for what is away, 500 for what needs an operator."""
    if isinstance(error, ConfigError | FormatError):
        return 400
    if isinstance(error, NotAllowed):
        return 403
    if isinstance(error, SchemaUnknown):
        return 404
    if isinstance(error, HistoryLost):
        return 410
    return 503 if error.is_retryable else 500


async def refuse_unknown_parameters(request: Request) -> None:
    """A dependency of a route: a name that it does not take was meant for something. Raises `ConfigError`."""
    known: list[str] = []
    for field in request.scope["route"].dependant.query_params:
        kind = field.field_info.annotation
        is_model = isinstance(kind, type) and issubclass(kind, BaseModel)
        known += kind.model_fields if is_model else [field.alias]
    names = [name for name, _ in request.query_params.multi_items()]
    for name in names:
        if name not in known:
            raise ConfigError(f"{request.url.path} takes no parameter {name!r}", hint=_propose_name(name, known))
        if names.count(name) > 1:
            raise ConfigError(f"the parameter {name!r} is given twice", hint="give it once")


def _propose_name(name: str, known: Collection[str]) -> str:
    nearest = get_close_matches(name, known, n=1, cutoff=NEAREST_CUTOFF)
    if nearest:
        return f"did you mean {nearest[0]}?"
    return f"it takes {', '.join(known)}" if known else "it takes none"


def add_handlers(api: FastAPI) -> None:
    """Give the refusals of the framework, and of bugs, the shape of ours."""
    api.add_exception_handler(FreshnessError, _on_error)
    api.add_exception_handler(HTTPException, _on_http_exception)
    api.add_exception_handler(RequestValidationError, _on_invalid)
    api.add_exception_handler(Exception, _on_bug)


async def _on_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, FreshnessError)
    status = find_status(error)
    if status >= 500:
        log.warning("a request is answered with %d: %s", status, error)
    headers = {"retry-after": RETRY_SECONDS} if status == 503 else None
    return refuse(status, type(error).__name__, error.message, error.hint, headers)


async def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    name = HTTPStatus(error.status_code).phrase.replace(" ", "")
    path = request.url.path
    headers = error.headers
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        # The framework names those of one route alone
        described = request.app.openapi()["paths"].get(path)
        headers = {"allow": ", ".join(described).upper()} if described else headers
    message = f"{request.method} {path}: {error.detail}"
    return refuse(error.status_code, name, message, "see /openapi.json for what is served", headers)


async def _on_invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    problems = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
    return refuse(422, "FormatError", "; ".join(problems), "see /openapi.json for what is taken")


async def _on_bug(_: Request, error: Exception) -> JSONResponse:
    return refuse(500, type(error).__name__, "a bug", "please report it with the traceback in the log")


def _to_unicode(text: str) -> str:
    """Without lone surrogates, which JSON can hold and UTF-8 cannot."""
    return text.encode(errors="backslashreplace").decode()
