"""``freshness.toml``: ``settings`` has each setting with its meaning, ``reader`` reads and checks the file."""
