"""Merging, checking and pruning an archive. ``python -m spark.archive``."""
