"""``freshness.toml``: a file for each section, with its settings and their checks; ``config`` is the whole."""
