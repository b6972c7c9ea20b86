"""Reports of reads, to Prometheus and OpenTelemetry."""
