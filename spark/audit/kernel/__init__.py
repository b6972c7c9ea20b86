"""The replay of a piece of history as arrays: what is right is proved and counted by comparisons of whole columns.

What is suspicious goes to `spark.audit.replay`, which alone gives a verdict."""
