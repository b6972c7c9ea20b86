"""The prober: compares sampled entries with the primary, at some times after a change and all the time beside it."""
