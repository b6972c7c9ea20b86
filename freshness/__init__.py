"""The vocabulary and the algorithm that invalidator, appclient and spark share.

Nothing in this package does I/O, except the cache clients in ``freshness.nodes.open``.
"""

__version__ = "0.1.0"
