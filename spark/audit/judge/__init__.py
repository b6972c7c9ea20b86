"""The one judge of single items."""
