"""Recorded history as Parquet files: which columns it has, how its files are called, and who records it."""
