"""Pages of the shop, as JSON: the application that gunicorn serves."""

from __future__ import annotations

import os
from typing import Any

from flask import Flask, request

from examples.flask_shop import catalog
from examples.sqlalchemy_shop.models import show
from examples.sqlalchemy_shop.order import Refused, place_order

application = Flask(__name__)
application.config["SECRET_KEY"] = os.environ["SHOP_SECRET"]
rows = catalog.open_catalog(application)


@application.get("/products/<int:key>")
def product(key: int) -> dict[str, Any]:
    """A product and its category: two rows."""
    row, category = rows.read_page(key)
    return {"products": {key: show(row)}, "category": category}


@application.get("/basket")
def basket() -> dict[str, Any]:
    """Several products by their keys."""
    found = rows.read_products([int(key) for key in request.args["keys"].split(",")])
    return {"products": {key: show(row) for key, row in found.items()}}


@application.post("/products/<int:key>/order")
def order(key: int) -> dict[str, Any]:
    """Order a product, and read it again. ``then``: "roll back" the order, or "fail" after its commit."""
    then = request.args.get("then")
    with catalog.Writing() as session:
        try:
            version = place_order(session, key, is_refused=then == "roll back")
        except Refused:
            return {"products": {key: show(rows.read_product(key))}}
        rows.committed(session, key)
    if then == "fail":
        raise RuntimeError("the view fails after its commit")
    return {"products": {key: show(rows.read_product(key))}, "version": version}
