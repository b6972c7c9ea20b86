"""The pulse, under the name by which the invalidator's modules import it."""

from freshness.backends.pulse import REMEMBERED_MAX, Pulse

__all__ = ["REMEMBERED_MAX", "Pulse"]
