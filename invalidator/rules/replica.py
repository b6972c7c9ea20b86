"""Whether reads of the other servers of a shard are right, and become hits. Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from freshness.config.config import Config
from freshness.config.keyspace import Shard
from freshness.database.cluster import is_galera
from freshness.database.connection import OUTSIDE_HINT
from invalidator.replica.server import find_filters, find_foreign, find_skipped, find_stopped
from invalidator.rules.finding import CheckFinding, select_errors
from invalidator.rules.primary import check_log, check_rights, check_service, check_tested, check_version
from invalidator.rules.rule import Rule
from invalidator.rules.server import ServerFacts


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """The servers of a shard that could be looked at. ``primary``: from a later look than the replicas'."""

    config: Config
    shard: Shard
    primary: ServerFacts
    replicas: Sequence[ServerFacts]

    def check(self) -> Iterator[CheckFinding]:
        yield from _check_primary(self)
        for replica in self.replicas:
            found = list(check_version(replica))
            if not found and not _is_same(self.primary, replica):
                found = list(_check_replica(replica, self))
            yield from found
        yield from _check_identities([self.primary, *self.replicas])
        yield from _check_adoption(self)
        for server in (self.primary, *self.replicas):
            yield from _check_capacity(server, self.config)
            yield from _check_past(server)
        zone = self.config.cache.zone
        if zone and self.shard.replicas and all(each.zone != zone for each in self.shard.replicas):
            yield CheckFinding(Rule.ZONE, f"no replica of {self.shard.lineage} is in the zone {zone}")


def _check_primary(facts: ShardFacts) -> Iterator[CheckFinding]:
    primary, config = facts.primary, facts.config
    if primary.topologies is None:
        yield primary.find(Rule.HEARTBEAT_TABLE, "the table freshness_heartbeat is not there yet")
    latest = (primary.topologies or {}).get(config.cache.namespace, 0)
    if latest > config.topology:
        yield primary.find(
            Rule.TOPOLOGY, f"topology {latest} is in force, this configuration is topology {config.topology}"
        )
    if facts.shard.lossless_failover and not _is_lossless(primary):
        yield primary.find(
            Rule.LOSSLESS,
            "lossless_failover is stated, and neither Group Replication with several members nor semi-synchronous"
            " replication with AFTER_SYNC is in force",
        )


def _is_lossless(server: ServerFacts) -> bool:
    if any(int(row.get("Members_Online", "0")) > 1 for row in server.replication or ()):
        return True
    return any(
        server.is_on(f"rpl_semi_sync_{role}_status")
        and server[f"rpl_semi_sync_{role}_wait_point"].upper() == "AFTER_SYNC"
        for role in ("source", "master")
    )


def _check_replica(replica: ServerFacts, facts: ShardFacts) -> Iterator[CheckFinding]:
    yield from check_service(replica)
    yield from check_tested(replica)
    if replica.service == "Amazon Aurora" and replica.is_on("innodb_read_only"):
        yield replica.find(Rule.AURORA_READER, "it is a reader of Aurora: nothing is stored from it")
        return
    if replica.flavor == "mysql" and replica["gtid_mode"].upper() != "ON":
        yield replica.find(Rule.GTID_MODE, f"gtid_mode is {replica['gtid_mode']}: its position shows nothing")
    if not replica.is_read_only and not facts.shard.adopt_promotions:
        yield replica.setting(Rule.REPLICA_WRITABLE, "read_only", "ON", "a write to it is an errant transaction")
    skipped = find_skipped(replica.variables)
    if skipped:
        yield replica.find(Rule.REPLICA_SKIPS, f"it passes over errors of its replication ({skipped})")
    for name in ("replica_exec_mode", "slave_exec_mode"):
        if replica[name].upper() == "IDEMPOTENT":
            yield replica.setting(
                Rule.REPLICA_SKIPS, name, "STRICT", "it passes over rows that are not there, or there already"
            )
            break
    if facts.config.stream.replica_choice != "primary":
        yield from _check_streamed(replica)
    yield from _check_replication(replica, facts)


def _check_streamed(replica: ServerFacts) -> Iterator[CheckFinding]:
    """The log of a replica that is to be read: its own settings decide over what is in it."""
    yield from check_log(replica)
    yield from check_rights(replica)
    if replica.state is not None and replica.state.unfit:
        yield replica.find(Rule.LOG_NOT_READ, f"its log is not read: {replica.state.unfit}")


def _check_replication(replica: ServerFacts, facts: ShardFacts) -> Iterator[CheckFinding]:
    stopped = list(find_stopped(replica.replication or ()))
    remedy = OUTSIDE_HINT if is_galera(replica.variables) else ""
    if stopped and replica.state is None:
        yield replica.find(Rule.NOT_REPLICATING, "; ".join(stopped), remedy)
        return
    if replica.replication is None or replica.state is None:
        yield replica.find(
            Rule.HIDDEN,
            f"account {replica.address.user} may not see its replication: filters, lag and errant transactions"
            " were not looked at",
        )
        return
    filters = [f"{name} = {row[name]}" for row in replica.replication for name in find_filters(row)]
    if filters:
        yield replica.find(
            Rule.REPLICA_FILTER,
            f"it leaves out a part of what it replicates ({', '.join(filters)}), and its"
            " position does not show it: what is read there can be old, and is stored",
        )
    is_member = is_galera(replica.variables) or _is_apart(replica, facts.primary)
    if not replica.state.follows and not is_member:
        yield replica.find(Rule.NOT_REPLICATING, "it follows nobody")
    elif stopped:
        yield replica.find(Rule.NOT_REPLICATING, "; ".join(stopped), remedy)
    delays = {row.get("SQL_Delay", "") for row in replica.replication} - {"", "0"}
    if delays:
        yield replica.find(Rule.DELAYED, f"it is set up to be {max(delays, key=len)} s late")
    primary = facts.primary.state
    if primary is None:
        return
    errant = find_foreign(replica.state, primary, primary.executed)
    if errant:
        yield replica.find(Rule.ERRANT, f"it has executed {errant[:200]}, and the primary has not")
    if primary.heartbeats and not replica.state.heartbeats:
        yield replica.find(Rule.NO_HEARTBEATS, "it has none of the heartbeats that the primary has")
        return
    behind_seconds = replica.state.find_behind(primary) / 1e6
    if behind_seconds > facts.config.cache.max_staleness_seconds and not stopped and not delays:
        yield replica.find(Rule.LAGS, f"it is {behind_seconds:.0f} s behind by the heartbeats")


def _is_same(one: ServerFacts, other: ServerFacts) -> bool:
    return one.identity == other.identity != ""


def _check_identities(servers: Sequence[ServerFacts]) -> Iterator[CheckFinding]:
    for one, other in combinations(servers, 2):
        if _is_same(one, other):
            yield other.find(Rule.SAME_SERVER, f"it is the same server as {one.where}")
        elif is_galera(one.variables) and is_galera(other.variables):
            for name in ("wsrep_gtid_domain_id", "server_id"):
                if one[name] != other[name]:
                    told = f"its {name} is {other[name]}, and that of {one.where} is {one[name]}"
                    remedy = "set the same on all nodes of a Galera cluster: a commit has one GTID on each of them"
                    yield other.find(Rule.SEVERAL_WRITERS, told, remedy)
        elif _is_apart(one, other) or _is_apart(other, one):
            apart, node = (one, other) if _is_apart(one, other) else (other, one)
            told = (
                f"wsrep_on is OFF, and its server id is that of the node {node.where}: no other node gets its changes"
            )
            yield apart.find(Rule.SEVERAL_WRITERS, told, "SET GLOBAL wsrep_on = ON; build it again if it has changes")
        elif one["server_id"] == other["server_id"] != "":
            yield other.find(
                Rule.SERVER_ID_CLASH, f"its server id is {other['server_id']}, and so is that of {one.where}"
            )


def _is_apart(server: ServerFacts, node: ServerFacts) -> bool:
    """Whether a server has the id of a node of Galera, and is not one: its wsrep_on was set to OFF."""
    is_alone = (
        is_galera(node.variables) and server["wsrep_on"] == "OFF" and server["wsrep_provider"] not in ("", "none")
    )
    return is_alone and server["server_id"] == node["server_id"] != ""


def _check_adoption(facts: ShardFacts) -> Iterator[CheckFinding]:
    if not facts.shard.adopt_promotions:
        return
    writable = [each for each in (facts.primary, *facts.replicas) if not each.is_read_only]
    count = len({each.identity or each.where for each in writable})
    if count > 1:
        names = ", ".join(each.where for each in writable)
        for each in writable:
            if each is not facts.primary and not _is_same(facts.primary, each):
                found = each.setting(Rule.ADOPTION_BLOCKED, "read_only", "ON")
                if each.state is None or not each.state.follows:  # it may be the true primary
                    found = each.find(Rule.ADOPTION_BLOCKED, "")
                told = f"{count} servers of {facts.shard.lineage} are writable: {names}"
                yield replace(found, message=told)
    for replica in facts.replicas:
        missing = select_errors(check_log(replica))
        if missing:
            reasons = "; ".join(each.message for each in missing)
            yield replica.find(
                Rule.NOT_PROMOTABLE,
                f"it could not be followed as the primary: {reasons}",
                "; ".join(each.hint for each in missing),
                *(statement for each in missing for statement in each.statements),
            )


def _check_past(server: ServerFacts) -> Iterator[CheckFinding]:
    name = "system_versioning_asof"
    if server[name] not in ("", "DEFAULT"):
        why = "system-versioned tables are read as they were then, and each cached read goes to another server"
        yield server.setting(Rule.PAST, name, "DEFAULT", why, but="also in its configuration file")


def _check_capacity(server: ServerFacts, config: Config) -> Iterator[CheckFinding]:
    most = server["max_connections"]
    if most.isdecimal() and config.cache.connections_max >= int(most):
        yield server.find(
            Rule.CONNECTIONS,
            f"max_connections is {most}, and one process of an application may open"
            f" {config.cache.connections_max} (cache.connections_max)",
        )
    ahead = server.clock_ahead_seconds
    if abs(ahead) > config.cache.clock_skew_seconds:
        side = "ahead of" if ahead > 0 else "behind"
        yield server.find(Rule.CLOCK, f"its clock is {abs(ahead):.1f} s {side} this machine's")
