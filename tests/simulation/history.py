"""Requests, replies and items as a person reads them in a history."""

from __future__ import annotations

from typing import Any, Final

from freshness.algorithm.envelope import FORMAT_VERSION, MAGIC, STUB, Filled, Kind, NodeRecord, PendingStripe, Stripe
from freshness.algorithm.request import Add, Append, Cas, Delete, Get, Item, Outcome, Stored
from freshness.errors import FormatError

STRIPE_HEAD: Final = bytes((MAGIC, FORMAT_VERSION, Kind.STRIPE))
"""The first bytes of a stripe. A chunk behind them is a stripe."""


def show(thing: Any) -> str:
    """One line for a request or a reply."""
    match thing:
        case Get():
            return f"get {thing.key.decode()}" + (" or stub" if thing.vivify_ttl_seconds else "")
        case Add():
            return f"add {thing.key.decode()} = {show_value(thing.value)} for {thing.ttl_seconds} s"
        case Cas():
            return f"cas#{thing.version} {thing.key.decode()} = {show_value(thing.value)} for {thing.ttl_seconds} s"
        case Delete():
            return f"delete {thing.key.decode()}" + (f"#{thing.version}" if thing.version is not None else "")
        case Append():
            return f"append {thing.key.decode()} {_show_chunk(thing.value)}"
        case Item():
            flags = " won" if thing.won else " leased" if thing.lease else ""
            return f"#{thing.version} {show_value(thing.value)}{flags} (ttl {thing.ttl_seconds})"
        case Stored():
            return f"stored #{thing.version}"
        case Outcome():
            return thing.value
    return str(thing)


def show_value(data: bytes) -> str:
    """What an item holds."""
    if data == STUB:
        return "stub"
    for kind in (Filled, Stripe, PendingStripe, NodeRecord):
        try:
            value = kind.decode(data)
        except FormatError:
            continue
        return _show_envelope(value)
    return repr(data)


def _show_chunk(data: bytes) -> str:
    """What is appended to a stripe, or to the list of wanted stripes."""
    try:
        chunk = Stripe.decode(STRIPE_HEAD + data)
    except FormatError:
        return data.hex()
    return f"{chunk.life.hex()[:4]} {_numbers(chunk.position)}"


def _show_envelope(value: Filled | Stripe | PendingStripe | NodeRecord) -> str:
    match value:
        case Filled():
            stamps = ", ".join(f"{s.life.hex()[:4]} {_numbers(s.position)}" for s in value.stamps)
            shown = "in parts" if value.is_parted else (value.value or b"absent").decode()
            return f"entry {shown} at {stamps}"
        case Stripe():
            return f"stripe {value.life.hex()[:4]} {_numbers(value.position)}"
        case PendingStripe():
            chunks = "".join(f" + {life.hex()[:4]} {_numbers(position)}" for life, position in value.chunks)
            return f"pending {value.nonce.hex()[:6]}{chunks}"
        case NodeRecord():
            tables = "".join(f" {t}≥{_numbers(p)}" for t, p in value.table_floors.items())
            state = "open" if value.is_open else "closed"
            return (
                f"record {value.life.hex()[:4]} {state} epoch {value.epoch} progress {_numbers(value.progress)} "
                f"floor {_numbers(value.floor)}{tables}"
            )


def _numbers(position: Any) -> str:
    """GTIDs without what is the same in all of them."""
    return str(position).replace("00000000-0000-0000-0000-00000000000", "") or "∅"
