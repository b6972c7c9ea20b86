"""A source of transactions that follows the VStream of a vtgate."""
