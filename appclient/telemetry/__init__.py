"""What a cache reports of its reads: to Prometheus, to OpenTelemetry, or to nobody."""
