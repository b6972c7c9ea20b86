"""The role of a source and what it delivers, under the name by which the invalidator's modules import them."""

from freshness.source import (
    UNREADABLE,
    Heartbeat,
    Operation,
    RowChange,
    Shape,
    Source,
    Transaction,
    Unreadable,
)

__all__ = [
    "UNREADABLE",
    "Heartbeat",
    "Operation",
    "RowChange",
    "Shape",
    "Source",
    "Transaction",
    "Unreadable",
]
