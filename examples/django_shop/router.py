"""Writes go to the primary, reads to the replica."""

from __future__ import annotations

from typing import Any


class ReplicaRouter:
    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "replica"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"

    def allow_relation(self, one: Any, other: Any, **hints: Any) -> bool:
        return True
