"""The table of `benchmarks.shop` as a model of Django."""

from __future__ import annotations

from django.db import models

from appclient.django.models import CachedModel


class Customer(CachedModel):
    id = models.BigIntegerField(primary_key=True)
    name = models.CharField(max_length=50)
    email = models.CharField(max_length=80)
    visits = models.IntegerField()
    city = models.CharField(max_length=40)

    plain = models.Manager()
    """Django's own."""

    class Meta:
        app_label = "benchmarks"
        db_table = "customers"
        managed = False
