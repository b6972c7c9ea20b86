"""What makes a process run many worlds quickly, and changes nothing that they do. Called once per process, first.

Envelopes and positions are immutable, and what bytes say never changes; so each is decoded once. And worlds are
collected as garbage when many of them are done, not while they run.
"""

from __future__ import annotations

import gc
import logging
from functools import lru_cache
from typing import Any, Final

import freshness.algorithm.envelope
import freshness.algorithm.view
from freshness.algorithm.envelope import Filled, NodeRecord, Stripe
from freshness.position import decode_position

REMEMBERED_MAX: Final = 4096


def be_silent() -> None:
    """The production code logs what the simulator does to it; nobody wants to read that."""
    logging.disable(logging.CRITICAL)


def be_quick() -> None:
    """See the module. For processes that do nothing else than run worlds."""
    be_silent()
    remembered: Any = lru_cache(REMEMBERED_MAX)
    for envelope in (Filled, NodeRecord, Stripe):
        envelope.decode = staticmethod(remembered(envelope.decode))  # type: ignore[method-assign]
    for module in (freshness.algorithm.envelope, freshness.algorithm.view):
        vars(module)["decode_position"] = remembered(decode_position)
    gc.freeze()
    gc.disable()


def collect() -> None:
    """Between worlds."""
    gc.collect()
