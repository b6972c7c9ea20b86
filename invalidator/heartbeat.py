"""The heartbeat's writer, under the name by which the invalidator's modules import it."""

from freshness.backends.heartbeat import ABANDONED_AFTER_US, HeartbeatWriter, parse_heartbeat

__all__ = ["ABANDONED_AFTER_US", "HeartbeatWriter", "parse_heartbeat"]
