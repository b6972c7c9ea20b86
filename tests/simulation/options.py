"""What one simulated world is like. Everything follows from the seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final, Literal

from freshness.config.cache import PART_BYTES, CacheConfig

FAULTS: Final = (
    "lose_request",  # lost before the effect
    "lose_reply",  # lost after it
    "delay_request",  # carried out later, when its sender has long given up
    "refuse_append",  # memcached has no memory for what is appended, and keeps the stripe
    "pause",  # a process stands still, up to minutes
    "stall",  # a process stands still just before one kind of request (`Options.stall_at`)
    "crash",  # an invalidator dies and starts again
    "evict",  # memcached drops any item
    "evict_stripe",  # it drops a stripe
    "restart",  # a node comes back empty, its versions start again
    "cut",  # a node is not reachable for a while and comes back with what it had
    "flush",  # a stranger flushes a node
    "jump",  # time passes and nothing happens: leases lapse, pending stripes expire
    "truncate",  # a table changes as a whole
    "move",  # a row changes its key
    "stop_replica",  # a replica stops applying
    "late_domain",  # a replica of MariaDB applies one domain later than the other
    "move_session",  # a proxy sends the next statement of a reader to another server
    "cut_session",  # a reader's connection to a server is lost between two statements
    "failover",  # a new primary, without the last commits
    "redeploy",  # the invalidators start again with one object more or fewer
    "reshape",  # another set of nodes; readers learn of it later than invalidators
)
BOUND_FAULTS: Final = (
    "fail_beat",  # a heartbeat is not written
    "lose_beat",  # it is, some time later, and its writer gets an error
    "stop_clock",  # a node stands still with its clock, which goes on from there, or jumps to the right time soon
    "step_clock",  # the clock of a node is set back or forth, as Redis counts TTLs by the wall clock
    "restripe",  # the invalidators start again with another number of stripes
)
"""What the bound of staleness must stand; drawn apart, in `BOUND_SHARE` of the worlds."""
BOUND_SHARE: Final = 0.3
NAME_FAULTS: Final = ("share_server",)  # the name of a node comes to mean the server of another one
"""Drawn apart, in `NAMES_SHARE` of the worlds."""
NAMES_SHARE: Final = 0.04
MEMORY_FAULTS: Final = (
    "return_memory",  # a node closes its connections, and has an earlier memory of its own
    "replace_memory",  # it has one under living connections
)
"""Drawn apart, in `MEMORY_SHARE` of the worlds."""
MEMORY_SHARE: Final = 0.08
CANCEL_FAULTS: Final = ("cancel",)  # a read is interrupted between two of its requests
"""Drawn apart, in `CANCEL_SHARE` of the worlds, and in `RETURN_CANCEL_SHARE` of those with an earlier memory."""
CANCEL_SHARE: Final = 0.08
RETURN_CANCEL_SHARE: Final = 0.5
ACCEPTS_SHARE: Final = 0.08
"""How many worlds have reads with a bound of their own."""
TOGETHER_SHARE: Final = 0.06
"""How many worlds have reads of all rows of an object as of one moment, and commits that change several."""
ACCEPTED_SECONDS: Final = (0.5, 1.5, 3.0, 6.0)
STRIPES: Final = (1, 2, 8)

Flavor = Literal["mysql", "mariadb"]
STALLS: Final = ("publish", "record", "strike", "put back", "fill", "guard", "resume")
"""Before which kind of request a process stalls; strike: an append to a stripe; publish: a record, when stripes have
been appended to before."""

RESHARD_SHARE: Final = 0.05
"""How many worlds are resharded."""
RESHARD_FAULTS: Final = (
    "lose_request", "lose_reply", "delay_request", "pause", "stall", "crash", "evict", "restart", "cut", "flush",
    "jump", "stop_replica", "move_session", "cut_session",
)  # fmt: skip

SINK_SHARE: Final = 0.1
"""How many worlds, of those without a reshard, have the Spark sink in the place of an invalidator, or beside one."""

LOG_SHARE: Final = 0.2
"""How many worlds, of those without a reshard, have single rows that are filled from the log."""

WRITES_SHARE: Final = 0.15
"""How many worlds, of those without a reshard, have readers that commit and ask for their own commits."""

PARTS_SHARE: Final = 0.12
"""How many worlds, of those without a reshard, have values of several items."""

RINGS_SHARE: Final = 0.06
"""How many worlds, of those without a reshard, have nodes that come and go all the time."""

RESTARTS: Final = ("restart", "crash", "flush", "cut", "jump")
KEY_KINDS_SHARE: Final = 0.12
"""How many worlds, of those without a reshard, have keys with several spellings."""
KEY_KINDS: Final = ("decimals", "moments", "bytes", "padded text", "loose text")
"""See `tests.simulation.keykind`."""

PROFILES: Final = (
    "any", "steady", "lagging", "two", "takeover", "revival", "proxied", "behind", "evictions", "storm", "restarts",
    "raised", "placement",
)  # fmt: skip
"""Besides "reshard", "rings", "memory" and "together", see `RESHARD_SHARE` and the functions `_with_…`."""


@dataclass(frozen=True, slots=True)
class Options:
    """``lease_seconds`` L is small, so that expiry is never far away. ``stripes``: per shard and node.

    ``chance``: another run of the same world (used to make a violation small).
    """

    seed: int
    chance: int = 0
    profile: str = "any"
    steps: int = 400
    flavor: Flavor = "mysql"
    shards: int = 1
    reshard: Literal["", "split", "merge"] = ""
    learn_share: float = 0.02  # how often a read is the first one with the shards of after the reshard
    keys: int = 2
    key_kind: str = "numbers"
    nodes: int = 1
    readers: int = 2
    invalidators: int = 1
    sinks: int = 0  # how many of the invalidators of each shard are jobs of the Spark sink
    executors: int = 2  # of each job
    replicas: int = 1
    stripes: int = 2
    domains: int = 1  # of MariaDB
    is_out_of_order: bool = False
    on_stale_serve: bool = False
    has_extra_object: bool = False  # readers read an object that invalidators may not know
    warm_seconds: float = 0.0  # how long readers and faults wait for the invalidators
    think_seconds: float = 0.0  # about how long a reader rests between two reads
    lag_seconds: float = 0.0  # what the first replica keeps behind on purpose
    behind_seconds: float = 0.0  # how late the last invalidator's stream is
    quiet_seconds: float = 0.3  # about how long the writer rests between two commits
    burst: float = 0.0  # how often the actor of the step before goes on
    holds_commits: bool = False  # a primary streams commits that it does not show for as long as time jumps (F57)
    gap_share: float = 0.0  # how often a GTID leaves out numbers
    stall_at: str = "record"
    stall_seconds: float = 0.0  # 0: about one of the bounds that count
    faults: frozenset[str] = frozenset()
    fault_share: float = 0.03
    lease_seconds: int = 3
    max_staleness_seconds: float = 10.0
    node_refresh_seconds: float = 1.0
    heartbeat_seconds: float = 1.0
    clock_rate_error: float = 0.0  # by which share clocks run too fast or too slow, at most
    is_reordered: bool = False  # a replica could be followed whose log has heartbeats before earlier changes (F92)
    fills_from_log: bool = False  # the invalidators replace single rows by those of the log
    is_mixed: bool = False  # each process has its own lease, bound and refresh
    clock_skew_seconds: float = 2.0  # how far wall clocks differ, at most
    writes_share: float = 0.0  # how often a reader commits before it reads; it asks for its own commits
    part_bytes: int = PART_BYTES  # a larger value is in parts
    accepts_share: float = 0.0  # how often a read accepts less staleness than the configuration
    together_share: float = 0.0  # how often a read is of all rows of an object, together

    @property
    def cache(self) -> CacheConfig:
        """The configuration of a process, for what production makes of it."""
        return CacheConfig(
            nodes=("n0",),
            namespace="sim",
            lease_seconds=self.lease_seconds,
            max_staleness_seconds=self.max_staleness_seconds,
            node_refresh_seconds=self.node_refresh_seconds,
            clock_skew_seconds=self.clock_skew_seconds,
        )

    @property
    def heartbeat_age_max_seconds(self) -> float:
        return self.cache.heartbeat_age_max_seconds

    @classmethod
    def of_seed(cls, seed: int) -> Options:
        """A world of every kind: small ones often, every fault sometimes, often only a few at once."""
        random = Random(f"options {seed}")
        share = random.choice((0.0, 0.1, 0.2, 0.5))
        lease = random.choice((3, 3, 3, 3, 2))
        flavor: Flavor = "mariadb" if random.random() < 0.2 else "mysql"
        base = cls(
            seed=seed,
            flavor=flavor,
            shards=random.choice((1, 1, 1, 2)),
            keys=random.choice((1, 1, 2, 3)),
            nodes=random.choice((1, 1, 2)),
            readers=random.choice((1, 2, 2, 3)),
            invalidators=random.choice((1, 1, 2)),
            replicas=random.choice((1, 2)),
            stripes=random.choice((1, 1, 2, 2, 8)),
            domains=2 if flavor == "mariadb" else 1,
            is_out_of_order=flavor == "mysql" and random.random() < 0.3,
            on_stale_serve=random.random() < 0.1,
            has_extra_object=random.random() < 0.15,
            warm_seconds=random.choice((0.0, 2.0, 2.0, 3.0)),
            think_seconds=random.choice((0.0, 0.1, 0.5, 2.0)),
            lag_seconds=random.choice((0.0, 0.0, 1.0, 5.0, 25.0, 60.0)),
            behind_seconds=random.choice((0.0, 0.0, 0.0, 2.0, 8.0)),
            quiet_seconds=random.choice((0.1, 0.5, 3.0, 15.0)),
            burst=random.choice((0.0, 0.0, 0.5, 0.8)),
            gap_share=random.choice((0.0, 0.0, 0.3)),
            stall_at=random.choice(STALLS),
            faults=frozenset(fault for fault in FAULTS if random.random() < share),
            fault_share=random.choice((0.003, 0.01, 0.03)),
            lease_seconds=lease,
            max_staleness_seconds=random.choice((10.0, 10.0, 30.0)),
            clock_rate_error=random.choice((0.0, 0.005)),
        )
        shaped = _shape(base, random)
        shaped = replace(shaped, holds_commits=random.random() < 0.2)
        chance = Random(f"bound {seed}")
        if chance.random() < BOUND_SHARE:
            shaped = _with_bound_faults(shaped, chance)
        chance = Random(f"reshard {seed}")
        if chance.random() < RESHARD_SHARE:
            return _reshard(shaped, chance)
        chance = Random(f"key kind {seed}")
        if chance.random() < KEY_KINDS_SHARE:
            shaped = replace(shaped, key_kind=chance.choice(KEY_KINDS), keys=max(2, shaped.keys))
        chance = Random(f"names {seed}")
        if chance.random() < NAMES_SHARE:
            shaped = replace(shaped, nodes=2, faults=shaped.faults.union(NAME_FAULTS))
        chance = Random(f"log {seed}")
        shaped = replace(shaped, fills_from_log=chance.random() < LOG_SHARE)
        chance = Random(f"writes {seed}")
        if chance.random() < WRITES_SHARE:
            shaped = replace(shaped, writes_share=chance.choice((0.1, 0.5)))
        chance = Random(f"rings {seed}")
        if chance.random() < RINGS_SHARE:
            shaped = _with_rings(shaped, chance)
        chance = Random(f"parts {seed}")
        if chance.random() < PARTS_SHARE:
            shaped = replace(shaped, part_bytes=chance.choice((1, 2, 3)))
        chance = Random(f"driver {seed}")
        if chance.random() < SINK_SHARE:
            shaped = _with_sinks(shaped, chance)
        chance = Random(f"memory {seed}")
        if chance.random() < MEMORY_SHARE:
            shaped = _with_earlier_memories(shaped, chance)
        chance = Random(f"cancels {seed}")
        has_returns = not shaped.faults.isdisjoint(MEMORY_FAULTS)
        if chance.random() < (RETURN_CANCEL_SHARE if has_returns else CANCEL_SHARE):
            shaped = replace(shaped, faults=shaped.faults.union(CANCEL_FAULTS))
        chance = Random(f"accepts {seed}")
        if chance.random() < ACCEPTS_SHARE:
            shaped = replace(shaped, accepts_share=chance.choice((0.2, 1.0)))
        chance = Random(f"together {seed}")
        if chance.random() < TOGETHER_SHARE:
            shaped = _with_reads_together(shaped, chance)
        return shaped


def _with_bound_faults(base: Options, random: Random) -> Options:
    """The same world with clocks, heartbeats and settings that fail. In some of them little else happens."""
    faults = frozenset(fault for fault in BOUND_FAULTS if random.random() < 0.4)
    shaped = replace(
        base,
        faults=base.faults | faults,
        is_mixed=random.random() < 0.4,
        is_reordered=base.flavor == "mysql" and random.random() < 0.3,
    )
    if random.random() < 0.5:
        return shaped
    return replace(
        shaped,
        keys=random.choice((1, 2)),
        shards=1,
        nodes=1,
        has_extra_object=False,
        think_seconds=0.5,
        quiet_seconds=3.0,
        lag_seconds=0.0,
        faults=(faults or frozenset({"stop_clock"})) | {random.choice(("pause", "crash", "delay_request"))},
        fault_share=0.01,
    )


def _reshard(base: Options, random: Random) -> Options:
    """One shard becomes two, or two become one."""
    return replace(
        base,
        profile="reshard",
        reshard=random.choice(("split", "merge")),
        shards=3,
        keys=random.choice((1, 2)),
        learn_share=random.choice((0.002, 0.02)),
        # With two invalidators of each shard one is left behind; the world then takes longer to get there
        steps=1500 if base.invalidators == 1 else 4000,
        nodes=base.nodes if base.invalidators == 1 else 1,
        has_extra_object=False,
        behind_seconds=0.0,
        lag_seconds=random.choice((0.0, 0.0, 1.0, 5.0)),
        quiet_seconds=random.choice((0.1, 0.5, 3.0)),
        think_seconds=random.choice((0.1, 0.5)),
        fault_share=random.choice((0.0, 0.003, 0.01)),
        faults=frozenset(fault for fault in RESHARD_FAULTS if random.random() < 0.3),
    )


def _with_rings(base: Options, random: Random) -> Options:
    """The same world with other nodes every few seconds, back and forth, and little else."""
    others = (
        "pause",
        "stall",
        "crash",
        "evict",
        "evict_stripe",
        "restart",
        "delay_request",
        "lose_reply",
        "jump",
        "cut",
    )
    return replace(
        base,
        profile="rings",
        steps=3000,
        nodes=random.choice((2, 2, 3)),
        keys=3,
        shards=random.choice((1, 1, 1, 2)),
        stripes=random.choice((1, 2)),
        readers=2,
        has_extra_object=False,
        behind_seconds=0.0,
        lag_seconds=random.choice((0.0, 0.0, 1.0, 5.0)),
        quiet_seconds=random.choice((0.5, 3.0)),
        think_seconds=random.choice((0.1, 0.5)),
        stall_at=random.choice(("publish", "record", "fill", "guard", "resume")),
        faults=frozenset({"reshape", *random.sample(others, random.choice((0, 1, 2)))}),
        fault_share=random.choice((0.001, 0.003)),
    )


def _with_reads_together(base: Options, random: Random) -> Options:
    """The same world of one shard, with at least two keys. In most of them two nodes are busy, and little else
    happens."""
    shaped = replace(base, shards=1, keys=max(2, base.keys), together_share=random.choice((0.3, 0.7)))
    if random.random() < 0.3:
        return shaped
    others = "lose_request", "lose_reply", "pause", "stall", "delay_request", "evict", "crash"
    return replace(
        shaped,
        profile="together",
        steps=2000,
        nodes=2,
        keys=3,
        readers=3,
        has_extra_object=False,
        behind_seconds=random.choice((0.0, 0.5, 1.0)),
        lag_seconds=0.0,
        quiet_seconds=random.choice((0.1, 0.5)),
        think_seconds=random.choice((0.01, 0.1)),
        burst=0.0,
        stall_at=random.choice(("publish", "strike", "fill")),
        faults=frozenset(random.sample(others, random.choice((0, 1, 2)))),
        fault_share=random.choice((0.001, 0.01)),
    )


def _with_earlier_memories(base: Options, random: Random) -> Options:
    """The same world on servers that can have an earlier memory again. In most of them it comes back often, and
    little else happens."""
    faults = random.choice((MEMORY_FAULTS[:1], MEMORY_FAULTS[1:], MEMORY_FAULTS))
    if random.random() < 0.4:
        return replace(base, faults=base.faults.union(faults))
    others = ("pause", "stall", "crash", "evict", "evict_stripe", "jump", "cut", "delay_request", *CANCEL_FAULTS)
    return replace(
        base,
        profile="memory",
        steps=900,
        keys=random.choice((1, 2)),
        shards=1,
        nodes=1,
        readers=2,
        has_extra_object=False,
        behind_seconds=0.0,
        lag_seconds=random.choice((0.0, 0.0, 1.0)),
        quiet_seconds=0.5,
        think_seconds=0.1,
        warm_seconds=3.0,
        stall_at=random.choice(("record", "record", "resume", "fill", "put back", "publish")),
        faults=frozenset(faults).union(random.sample(others, random.choice((0, 1, 2)))),
        fault_share=random.choice((0.003, 0.01)),
    )


def _with_sinks(base: Options, random: Random) -> Options:
    """The same world, invalidated by jobs on a cluster. In some of them executors stall within a micro-batch."""
    executors, steps = random.choice((1, 2, 3)), base.steps * 3 // 2
    sinks = random.randint(1, base.invalidators)
    shaped = replace(base, sinks=sinks, executors=executors, steps=steps)
    if random.random() < 0.7:
        return shaped
    return replace(
        shaped,
        executors=1,
        keys=3,
        shards=1,
        nodes=1,
        invalidators=1,
        sinks=1,
        faults=(base.faults & {"evict", "lose_reply"}) | {"stall"},
        fault_share=0.003,
        stall_at="strike",
        stall_seconds=random.choice((5.0, 20.0)),
        max_staleness_seconds=60.0,
        behind_seconds=0.0,
        quiet_seconds=0.5,
        think_seconds=2.0,
        lag_seconds=25.0,
    )


def _shape(base: Options, random: Random) -> Options:
    """Half of the worlds are led to where chance alone seldom comes."""
    profile = random.choice(PROFILES) if random.random() < 0.6 else "any"
    match profile:
        case "steady":  # entries live long, keys change seldom: hits
            return replace(
                base,
                profile=profile,
                faults=frozenset(random.sample(FAULTS, 1)),
                fault_share=0.003,
                think_seconds=0.5,
                quiet_seconds=3.0,
                lag_seconds=random.choice((0.0, 1.0)),
            )
        case "lagging":  # the replica has an event long after it was acknowledged
            return replace(
                base,
                profile=profile,
                steps=900,
                keys=1,
                shards=1,
                nodes=1,
                readers=random.choice((1, 2)),
                lag_seconds=random.choice((25.0, 60.0)),
                quiet_seconds=random.choice((3.0, 15.0)),
                think_seconds=random.choice((0.5, 2.0)),
                warm_seconds=3.0,
                faults=base.faults & {"evict", "stop_replica", "stall", "pause", "crash", "cut"},
                fault_share=0.003,
            )
        case "two":  # one of two invalidators is late, the other stalls between sending and publishing
            is_far_behind = random.random() < 0.4
            return replace(
                base,
                profile=profile,
                steps=1500 if is_far_behind else 900,
                keys=1,
                shards=1,
                nodes=1,
                readers=1,
                invalidators=2,
                behind_seconds=30.0 if is_far_behind else random.choice((8.0, 12.0, 18.0)),
                max_staleness_seconds=60.0,
                lag_seconds=random.choice((0.0, 25.0, 60.0)),
                quiet_seconds=15.0 if is_far_behind else random.choice((3.0, 15.0)),
                think_seconds=2.0 if is_far_behind else random.choice((0.5, 2.0)),
                warm_seconds=3.0,
                stall_at="publish" if is_far_behind else random.choice(("publish", "strike", "put back", "resume")),
                stall_seconds=20.0 if is_far_behind else 0.0,
                faults=(base.faults & {"evict", "crash", "lose_reply"}) | {"stall", "evict_stripe"},
                fault_share=0.003 if is_far_behind else random.choice((0.01, 0.03)),
            )
        case (
            "takeover"
        ):  # one stands still after a TRUNCATE, before its resume copy; the other, late, revives the node
            return replace(
                base,
                profile=profile,
                keys=1,
                shards=1,
                nodes=1,
                readers=2,
                invalidators=2,
                behind_seconds=random.choice((4.0, 6.0, 8.0)),
                max_staleness_seconds=60.0,
                quiet_seconds=3.0,
                think_seconds=0.5,
                lag_seconds=random.choice((10.0, 15.0, 25.0)),
                replicas=1,
                steps=900,
                warm_seconds=random.choice((3.0, 15.0)),
                stall_at=random.choice(("resume", "resume", "record")),
                stall_seconds=random.choice((1.2, 1.6, 2.0)) * base.lease_seconds,
                faults=(base.faults & {"lose_reply"}) | {"truncate", "stall"},
                fault_share=0.02,
            )
        case "revival":  # entries that nobody reads from a TRUNCATE until the node is revived
            return replace(
                base,
                profile=profile,
                keys=3,
                shards=1,
                nodes=1,
                readers=1,
                invalidators=1,
                behind_seconds=0.0,
                max_staleness_seconds=30.0,
                lag_seconds=0.0,
                quiet_seconds=15.0,
                think_seconds=2.0,
                faults=frozenset({"truncate", random.choice(("crash", "jump"))}),
                fault_share=0.01,
            )
        case "evictions":  # stripes are evicted all the time, also while their put-back is under way
            return replace(
                base,
                profile=profile,
                steps=900,
                keys=random.choice((1, 2)),
                nodes=1,
                stripes=random.choice((1, 2)),
                invalidators=random.choice((1, 2)),
                quiet_seconds=random.choice((0.5, 3.0)),
                think_seconds=random.choice((0.1, 0.5)),
                lag_seconds=random.choice((0.0, 1.0, 5.0)),
                stall_at=random.choice(("strike", "put back", "publish")),
                faults=frozenset({"evict_stripe", random.choice(("crash", "stall", "lose_reply", "evict"))}),
                fault_share=random.choice((0.02, 0.05)),
            )
        case "proxied":  # sessions are moved and lost between two replicas, of which one is late
            session_faults = {"move_session", "cut_session", *(["late_domain"] if base.domains > 1 else [])}
            return replace(
                base,
                profile=profile,
                steps=700,
                keys=random.choice((1, 2)),
                shards=1,
                nodes=1,
                replicas=2,
                lag_seconds=random.choice((1.0, 5.0, 25.0)),
                quiet_seconds=random.choice((0.5, 3.0)),
                think_seconds=random.choice((0.0, 0.1)),
                warm_seconds=3.0,
                faults=(base.faults & {"evict", "pause"}) | session_faults,
                fault_share=0.003,
            )
        case "behind":  # the only invalidator is so late that nobody may vouch for the node
            return replace(
                base,
                profile=profile,
                steps=700,
                invalidators=1,
                max_staleness_seconds=10.0,
                behind_seconds=random.choice((3.0, 10.0, 12.0)),
                quiet_seconds=3.0,
                think_seconds=0.5,
                faults=base.faults & {"pause", "evict", "crash"},
            )
        case "storm":
            return replace(base, profile=profile, faults=frozenset(FAULTS), fault_share=0.05)
        case "restarts":  # memory and leases are lost often, and little else happens
            return replace(
                base,
                profile=profile,
                faults=frozenset(
                    random.sample(("restart", "crash", "flush", "cut", "jump"), random.choice((1, 2, 3)))
                ),
                fault_share=0.02,
                quiet_seconds=random.choice((0.5, 3.0)),
                lag_seconds=random.choice((0.0, 5.0, 25.0)),
            )
        case "raised":  # whole tables change, invalidators come and go
            return replace(
                base,
                profile=profile,
                faults=frozenset({"truncate", random.choice(("crash", "jump", "stall", "pause"))}),
                fault_share=0.02,
                think_seconds=random.choice((0.0, 0.1)),
                lag_seconds=random.choice((0.0, 1.0, 5.0)),
                gap_share=random.choice((0.0, 0.3)),
            )
        case "placement":  # other objects, other nodes
            return replace(
                base,
                profile=profile,
                nodes=2,
                has_extra_object=True,
                faults=(base.faults & {"pause", "evict", "crash"}) | {"redeploy", "reshape"},
                fault_share=0.01,
                think_seconds=random.choice((0.1, 0.5)),
                quiet_seconds=random.choice((0.5, 3.0)),
            )
    return base
