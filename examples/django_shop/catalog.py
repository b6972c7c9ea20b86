"""How the shop reads a product, by each of the caches; the views are the same for all."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from django.conf import settings

from examples.django_shop.models import Category, Product

if settings.CACHE == "signals":
    # The low-level cache of Django's documentation: a row under its key, deleted by signals after the commit.
    from django.core.cache import cache
    from django.db import transaction
    from django.db.models.signals import post_delete, post_save
    from django.dispatch import receiver

    def _read(model: Any, keys: Iterable[int]) -> dict[int, Any]:
        wanted = {f"{model.__name__}:{key}": key for key in keys}
        found = cache.get_many(wanted)
        missing = [key for name, key in wanted.items() if name not in found]
        read: dict[int, Any] = model.objects.in_bulk(missing) if missing else {}
        cache.set_many({f"{model.__name__}:{key}": each for key, each in read.items()})
        read.update((wanted[name], each) for name, each in found.items())
        return read

    @receiver([post_save, post_delete], sender=Product)
    @receiver([post_save, post_delete], sender=Category)
    def forget(sender: Any, instance: Any, **_: Any) -> None:
        transaction.on_commit(partial(cache.delete, f"{sender.__name__}:{instance.pk}"))

    def get_product(key: int) -> Any:
        return _read(Product, [key])[key]

    def get_products(keys: Iterable[int]) -> dict[int, Any]:
        return _read(Product, keys)

    def get_category(product: Product) -> Any:
        return _read(Category, [product.category_id])[product.category_id]

else:

    def get_product(key: int) -> Any:
        return Product.objects.get(pk=key)

    def get_products(keys: Iterable[int]) -> dict[int, Any]:
        found: dict[int, Any] = Product.objects.in_bulk(list(keys))
        return found

    def get_category(product: Product) -> Any:
        return product.category


if settings.CACHE == "cachalot":
    # It invalidates the tables of the database that was written; name the replica's, too
    from cachalot.api import invalidate
    from cachalot.signals import post_invalidation
    from django.dispatch import receiver

    @receiver(post_invalidation)
    def forget_replica(sender: str, db_alias: str, **_: Any) -> None:
        if db_alias == "default":
            invalidate(sender, db_alias="replica")
