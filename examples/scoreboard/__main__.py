"""Runs each application with each cache and writes docs/performance.md: `make examples`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Final

from examples.scoreboard.page import write_page
from examples.scoreboard.run import Score, run_shop
from examples.scoreboard.shop import SHOPS
from integration.servers import Flavor, database_pair

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "performance.md"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.scoreboard", description=__doc__)
    parser.add_argument("--reads", type=int, default=200_000, help="rows that each run reads, at least")
    parser.add_argument("--seed", type=int, default=1, help="what the sessions do follows from it")
    parser.add_argument("--flavor", choices=["mariadb", "mysql"], action="append", help="both by default")
    parser.add_argument("--shop", choices=SHOPS, action="append", help="all by default")
    caches = sorted({cache for shop in SHOPS.values() for cache in shop.caches})
    parser.add_argument("--cache", choices=caches, action="append", help="all of the shop by default")
    parser.add_argument("--write", action="store_true", help="write the figures into docs/performance.md")
    options = parser.parse_args()
    if options.write and options.cache:
        parser.error("--write compares the caches, and needs all of them: leave --cache out")
    flavors: list[Flavor] = options.flavor or ["mariadb", "mysql"]
    are_right = True
    for name in options.shop or SHOPS:
        shop = SHOPS[name]
        scores: list[Score] = []
        for flavor in flavors:
            for cache in shop.caches if options.cache is None else options.cache:
                with database_pair(flavor) as pair, tempfile.TemporaryDirectory() as folder:
                    score = run_shop(shop, pair, cache, Path(folder), reads=options.reads, seed=options.seed)
                print(json.dumps(asdict(score)), flush=True)
                scores.append(score)
        if options.write:
            write_page(PAGE, shop, scores)
        are_right &= all(score.is_right for score in scores)
    if not are_right:
        sys.exit("a page showed what it must not: see the lines above")


if __name__ == "__main__":
    main()
