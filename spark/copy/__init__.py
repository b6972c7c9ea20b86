"""Copies of tables outside the database, kept up to date by the stream. ``python -m spark.copy``."""
