"""An order, in one transaction of a session to the primary."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from sqlalchemy.orm import Session

from examples.sqlalchemy_shop.models import Order, Product

WITHDRAWN: Final = Decimal(-1)
"""The price of a product in a transaction that is rolled back: nobody is to see it."""


class Refused(Exception):
    """The order is taken back."""


def place_order(session: Session, key: int, *, is_refused: bool) -> int:
    """Commit, and return the version that the product has now. Raises `Refused` after a rollback."""
    product = session.get_one(Product, key, with_for_update=True)
    session.add(Order(product_id=key, quantity=1))
    session.flush()
    version = product.version + 1
    product.stock, product.version = product.stock - 1, version
    product.changed = datetime.now(UTC).replace(tzinfo=None)
    if is_refused:
        product.price = WITHDRAWN
        session.flush()
        session.rollback()
        raise Refused
    session.commit()
    return version
