"""Products, their categories, and orders. ``version`` counts the commits of a product, for the checks."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import BigInteger, ForeignKey, Numeric, String
from sqlalchemy.dialects.mysql import DATETIME
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

Row = dict[str, Any]
"""A product as pages show it, and the number of its category."""

OF_A_PAGE: Final = ("version", "price", "stock")


class Base(DeclarativeBase):
    pass


class Category(Base):
    __tablename__ = "categories"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    name: Mapped[str] = mapped_column(String(60))


class Product(Base):
    __tablename__ = "products"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    category_id: Mapped[int] = mapped_column(ForeignKey("categories.id"))
    name: Mapped[str] = mapped_column(String(80))
    price: Mapped[Decimal] = mapped_column(Numeric(10, 2))
    stock: Mapped[int] = mapped_column(default=1000)
    is_sold: Mapped[bool] = mapped_column(default=True)
    changed: Mapped[datetime] = mapped_column(DATETIME(fsp=6))
    version: Mapped[int] = mapped_column(default=0)


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    product_id: Mapped[int] = mapped_column(ForeignKey("products.id"))
    quantity: Mapped[int]


def row_of(product: Product) -> Row:
    return {
        "version": product.version,
        "price": str(product.price),
        "stock": product.stock,
        "category_id": product.category_id,
    }


def show(row: Row) -> Row:
    return {name: row[name] for name in OF_A_PAGE}
