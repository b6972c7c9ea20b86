"""Applications on real servers with a replica that lags, each with several caches under the same load."""
