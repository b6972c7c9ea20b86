"""The deterministic simulator: the production procedures in a world of their own (docs/testing.md).

Only transport, time and randomness are replaced. ``freshness`` runs unchanged, and so do the invalidator's loop,
batching, admission, progress and lease code. ``python -m tests.simulation`` runs it.
"""
