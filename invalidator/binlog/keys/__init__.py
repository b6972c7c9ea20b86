"""From a row event to the keys of cache items."""
