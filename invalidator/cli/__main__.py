"""``python -m invalidator.cli``: the same as ``invalidator``."""

from invalidator.cli import main

if __name__ == "__main__":
    main()
