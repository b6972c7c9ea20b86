"""The input of an audit: files, the order of the archive, and rows of changes and actions with their pieces."""
