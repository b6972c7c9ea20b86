"""The audit of what cache nodes hold now, against the primaries. ``freshness-spark live``."""
