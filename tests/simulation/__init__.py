"""The deterministic simulator: the production procedures in a world of their own (docs/testing.md).

Only transport, time and randomness are replaced. What runs is ``freshness`` and the invalidator's own loop,
batching, admission, progress and lease code. ``python -m tests.simulation`` runs it.
"""
