"""Managed services are known by what they answer, and remedies are given in their own way.

The answers are as the services' public documentation shows them; no service was asked.
"""

from __future__ import annotations

import pytest

from freshness.config.server import ServerAddress
from invalidator.rules.finding import CheckFinding
from invalidator.rules.primary import check_server
from invalidator.rules.rule import Rule
from invalidator.rules.server import ServerFacts
from invalidator.rules.service import MEANINGS, ServiceName, find_service, read_retention, set_variable

GOOD = {
    "version": "8.4.3",
    "log_bin": "ON",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "gtid_mode": "ON",
    "sync_binlog": "1",
    "server_id": "7",
    "binlog_expire_logs_seconds": "2592000",
}
RDS = {**GOOD, "basedir": "/rdsdbbin/mysql-8.4.3.R2/", "datadir": "/rdsdbdata/db/"}
AURORA = {**RDS, "version": "8.0.39", "aurora_version": "3.08.0"}
CLOUD_SQL = {**GOOD, "version": "8.0.37-google", "cloudsql_iam_authentication": "OFF"}
AZURE = {**GOOD, "version": "8.0.40-azure", "aad_auth_only": "OFF"}


def server_of(variables: dict[str, str], host: str = "db.example.com", hours: int | None = None) -> ServerFacts:
    flavor = "mariadb" if "MariaDB" in variables["version"] else "mysql"
    return ServerFacts(ServerAddress(host, 3306, "app", "app", "shop"), flavor, variables, hours)


def find(server: ServerFacts, rule: Rule) -> CheckFinding:
    [found] = [each for each in check_server(server) if each.rule is rule]
    return found


@pytest.mark.parametrize(
    ("variables", "host", "service"),
    [
        (RDS, "shop.abc.eu-west-1.rds.amazonaws.com", "Amazon RDS"),
        (AURORA, "shop.cluster-abc.eu-west-1.rds.amazonaws.com", "Amazon Aurora"),
        (CLOUD_SQL, "10.1.2.3", "Cloud SQL"),
        (AZURE, "shop.mysql.database.azure.com", "Azure Database"),
        ({**GOOD, "version": "10.6.20-MariaDB"}, "shop.db1.skysql.com", "SkySQL"),
        (GOOD, "db.example.com", ""),
        ({**GOOD, "basedir": "/usr/"}, "rds.example.com", ""),
    ],
)
def test_a_service_is_known_by_what_it_answers(variables: dict[str, str], host: str, service: ServiceName) -> None:
    assert find_service(variables, host) == service
    notes = [each for each in check_server(server_of(variables, host)) if each.rule is Rule.SERVICE]
    assert [note.severity for note in notes] == (["note"] if service else [])
    if service:
        assert service in notes[0].message
        assert MEANINGS[service] in notes[0].message


def test_a_setting_is_made_in_the_services_own_way() -> None:
    bad = {"binlog_row_metadata": "MINIMAL"}
    plain = find(server_of({**GOOD, **bad}), Rule.ROW_METADATA)
    assert plain.statements == ("SET PERSIST binlog_row_metadata = FULL",)
    for variables, wanted in (
        (RDS, "aws rds modify-db-parameter-group"),
        (AURORA, "aws rds modify-db-cluster-parameter-group"),
        (CLOUD_SQL, "--database-flags=binlog_row_metadata=FULL"),
        (AZURE, "--name binlog_row_metadata --value FULL"),
    ):
        found = find(server_of({**variables, **bad}), Rule.ROW_METADATA)
        assert wanted in found.hint
        assert not found.statements, "SET GLOBAL is refused there"
    assert "in its configuration file" in set_variable("", "mariadb", "sync_binlog", "1").hint


@pytest.mark.parametrize(("value", "hours"), [(None, 0), ("NULL", 0), ("24", 24), (168, 168)])
def test_how_long_amazon_keeps_logs(value: object, hours: int) -> None:
    rows = [("source delay", "0", "…"), ("binlog retention hours", value, "binlog retention hours specifies …")]
    assert read_retention(rows) == hours
    server = server_of(RDS, hours=hours)
    found = [each for each in check_server(server) if each.rule is Rule.RETENTION]
    assert bool(found) == (hours < 72)
    if found:
        assert found[0].statements == ("CALL mysql.rds_set_configuration('binlog retention hours', 72)",)


def test_the_variable_says_nothing_where_amazon_removes_the_logs() -> None:
    server = server_of({**RDS, "binlog_expire_logs_seconds": "2592000"}, hours=0)
    assert "only until no replica needs them" in find(server, Rule.RETENTION).message
