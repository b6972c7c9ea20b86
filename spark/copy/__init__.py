"""Copies of tables outside the database, kept up to date by the stream. ``freshness-spark copy``."""
