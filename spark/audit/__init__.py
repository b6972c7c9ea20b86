"""The audit by replay: recorded history is judged, change by change. ``freshness-spark audit``."""
