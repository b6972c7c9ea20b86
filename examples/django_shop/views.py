"""Pages of the shop, as JSON."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import F
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from examples.django_shop import catalog
from examples.django_shop.models import Order, Product

WITHDRAWN = -1
"""The price of a product in a transaction that is rolled back: nobody is to see it."""


def product(request: HttpRequest, key: int) -> JsonResponse:
    """A product and its category: two rows."""
    found = catalog.get_product(key)
    return JsonResponse({"products": {key: _show(found)}, "category": catalog.get_category(found).name})


def basket(request: HttpRequest) -> JsonResponse:
    """Several products by their keys."""
    found = catalog.get_products([int(key) for key in request.GET["keys"].split(",")])
    return JsonResponse({"products": {key: _show(each) for key, each in found.items()}})


@csrf_exempt
def order(request: HttpRequest, key: int) -> JsonResponse:
    """Order a product, and read it again. ``then``: "roll back" the order, or "fail" after its commit."""
    then = request.GET.get("then")
    try:
        version = _place_order(key, is_refused=then == "roll back")
    except Refused:
        return JsonResponse({"products": {key: _show(catalog.get_product(key))}})
    if then == "fail":
        raise RuntimeError("the view fails after its commit")
    return JsonResponse({"products": {key: _show(catalog.get_product(key))}, "version": version})


class Refused(Exception):
    """The order is taken back."""


@transaction.atomic
def _place_order(key: int, *, is_refused: bool) -> int:
    chosen = Product.objects.using("default").select_for_update().get(pk=key)
    with transaction.atomic():
        Order.objects.create(product=chosen, quantity=1)
    chosen.stock, chosen.version = F("stock") - 1, chosen.version + 1
    if is_refused:
        chosen.price = WITHDRAWN
    chosen.save()
    if is_refused:
        raise Refused
    return int(chosen.version)


def _show(product: Product) -> dict[str, Any]:
    return {"version": product.version, "price": str(product.price), "stock": product.stock}
