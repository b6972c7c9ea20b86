"""Cache nodes by technology: ``memory`` (reference and simulator), ``memcached``, ``redis``.

Each module is imported where it is used, so that an application installs only the client that it needs.
They implement `freshness.backend.CacheNode`, pass one contract suite and never import each other.
"""
