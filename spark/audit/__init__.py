"""The audit by replay: recorded history is judged, change by change. ``python -m spark.audit``."""
