"""The managed services that a database server belongs to, known by what it answers, and what that means.

The signs are of the services' public documentation; no service was asked itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

ServiceName: TypeAlias = Literal["", "Amazon RDS", "Amazon Aurora", "Cloud SQL", "Azure Database", "SkySQL"]

_SIGNS: Final[tuple[tuple[ServiceName, Callable[[Mapping[str, str], str], bool]], ...]] = (
    ("Amazon Aurora", lambda variables, host: "aurora_version" in variables),
    (
        "Amazon RDS",
        lambda variables, host: (
            variables.get("basedir", "").startswith("/rdsdbbin")
            or variables.get("datadir", "").startswith("/rdsdbdata")
        ),
    ),
    (
        "Cloud SQL",
        lambda variables, host: (
            "-google" in variables.get("version", "") or any(name.startswith("cloudsql_") for name in variables)
        ),
    ),
    (
        "Azure Database",
        lambda variables, host: "-azure" in variables.get("version", "") or "aad_auth_only" in variables,
    ),
    ("SkySQL", lambda variables, host: host.endswith((".skysql.com", ".skysql.net"))),
)

MEANINGS: Final[Mapping[ServiceName, str]] = {
    "Amazon RDS": "parameters are set in its parameter group, and how long logs are kept by"
    " mysql.rds_set_configuration",
    "Amazon Aurora": "the writer alone has a binary log. Parameters are set in the cluster's parameter group, and how"
    " long logs are kept by mysql.rds_set_configuration",
    "Cloud SQL": "settings are database flags; there is a binary log only with point-in-time recovery",
    "Azure Database": "settings are server parameters; a table without a primary key gets the invisible column"
    " my_row_id, which cannot be a key",
    "SkySQL": "settings are in its configuration manager; the address may be that of a MaxScale, which spreads reads",
}

_SETTING: Final[Mapping[ServiceName, str]] = {
    "Amazon RDS": "aws rds modify-db-parameter-group --db-parameter-group-name GROUP --parameters"
    ' "ParameterName={name},ParameterValue={value},ApplyMethod=pending-reboot"',
    "Amazon Aurora": "aws rds modify-db-cluster-parameter-group --db-cluster-parameter-group-name GROUP --parameters"
    ' "ParameterName={name},ParameterValue={value},ApplyMethod=pending-reboot"',
    "Cloud SQL": "gcloud sql instances patch INSTANCE --database-flags={name}={value} (with all flags that stay: it"
    " replaces the others)",
    "Azure Database": "az mysql flexible-server parameter set --resource-group GROUP --server-name SERVER"
    " --name {name} --value {value}",
    "SkySQL": "{name} = {value} in the configuration manager of the service",
}


AMAZON: Final[tuple[ServiceName, ...]] = ("Amazon RDS", "Amazon Aurora")

_RETENTION: Final = "binlog retention hours"


def read_retention(configuration: Sequence[Sequence[object]]) -> int:
    """The hours that Amazon keeps binary logs, from the rows of ``mysql.rds_show_configuration``: name, value, and
    more. 0 if it says NULL: Amazon removes them as soon as no replica needs them."""
    found = {str(row[0]): row[1] for row in configuration}
    text = str(found.get(_RETENTION))
    return int(text) if text.isdecimal() else 0


def find_service(variables: Mapping[str, str], host: str) -> ServiceName:
    """The service of a server with these global variables, "" for one that is nobody's."""
    return next((name for name, has_sign in _SIGNS if has_sign(variables, host)), "")


@dataclass(frozen=True, slots=True)
class Mending:
    """How a variable is set: the words for a person, and the statements where SQL does it."""

    hint: str
    statements: tuple[str, ...] = ()


def set_variable(service: ServiceName, flavor: str, name: str, value: str) -> Mending:
    """How a global variable is set for good there."""
    if service:
        return Mending(_SETTING[service].format(name=name, value=value))
    if flavor == "mysql":
        statement = f"SET PERSIST {name} = {value}"
        return Mending(statement, (statement,))
    statement = f"SET GLOBAL {name} = {value}"
    return Mending(f"{statement}, and in its configuration file", (statement,))
