"""`CachedModel`: the manager, and foreign keys that are followed through it. Imported by the application's models."""

from __future__ import annotations

from django.db import models

from appclient.django.queryset import CachedManager, CachedQuerySet


class CachedModel(models.Model):
    """A model whose rows come from the cache by primary key: by ``objects`` and by foreign keys to it."""

    objects = CachedManager()

    class Meta:
        abstract = True
        base_manager_name = "objects"


__all__ = ["CachedManager", "CachedModel", "CachedQuerySet"]
