"""Cached reads of Django models: an application for INSTALLED_APPS. See docs/django.md.

Nothing else in `appclient` imports this package, and Django is imported by nothing but it.
"""

from freshness.errors import required_extra

with required_extra("django"):
    from appclient.django.installed import get_cache
    from appclient.django.session import wrote

__all__ = ["get_cache", "wrote"]
