"""`make fresh`: how long README's two commands take for a newcomer, in a fresh clone of what is committed here.

The home folder, the folder of downloads and pip's cache are empty. Packages of the system that are there stay, and
are named. ``python3 integration/fresh.py [VERB ...]`` runs these verbs in place of ``demo`` and ``test``.
Standard library only. Exit code: that of the verb that failed, else 0.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from integration.provision import CHECKOUT, find_program

SERVERS: Final = ("mariadbd", "memcached", "redis-server", "java", "chromium", "etcd", "mvn")


def main(verbs: Sequence[str]) -> int:
    there = [name for name in SERVERS if find_program(name) is not None]
    lines = [
        f"{platform.platform()}, {os.cpu_count()} processors, Python {platform.python_version()}",
        f"there before: {', '.join(there) or 'none of the servers'}",
    ]
    code = 0
    with tempfile.TemporaryDirectory(prefix="fresh-") as folder:
        clone, home = Path(folder, "freshness"), Path(folder, "home")
        home.mkdir()
        subprocess.run(["git", "clone", "-q", str(CHECKOUT), str(clone)], check=True)
        environment = {name: text for name, text in os.environ.items() if name != "FRESHNESS_CACHE"}
        environment |= {"HOME": str(home), "PIP_CACHE_DIR": str(home / "pip"), "XDG_CACHE_HOME": str(home / "cache")}
        for verb in verbs or ("demo", "test"):
            began = time.monotonic()
            code = subprocess.run(["make", verb], cwd=clone, env=environment, check=False).returncode
            end = "" if code == 0 else f", exit code {code}"
            lines.append(f"make {verb}: {time.monotonic() - began:.0f} s{end}")
            if code:
                break
    print("\n".join(["", *lines]))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
