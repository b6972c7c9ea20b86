"""The command line of the jobs: argparse, and no option is empty."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def parse_arguments(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None
) -> argparse.Namespace:
    """An empty option ends the program with 2: an unset variable of the shell would mean the default, or the current
    folder."""
    parsed = parser.parse_args(arguments)
    for name, value in vars(parsed).items():
        if isinstance(value, str) and not value.strip():
            parser.error(f"{name.replace('_', '-')} is empty: is a variable of the shell not set?")
    return parsed
