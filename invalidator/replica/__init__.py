"""A source of transactions that follows a replica's log and leaves it for another server."""
