"""Invalidation on a cluster: a streaming sink. ``python -m spark.sink``."""
