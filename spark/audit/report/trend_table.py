"""Tables of all audits, for trends: folders of Parquet files, Delta tables, or tables of an Iceberg catalog.

Each table has a column ``day``, by which it is divided, so that a query over days reads those days alone, and rows of
audits (``as_of_us``). An audit that is added again takes the place of its previous rows, at once for readers.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow
from pyarrow import parquet

from freshness.errors import ConfigError, missing_package
from spark.audit.model.schema import VIOLATION
from spark.audit.report.summary import WITHIN_SECONDS, Summary
from spark.folder import Folder, make_folder, open_folder, open_local, publish, require_writable

NINES: Final = pyarrow.schema(
    [
        ("as_of_us", pyarrow.int64()),
        ("exit_code", pyarrow.int32()),
        ("dimension", pyarrow.string()),
        ("name", pyarrow.string()),
        ("hits", pyarrow.int64()),
        ("unknown", pyarrow.int64()),
        *((f"within_{seconds}_seconds", pyarrow.int64()) for seconds in WITHIN_SECONDS),
    ]
)
"""Hits of a group, and how many of them were at most so far out of date: `spark.audit.report.summary.Nines`."""
VIOLATIONS: Final = pyarrow.schema([("as_of_us", pyarrow.int64()), *VIOLATION])
"""``as_of_us``: which audit found it."""


def append_audit(summary: Summary, violations: pyarrow.Table, tables: TrendTables) -> None:
    """Add an audit to the tables. Its rows are in the day of its end (UTC). An audit with the same end replaces
    the previous one."""
    day = datetime.fromtimestamp(summary.as_of_us / 1e6, UTC).date()
    found = [{"as_of_us": summary.as_of_us, **row} for row in violations.to_pylist()]
    for name, rows, schema in (("violations", found, VIOLATIONS), ("nines", _list_nines(summary), NINES)):
        table = pyarrow.Table.from_pylist(rows, schema)
        tables.replace(name, table, day, summary.as_of_us)


def _list_nines(summary: Summary) -> list[dict[str, Any]]:
    return [
        {
            "as_of_us": summary.as_of_us,
            "exit_code": summary.exit_code,
            "dimension": each.dimension,
            "name": each.name,
            "hits": each.hits,
            "unknown": each.unknown,
            **{f"within_{seconds}_seconds": share.count for seconds, share in each.within.items()},
        }
        for each in summary.nines
    ]


if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

DAY: Final = pyarrow.field("day", pyarrow.date32())
_DELTA: Final = "delta:"
_ICEBERG: Final = "iceberg:"


class TrendTables(Protocol):
    def require(self) -> None:
        """Raises `ConfigError` unless they can be written. Leaves no table behind."""

    def replace(self, name: str, rows: pyarrow.Table, day: date, as_of_us: int) -> None:
        """Put the rows of an audit into a table, in place of those that it had there."""


def open_tables(text: str) -> TrendTables:
    """``FOLDER``, ``delta:FOLDER`` or ``iceberg:CATALOG.NAMESPACE``. Raises `ConfigError` for any other, and for a
    package that is missing."""
    if text.startswith(_DELTA):
        return DeltaTables(open_local(text.removeprefix(_DELTA)))
    if text.startswith(_ICEBERG):
        return _open_iceberg(text)
    return ParquetTables(open_folder(text))


class ParquetTables:
    """A folder for each table, in it one for each day, in it a file for each audit."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def require(self) -> None:
        require_writable(self._folder)

    def replace(self, name: str, rows: pyarrow.Table, day: date, as_of_us: int) -> None:
        """Written under a name that readers pass over, and given its own then."""
        filesystem = self._folder.filesystem
        place = f"{self._folder.path}/{name}/day={day}"
        file = f"{as_of_us}.parquet"
        make_folder(self._folder, place)
        parquet.write_table(rows, f"{place}/.{file}", filesystem=filesystem)
        publish(self._folder, f"{place}/.{file}", f"{place}/{file}")


class DeltaTables:
    """A Delta table in a local or mounted folder for each table. Needs the extra ``delta``."""

    def __init__(self, folder: Path) -> None:
        with _needed("delta"):
            from deltalake import write_deltalake
            from deltalake.exceptions import DeltaError
        self._folder, self._write, self._error = folder, write_deltalake, DeltaError

    def require(self) -> None:
        require_writable(open_folder(str(self._folder)))

    def replace(self, name: str, rows: pyarrow.Table, day: date, as_of_us: int) -> None:
        try:
            self._write(
                str(self._folder / name),
                _with_day(rows, day),
                partition_by=[DAY.name],
                mode="overwrite",
                predicate=_mine(as_of_us),
            )
        except self._error as error:
            raise ConfigError(f"the Delta table {self._folder / name} cannot be written: {error}") from error


class IcebergTables:
    """Tables of a namespace of a catalog. Needs the extra ``iceberg``."""

    def __init__(self, catalog: Catalog, namespace: str) -> None:
        self._catalog, self._namespace = catalog, namespace

    def require(self) -> None:
        """Makes the namespace, if it is not there."""
        with _telling(f"the namespace {self._namespace} cannot be made"):
            self._catalog.create_namespace_if_not_exists(self._namespace)

    def replace(self, name: str, rows: pyarrow.Table, day: date, as_of_us: int) -> None:
        rows = _with_day(rows, day)
        identifier = f"{self._namespace}.{name}"
        if not self._catalog.table_exists(identifier):
            made = self._catalog.create_table_transaction(identifier, schema=rows.schema)
            with made, made.update_spec() as spec:
                spec.add_identity(DAY.name)
        with warnings.catch_warnings():
            # The catalog warns if an audit had no rows there, which is the usual case.
            warnings.filterwarnings("ignore", "Delete operation did not match any records")
            self._catalog.load_table(identifier).overwrite(rows, overwrite_filter=_mine(as_of_us))


def _open_iceberg(text: str) -> IcebergTables:
    name, _, namespace = text.removeprefix(_ICEBERG).partition(".")
    if not name or not namespace:
        raise ConfigError(f"--tables {text}", hint="expected iceberg:CATALOG.NAMESPACE")
    with _needed("iceberg"):
        from pyiceberg.catalog import load_catalog
    with _telling(f"the Iceberg catalog {name} cannot be opened"):
        return IcebergTables(load_catalog(name), namespace)


@contextmanager
def _telling(what: str) -> Iterator[None]:
    from pyiceberg.exceptions import NotInstalledError, RESTError

    try:
        yield
    except (ValueError, OSError, NotInstalledError, RESTError) as error:
        hint = "describe the catalog to pyiceberg, in .pyiceberg.yaml or its environment"
        raise ConfigError(f"{what}: {error}", hint=hint) from error


def _with_day(rows: pyarrow.Table, day: date) -> pyarrow.Table:
    return rows.add_column(0, DAY, pyarrow.array([day] * rows.num_rows, DAY.type))


def _mine(as_of_us: int) -> str:
    """The rows of an audit, as both formats ask for them."""
    return f"as_of_us = {as_of_us}"


@contextmanager
def _needed(extra: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise (missing_package(error, extra) or error) from error
