"""Join a cache node: continue its life, revive it, or begin a new life (docs/algorithm.md#joining-a-node).

* Its record is there: an invalidator vouches for the node (this process before a restart, or another one).
  Join that life and continue from its progress.
* The record has lapsed but its resume copy is there: the node kept its memory. **Revive** it: same life, closed. All
  events since the copy's progress are sent again before it opens. Stripes of the life that are still there hold all
  that it ever acknowledged; the others refuse until they are put back.
* Neither is there, or the life cannot be continued: **admit** it under a new life, whose floor is the primary's head.

A record is only ever added closed, and the floor of a new life computed after it was added (F64).
"""

from __future__ import annotations

from dataclasses import replace

from freshness.algorithm.envelope import NodeRecord, find_record
from freshness.algorithm.membership import Membership, cover, is_foreign, require_topology, serve
from freshness.algorithm.request import MISSING, Add, Delete, Flow, Get, Head, Item, Procedure, ReadHead
from freshness.errors import FreshnessError, MembershipLost
from freshness.position import Position


def join(member: Membership, streamed: Position, *, epoch: int = 0, is_fresh: bool = False) -> Procedure[None]:
    """Make ``member`` joined.

    ``streamed``: everything this process has streamed so far, in the history of ``epoch``. ``is_fresh``: begin a new
    life in any case, since history is lost. Afterwards the owner must stream from a position that is contained in
    ``member.applied``. Raises `MembershipLost` while another invalidator stands in the way, `NodeUnavailable`,
    `NodeUnsuitable`, or `SourceUnavailable` when the primary's head cannot be read; then the node is not joined.
    """
    member.leave()
    member.streamed, member.streamed_epoch = streamed, epoch
    try:
        yield from _join(member, is_fresh)
    except FreshnessError:
        member.leave()
        raise


def _join(member: Membership, is_fresh: bool) -> Procedure[None]:
    read_at = member.clock()
    gets = Get(member.record_key, is_bound=True), Get(member.resume_key, is_bound=True)
    item, resume_item = yield Flow(member.node, gets)
    head = yield ReadHead()
    member.altered_by = member.everything(head)
    record, resume = find_record(item, member.node), find_record(resume_item, member.node)
    for held in (record, resume):
        require_topology(held, member.policy, member.node)
    member.resume_version = resume_item.version if isinstance(resume_item, Item) else None
    if isinstance(item, Item) and record is None:
        # Foreign bytes under our key; without a version if the backend gives those none that fits.
        yield Flow(member.node, (Delete(member.record_key, item.version or None),))
        item = MISSING
    member.version = item.version if isinstance(item, Item) else 0
    if is_fresh:
        yield from member.begin_life()
    elif record is not None:
        yield from _join_alive(member, record, item, head, read_at)
    elif resume is not None and _is_revivable(member, resume, head):
        yield from _revive(member, resume)
    else:
        yield from member.begin_life()


def _join_alive(member: Membership, record: NodeRecord, item: Item, head: Head, read_at: float) -> Procedure[None]:
    if is_foreign(record, member.policy):
        raise MembershipLost(
            f"{member.node}: its record was written under another configuration "
            f"(objects {', '.join(sorted(record.objects)) or 'none'}; "
            f"ring {' and '.join(f'{ring:08x}' for ring in sorted(record.rings))})",
            hint="if this freshness.toml is right, raise its topology: it takes over then; else stop this process",
        )
    if record.epoch > head.epoch:
        raise MembershipLost(
            f"{member.node}: its record is of epoch {record.epoch}, the primary says {head.epoch}",
            hint="the configured primary may be an old one",
        )
    if record.epoch < head.epoch or record.progress.flavor != member.streamed.flavor:
        yield from member.begin_life()
        return
    _start_from(member, record, item, read_at)
    if record.is_open and member.policy.is_serving:
        # Until the own heartbeat is back a write would close the record: `publish` covers then
        member.is_covered = serve(record, member.policy) == record
    else:
        # As after a revival. It may have come while it was asked for, so from now on (F57)
        member.target, member.opens_after = member.everything(head), member.clock()
        yield from cover(member)


def _is_revivable(member: Membership, resume: NodeRecord, head: Head) -> bool:
    return (
        not is_foreign(resume, member.policy)
        and resume.epoch == head.epoch
        and resume.progress.flavor == member.streamed.flavor
        and not resume.progress.is_empty
        and head.position.contains(resume.progress)
    )


def _revive(member: Membership, resume: NodeRecord) -> Procedure[None]:
    closed = replace(resume, is_open=False, tenure=member.nonce())
    request = Add(member.record_key, closed.encode(), member.policy.lease_seconds - 1, is_bound=True)
    yield Flow(member.node, (request,))
    # The copy may lack the last acknowledged events, and the primary may not show them yet (F57). They are in the
    # log: a heartbeat that is begun from now on, when the record is there, comes through the stream after them.
    read_at = member.clock()
    (item,) = yield Flow(member.node, (Get(member.record_key, is_bound=True),))
    record = find_record(item, member.node)
    if record is None or record.tenure != closed.tenure:
        raise MembershipLost(f"{member.node}: another invalidator is joining it", hint="it is joined again")
    head = yield ReadHead()  # after the record was added: a head read before may miss what happened in between
    if head.epoch != record.epoch:
        raise MembershipLost(f"{member.node}: the epoch was raised meanwhile", hint="it is joined again")
    _start_from(member, record, item, read_at)
    member.target, member.opens_after = member.everything(head), read_at
    yield from cover(member)


def _start_from(member: Membership, record: NodeRecord, item: Item, read_at: float) -> None:
    member.start_from(record.progress)
    member.adopt(record, item, read_at)
