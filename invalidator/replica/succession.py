"""Whether a new primary has everything that any reader can have seen of the previous one (F101).

Asked when a primary has another identity than the records follow. Certain is only what servers show: the previous
primary answers and follows another server now, and no server that applications read has executed what the new primary
has not. A planned switchover leaves it so; after a crash it is so when the previous primary is back.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from freshness.algorithm.request import ConfirmSuccession
from freshness.config.server import ServerAddress
from freshness.errors import FreshnessError
from invalidator.replica.server import ServerState, look_at

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 2.0
"""How long a server may take for each answer."""


def confirm_succession(
    step: ConfirmSuccession, primary: ServerAddress, replicas: Sequence[ServerAddress], flavor: str
) -> bool:
    """See the module. ``replicas``: all other servers that applications read. An error is doubt, so False."""
    try:
        others = [look_at(address, flavor, timeout_seconds=LOOK_SECONDS) for address in replicas]
        # Last, since it only grows: what another one had before is there now, or will never be shown to be
        present = look_at(primary, flavor, timeout_seconds=LOOK_SECONDS)
    except FreshnessError as error:
        log.warning("nobody can tell what the previous primary %s had: %s", step.previous, error)
        return False
    return is_succession_certain(step, present, others)


def is_succession_certain(step: ConfirmSuccession, present: ServerState, others: Sequence[ServerState]) -> bool:
    """The decision of `confirm_succession`, from the states of the servers."""
    previous = next((state for state in others if state.server == step.previous), None)
    return (
        present.server == step.present
        and previous is not None
        and previous.follows
        and all(_has_all(present, state, previous) for state in others)
    )


def _has_all(present: ServerState, other: ServerState, previous: ServerState) -> bool:
    """Whether ``present`` has executed all that ``other`` has.

    On MariaDB two servers give the same numbers in one domain, so each server's numbers are compared separately. If
    ``present`` was set up later and knows nothing of a server, that server's numbers are in the previous primary's
    log before any number of its own that ``present`` has.
    """
    if other.executed.flavor == "mysql":
        # Each member of a group has received what one shows, and shows it at a moment of its own
        group = present.group if present.group == other.group else ""
        parts = other.executed.by_source().items()
        return all(origin == group or present.executed.contains(part) for origin, part in parts)
    known = present.last_numbers
    return all(
        known.get((domain, server), known.get((domain, int(previous.identity)), 0)) >= number
        for (domain, server), number in other.last_numbers.items()
    )
