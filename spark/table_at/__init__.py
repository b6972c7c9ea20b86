"""A table as it was at a position or a time, from a copy and the archive. ``freshness-spark table_at``."""
