"""The merged update stream of all shards, which can be resumed at every message."""
