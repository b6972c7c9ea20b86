"""Managers as packages have them: of an abstract model, by a query set, with a part of the rows."""

from __future__ import annotations

from typing import Any

from django.db import models


class TagQuerySet(models.QuerySet):
    def spoken(self) -> Any:
        return self.exclude(name="")


class LiveManager(models.Manager):
    def get_queryset(self) -> Any:
        return super().get_queryset().filter(live=True)


class TagBase(models.Model):
    name = models.CharField(max_length=50)
    live = models.BooleanField(default=True)

    objects = models.Manager.from_queryset(TagQuerySet)()
    alive = LiveManager()

    class Meta:
        abstract = True


class Tag(TagBase):
    class Meta(TagBase.Meta):
        app_label = "package"


class OtherTag(TagBase):
    class Meta(TagBase.Meta):
        app_label = "package"


class Link(models.Model):
    tag = models.ForeignKey(Tag, models.CASCADE)

    class Meta:
        app_label = "package"
