"""One model that is edited in the admin."""

from __future__ import annotations

from django.contrib import admin

from integration.django.shop.models import Code

admin.site.register(Code)
