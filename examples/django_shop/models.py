"""Products, their categories, and orders. ``version`` counts the commits of a product, for the checks."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models

if settings.CACHE == "freshness":
    from appclient.django.models import CachedModel

    Base: Any = CachedModel
else:
    Base = models.Model


class Category(Base):
    name = models.CharField(max_length=60)

    class Meta:
        app_label = "django_shop"


class Product(Base):
    category = models.ForeignKey(Category, models.PROTECT)
    name = models.CharField(max_length=80)
    price = models.DecimalField(max_digits=10, decimal_places=2)
    stock = models.IntegerField(default=1000)
    is_sold = models.BooleanField(default=True)
    changed = models.DateTimeField(auto_now=True)
    version = models.IntegerField(default=0)

    class Meta:
        app_label = "django_shop"


class Order(models.Model):
    product = models.ForeignKey(Product, models.PROTECT)
    quantity = models.IntegerField()

    class Meta:
        app_label = "django_shop"
