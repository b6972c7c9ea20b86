"""Reads of one request of a web application: each has what its client has committed before.

A commit token travels to the client and back in a cookie, and in a header for clients that keep none. Used by
``appclient.starlette`` and ``appclient.flask``; an application of another framework can use it as they do.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from appclient.cache import Cache
from appclient.connection.commits import ask_committed
from appclient.database.atleast import AtLeast
from appclient.typed import AsyncTypedObject, Model, TypedObject
from appclient.web.signed import parse_signed_commit_token, sign_commit_token
from freshness.errors import ConfigError, FormatError
from freshness.position.commit import CommitToken
from freshness.values.codec import encode_value

if TYPE_CHECKING:
    from appclient.async_cache import AsyncCache

log = logging.getLogger(__name__)

Opened = TypeVar("Opened", Cache, "AsyncCache")

_ETAG_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class TokenCookie:
    """How a commit token is sent, in the cookie ``name`` and the ``header``. ``secrets``: the first one signs, each
    of them is believed, so that a secret can be replaced. ``seconds``: how long a client reads its own commits; it is
    to be at least 1, and above the lag of the replicas. ``secure``: the cookie is sent over HTTPS alone. Raises
    `ConfigError` without a secret, and for other ``seconds``.
    """

    secrets: Sequence[str | bytes]
    name: str = "freshness"
    header: str = "Freshness-Token"
    seconds: float = 60
    secure: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.secrets, str | bytes) or not self.secrets or not all(self.secrets):
            raise ConfigError("a token's cookie has no secret", hint="expected secrets=[the application's secret]")
        if not isinstance(self.seconds, int | float) or not 1 <= self.seconds < math.inf:
            raise ConfigError(
                f"a token's cookie has the seconds {self.seconds!r}",
                hint="expected a number, at least 1, and above the lag of the replicas",
            )

    def parse(self, *texts: str | None) -> CommitToken | None:
        """The commits of all ``texts`` together, None for none. A text that was forged, cut or signed too long ago
        counts as none."""
        found: CommitToken | None = None
        for text in filter(None, texts):
            token = self._parse(text)
            if token is not None:
                found = token if found is None else found.union(token)
        return found

    def format(self, token: CommitToken) -> str | None:
        """The text of ``token`` for the client, or None: one that does not fit a cookie is logged, and nothing is
        sent."""
        try:
            return sign_commit_token(token, _derive(self.secrets[0]))
        except FormatError as error:
            log.error("the commits of a request are not sent to its client: %s", error)
            return None

    @property
    def vary(self) -> tuple[str, str]:
        """For the header ``Vary``: a response with such reads is not another client's, whose commits it may lack."""
        return ("Cookie", self.header)

    def attributes(self) -> Mapping[str, Any]:
        """The cookie's attributes, as ``set_cookie`` of Starlette and of Flask take them."""
        return {"max_age": int(self.seconds), "httponly": True, "secure": self.secure, "samesite": "lax"}

    def _parse(self, text: str) -> CommitToken | None:
        failed: FormatError | None = None
        for secret in self.secrets:
            try:
                return parse_signed_commit_token(text, _derive(secret), age_seconds_max=self.seconds)
            except FormatError as error:
                failed = failed or error
        log.info("a commit token of a client is ignored: %s", failed)
        return None


def _derive(secret: str | bytes) -> bytes:
    """A key for this purpose alone, from the application's secret."""
    data = secret if isinstance(secret, bytes) else secret.encode()
    return hashlib.sha256(b"freshness read-your-writes\0" + data).digest()


@dataclass(slots=True)
class _Tokens:
    """``token``: the commits that reads have. ``is_new``: some of them are not known to the client yet."""

    token: CommitToken | None = None
    is_new: bool = False

    def add(self, token: CommitToken | None) -> None:
        """Reads from now on have the commits of ``token``, too."""
        if token is not None:
            self.token = token if self.token is None else self.token.union(token)
            self.is_new = True

    def demand(self, at_least: AtLeast) -> AtLeast:
        """The commits of this client and those of ``at_least``, of one read. Raises `FormatError` for a text that
        does not parse."""
        if at_least is None or self.token is None:
            return self.token if at_least is None else at_least
        return self.token.union(CommitToken.parse(at_least) if isinstance(at_least, str) else at_least)


class _Reads(_Tokens, Generic[Opened]):
    __slots__ = ("cache",)

    def __init__(self, cache: Opened, token: CommitToken | None = None) -> None:
        super().__init__(token)
        self.cache: Opened = cache

    def get(self, object_name: str, key: Any, *, at_least: AtLeast = None, **options: Any) -> Any:
        """See `Cache.get`, whose answer it is. The value has the commits of this client."""
        return self.cache.get(object_name, key, at_least=self.demand(at_least), **options)

    def get_many(
        self, object_name: str, keys: Iterable[Hashable], *, at_least: AtLeast = None, **options: Any
    ) -> Any:
        """See `Cache.get_many`, whose answer it is. The values have the commits of this client."""
        return self.cache.get_many(object_name, keys, at_least=self.demand(at_least), **options)


class RequestReads(_Reads[Cache]):
    """The reads of one request. Not shared between requests."""

    def of(self, object_name: str, model: type[Model]) -> TypedObject[Model]:
        """See `Cache.of`. The values have the commits of this client."""
        return TypedObject(self, self.cache.of(object_name, model).name, model)

    def committed(self, connection: Any, *, keyspace: str | None = None, shard: str | None = None) -> None:
        """The connection has committed. ``keyspace``: see `Cache.database`. The arguments and the errors are those of
        `Database.commit_token`."""
        self.add(self.cache.database(keyspace).commit_token(connection, shard=shard))


class AsyncRequestReads(_Reads["AsyncCache"]):
    """The reads of one request on an event loop, to be awaited. Not shared between requests."""

    def of(self, object_name: str, model: type[Model]) -> AsyncTypedObject[Model]:
        """See `Cache.of`. The values have the commits of this client."""
        return AsyncTypedObject(self, self.cache.of(object_name, model).name, model)

    async def committed(self, connection: Any, *, keyspace: str | None = None, shard: str | None = None) -> None:
        """The connection, of asyncmy or aiomysql, has committed. The arguments and the errors are those of
        `RequestReads.committed`."""
        database = self.cache.database(keyspace)
        gtids = await ask_committed(connection, database.gtid_flavor)
        self.add(await database.commit_token_of(gtids, shard=shard))


def find_etag(value: Any) -> str:
    """A strong entity tag of a ``value`` that was read. A response with the same tag would have the same value. It is
    made of the value itself. So ``304 Not Modified`` says no more than the read behind it, which is as fresh as that
    of a whole response. Raises `FormatError` for a value that cannot be cached."""
    return f'"{hashlib.blake2b(encode_value(value), digest_size=_ETAG_BYTES).hexdigest()}"'
