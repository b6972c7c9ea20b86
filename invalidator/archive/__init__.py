"""The update stream as Parquet files: written, read, recorded and replayed."""
