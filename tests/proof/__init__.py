"""The proof of the cache's rule, with any number of everything (docs/proof.md): ``python -m tests.proof``."""
