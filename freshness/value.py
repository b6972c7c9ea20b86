"""`value`: a frozen dataclass that costs no more to make than an ordinary object.

``dataclass(frozen=True)`` stores every field through ``object.__setattr__``: four times the price, and a hit
makes eight of them, a batch of invalidations thousands. Here the type checker forbids assignment (PEP 681), and
the running program does not pay for it. For what is made by the thousand only; elsewhere ``dataclass(frozen=True)``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

Class = TypeVar("Class")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[Class]) -> type[Class]:
    """Make ``cls`` a dataclass with slots, equality and a hash. Nothing may be assigned after ``__init__``."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
