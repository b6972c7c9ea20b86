"""An application as packages have them: it knows nothing of the cache."""
