"""The invalidator: reads the update streams of the databases and invalidates what they change in the cache.

It must never skip an event silently (I8). Started by its command line (``invalidator.cli``); imports
``freshness`` and nothing of the application library.
"""
