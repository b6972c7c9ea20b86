"""The audit of what cache nodes hold now, against the primaries. ``python -m spark.live``."""
