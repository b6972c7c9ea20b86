"""The update stream as a data source of Spark: over HTTP, or of an archive."""
