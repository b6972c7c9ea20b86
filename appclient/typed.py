"""Reads of one object as instances of a class, or as a list of them: a dataclass, a TypedDict, an attrs class, a
struct of msgspec or a model of pydantic. Used by ``appclient.cache`` and ``appclient.async_cache``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final, Generic, Protocol, TypedDict, TypeVar, Unpack, get_args, get_origin

import msgspec
import msgspec.inspect

from appclient.database.atleast import AtLeast
from freshness.errors import ConfigError, FormatError

Model = TypeVar("Model")

_MODELS: Final = (msgspec.inspect.DataclassType, msgspec.inspect.StructType, msgspec.inspect.TypedDictType)


class ReadOptions(TypedDict, total=False):
    """Options of `Cache.get`, which says what they mean."""

    max_staleness_seconds: float | None
    at_least: AtLeast


class OwnReadOptions(ReadOptions, total=False):
    """The same, with ``connection`` for threads."""

    connection: Any


class ManyReadOptions(ReadOptions, total=False):
    """Options of `Cache.get_many`."""

    together: bool


class OwnManyReadOptions(OwnReadOptions, ManyReadOptions, total=False):
    """The same, for threads."""


class _Reads(Protocol):
    """As much of `Cache` as is used here; of `AsyncCache` the same, to be awaited."""

    @property
    def get(self) -> Callable[..., Any]: ...

    @property
    def get_many(self) -> Callable[..., Any]: ...


def find_converter(object_name: str, model: type[Model]) -> Callable[[Any], Model]:
    """A function from a cached value to an instance of ``model``. It raises `FormatError` if the value does not fit.
    Raises `ConfigError` for a class that nothing can be converted to. Integers and texts are converted to booleans,
    enumerations and numbers, since MySQL has no type for some of these."""
    errors: tuple[type[Exception], ...] = (msgspec.ValidationError,)
    if get_origin(model) is list:
        of_item = find_converter(object_name, get_args(model)[0])

        def convert_all(value: Any) -> Any:
            if not isinstance(value, list):
                raise FormatError(
                    f"object {object_name} is no list: {type(value).__name__}",
                    hint="read it as the class of one value",
                )
            return [of_item(each) for each in value]

        return convert_all
    validate = getattr(model, "model_validate", None)
    if validate is not None:  # pydantic's
        convert, errors = validate, (ValueError,)
    else:
        try:
            found: object = msgspec.inspect.type_info(model)
        except (TypeError, NameError) as error:
            found = error
        if not isinstance(found, _MODELS):
            raise ConfigError(
                f"object {object_name} cannot be read as {model!r}",
                hint="expected a dataclass, TypedDict, attrs class, msgspec.Struct or pydantic model, or list[one]",
            )

        def convert(value: Any) -> Any:
            return msgspec.convert(value, model, strict=False)

    def checked(value: Any) -> Model:
        try:
            made: Model = convert(value)
            return made
        except errors as error:
            raise FormatError(
                f"object {object_name} does not fit {model.__name__}: {error}",
                hint="give the class the types of the columns, `| None` where they are nullable",
            ) from error

    return checked


class TypedObject(Generic[Model]):
    """One object of a `Cache`, see `Cache.of`."""

    def __init__(self, cache: _Reads, object_name: str, model: type[Model]) -> None:
        self._cache, self.name = cache, object_name
        self._convert = find_converter(object_name, model)

    def get(self, key: Any, **options: Unpack[OwnReadOptions]) -> Model | None:
        """As `Cache.get`; raises `FormatError` if the value does not fit the class."""
        value = self._cache.get(self.name, key, **options)
        return None if value is None else self._convert(value)

    def get_many(self, keys: Iterable[Hashable], **options: Unpack[OwnManyReadOptions]) -> dict[Any, Model | None]:
        """As `Cache.get_many`; raises `FormatError` if a value does not fit the class."""
        found = self._cache.get_many(self.name, keys, **options)
        return {key: None if value is None else self._convert(value) for key, value in found.items()}


class AsyncTypedObject(Generic[Model]):
    """One object of an `AsyncCache`, see `AsyncCache.of`."""

    def __init__(self, cache: _Reads, object_name: str, model: type[Model]) -> None:
        self._cache, self.name = cache, object_name
        self._convert = find_converter(object_name, model)

    async def get(self, key: Any, **options: Unpack[ReadOptions]) -> Model | None:
        """See `TypedObject.get`."""
        value = await self._cache.get(self.name, key, **options)
        return None if value is None else self._convert(value)

    async def get_many(self, keys: Iterable[Hashable], **options: Unpack[ManyReadOptions]) -> dict[Any, Model | None]:
        """See `TypedObject.get_many`."""
        found = await self._cache.get_many(self.name, keys, **options)
        return {key: None if value is None else self._convert(value) for key, value in found.items()}
