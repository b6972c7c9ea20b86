"""Invalidation on a cluster: a streaming sink. ``freshness-spark sink``."""
