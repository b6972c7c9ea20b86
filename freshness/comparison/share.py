"""How sure a count makes of a share: for the nines of the prober and of the audit."""

from __future__ import annotations

import math


def wilson_bounds(count: int, of: int, z: float) -> tuple[float, float]:
    """The bounds of the share that ``count`` of ``of`` speak for, by Wilson; 0 and 1 if nothing was counted. ``z``:
    how sure, as a quantile of the normal distribution."""
    if not of:
        return 0.0, 1.0
    share, square = count / of, z**2
    middle = (share + square / (2 * of)) / (1 + square / of)
    half = z / (1 + square / of) * math.sqrt(share * (1 - share) / of + square / (4 * of * of))
    # At the ends rounding would leave a bound just beside the share.
    low = 0.0 if count == 0 else min(share, max(0.0, middle - half))
    high = 1.0 if count == of else max(share, min(1.0, middle + half))
    return low, high
