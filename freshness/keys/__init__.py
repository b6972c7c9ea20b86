"""How a row is called: its key in the cache, its key range in a sharded keyspace, and the node that holds it."""
