"""From a row event to whole rows, and to their digests."""
