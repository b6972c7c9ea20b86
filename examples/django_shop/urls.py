"""Addresses of the shop."""

from __future__ import annotations

from django.urls import path

from examples.django_shop import views

urlpatterns = [
    path("products/<int:key>", views.product),
    path("products/<int:key>/order", views.order),
    path("basket", views.basket),
]
