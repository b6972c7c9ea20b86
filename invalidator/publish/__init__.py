"""Row changes as records of Kafka, and the position in the same transaction (docs/update-stream.md)."""
