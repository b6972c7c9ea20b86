"""Merging, checking and pruning an archive. ``freshness-spark archive``."""
