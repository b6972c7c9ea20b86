"""The HTTP service of a running invalidator."""
