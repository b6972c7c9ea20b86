"""The model of the application with Django, which imports this file by its name."""

from __future__ import annotations

from django.db import models

from appclient.django.models import CachedModel


class Customer(CachedModel):
    id = models.BigIntegerField(primary_key=True)
    name = models.CharField(max_length=50)
    v = models.BigIntegerField()

    class Meta:
        app_label = "chaos"
        db_table = "customers"
