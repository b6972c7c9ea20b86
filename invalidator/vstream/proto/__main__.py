"""Make vitess_pb2.py and vitess_pb2.pyi of vitess.proto. For developers; needs grpcio-tools."""

from __future__ import annotations

import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
SOURCE = "invalidator/vstream/proto/vitess.proto"


def generate(folder: Path) -> int:
    """Write both files below ``folder``. The exit code of protoc."""
    from grpc_tools import protoc

    arguments = ["protoc", f"-I{CHECKOUT}", f"--python_out={folder}", f"--pyi_out={folder}"]
    code: int = protoc.main([*arguments, str(CHECKOUT / SOURCE)])
    return code


if __name__ == "__main__":
    sys.exit(generate(CHECKOUT))
