"""Cache nodes by technology: ``memory`` (reference and simulator), ``memcached``, ``redis``.

Each implements `freshness.algorithm.node.CacheNode` and passes one contract suite. None imports another.

memcached and pymemcache. A `MemcachedNode` owns its socket, and ``freshness.nodes.meta`` encodes and decodes its
flows: pymemcache's commands answer a default if the server did not (F11), know no meta commands, and wait for
each answer. pymemcache's public client does the work off that path: it authenticates a new connection, and asks it
for version and settings. The naive caches of the demo and the baselines of the benchmarks are its clients too. One
thing stays off it: ``metadump`` streams the dump of a node's keys to a file, where pymemcache would hold the whole
dump in memory.

``restoration`` is the thread that puts missing stripes back on the nodes of a lineage.
"""
