"""Pages of the shop, as JSON: the application that uvicorn serves."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, FastAPI

from examples.fastapi_shop import catalog
from examples.fastapi_shop.catalog import Catalog
from examples.sqlalchemy_shop.models import show
from examples.sqlalchemy_shop.order import Refused, place_order

app = FastAPI(lifespan=catalog.lifespan)
application = catalog.around(app)

Rows = Annotated[Catalog, Depends(catalog.open_catalog)]


@app.get("/products/{key}")
async def product(key: int, rows: Rows) -> dict[str, Any]:
    """A product and its category: two rows."""
    row, category = await rows.read_page(key)
    return {"products": {key: show(row)}, "category": category}


@app.get("/basket")
async def basket(keys: str, rows: Rows) -> dict[str, Any]:
    """Several products by their keys."""
    found = await rows.read_products([int(key) for key in keys.split(",")])
    return {"products": {key: show(row) for key, row in found.items()}}


@app.post("/products/{key}/order")
async def order(key: int, rows: Rows, then: str = "") -> dict[str, Any]:
    """Order a product, and read it again. ``then``: "roll back" the order, or "fail" after its commit."""
    async with catalog.Writing() as session:
        try:
            version = await session.run_sync(place_order, key, is_refused=then == "roll back")
        except Refused:
            return {"products": {key: show(await rows.read_product(key))}}
        await rows.committed(session, key)
    if then == "fail":
        raise RuntimeError("the endpoint fails after its commit")
    return {"products": {key: show(await rows.read_product(key))}, "version": version}
