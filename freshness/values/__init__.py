"""Bytes of values: the codec of cache entries and digests, and the JSON spelling of column values."""
