"""The database that a miss reads: the servers of each shard, and which of them is asked."""
