"""Views of the tests, for threads and for an event loop."""

from __future__ import annotations

from django.contrib import admin
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from integration.django.shop.models import Thing


@csrf_exempt
def thing(request: HttpRequest, key: int) -> JsonResponse:
    """GET: the thing. POST: insert one and commit, then raise if the form says so."""
    if request.method == "POST":
        change(key)
        if "fail" in request.POST:
            raise RuntimeError("the view fails after its commit")
    return JsonResponse({"v": Thing.objects.get(pk=key).v})


@transaction.atomic
def change(key: int) -> None:
    found = Thing.objects.select_for_update().get(pk=key)
    found.v += 1
    found.save()


@csrf_exempt
async def async_thing(request: HttpRequest, key: int) -> JsonResponse:
    if request.method == "POST":
        found = await Thing.objects.using("default").aget(pk=key)
        found.v += 1
        await found.asave()
        if "fail" in request.POST:
            raise RuntimeError("the view fails after its commit")
    return JsonResponse({"v": (await Thing.objects.aget(pk=key)).v})


urlpatterns = [path("admin/", admin.site.urls), path("things/<int:key>", thing), path("async/<int:key>", async_thing)]
