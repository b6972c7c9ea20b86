"""Compares what cache nodes hold with the primaries, and removes what is poisoned.

Used by the prober and by ``invalidator inspect``.
"""
