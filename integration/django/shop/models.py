"""Models of the tests: one with a field of each type, one with a text as its key, and a plain one."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal
from typing import Any

from django.db import models

from appclient.django.models import CachedManager, CachedModel


class Celsius(float):
    """A value of the application's own."""


class CelsiusField(models.FloatField):
    def from_db_value(self, value: float | None, expression: Any, connection: Any) -> Celsius | None:
        return None if value is None else Celsius(value)


class Owner(CachedModel):
    name = models.CharField(max_length=50)

    class Meta:
        app_label = "shop"


class Thing(CachedModel):
    owner = models.ForeignKey(Owner, models.CASCADE, null=True)
    v = models.IntegerField(default=0)
    flag = models.BooleanField(default=True)
    maybe = models.BooleanField(null=True)
    small = models.PositiveSmallIntegerField(default=7)
    big = models.BigIntegerField(default=-(2**63))
    real = models.FloatField(default=0.1)
    celsius = CelsiusField(default=21.5)
    price = models.DecimalField(max_digits=12, decimal_places=3, default=Decimal("12.340"))
    name = models.CharField(max_length=50, default="Grüße \N{EARTH GLOBE EUROPE-AFRICA}")
    text = models.TextField(default="")
    slug = models.SlugField(default="a-b")
    email = models.EmailField(default="a@example.org")
    day = models.DateField(default=datetime.date(2026, 2, 28))
    moment = models.DateTimeField(default=datetime.datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=datetime.UTC))
    clock = models.TimeField(default=datetime.time(23, 59, 59, 999999))
    midnight = models.TimeField(default=datetime.time())
    lasts = models.DurationField(default=datetime.timedelta(days=-1, microseconds=5))
    document = models.JSONField(default=dict, null=True)
    serial = models.UUIDField(default=uuid.UUID("12345678-1234-5678-1234-567812345678"))
    blob = models.BinaryField(default=b"\x00\xff")
    address = models.GenericIPAddressField(default="2001:db8::1")
    upload = models.FileField(default="a/b.txt")
    double_v = models.GeneratedField(
        expression=models.F("v") * 2, output_field=models.IntegerField(), db_persist=True
    )

    class Meta:
        app_label = "shop"


class Doubling(models.Manager):
    def get_queryset(self) -> Any:
        return super().get_queryset().annotate(doubled=models.F("v") + models.F("v")).only("code")


class Code(CachedModel):
    """Its rows, and foreign keys to it, are read by another query than the whole table."""

    code = models.CharField(max_length=20, primary_key=True)
    v = models.IntegerField(default=0)

    objects = CachedManager()
    doubling = Doubling()

    class Meta:
        app_label = "shop"
        base_manager_name = "doubling"


class Note(models.Model):
    """Not cached, and refers to what is."""

    thing = models.ForeignKey(Thing, models.CASCADE)
    text = models.CharField(max_length=50)

    class Meta:
        app_label = "shop"
