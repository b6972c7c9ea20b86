"""The replay of a piece of history as arrays: what is right is proved and counted by comparisons of whole columns.

Suspicious actions go to `spark.audit.judge.replay`, which alone gives a verdict."""
