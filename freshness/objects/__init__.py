"""Configured objects: which tables each is built from, and which cache items a row change concerns."""
