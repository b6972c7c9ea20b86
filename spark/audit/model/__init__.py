"""The rows of a history, places in the order of the archive, findings and their kinds."""
