"""The bytes of the binary log: packets, event headers, table maps, compressed events, single values."""
