"""Cache nodes by technology: ``memory`` (reference and simulator), ``memcached``, ``redis``.

Each implements `freshness.algorithm.node.CacheNode` and passes one contract suite. None imports another.
"""
