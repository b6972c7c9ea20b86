"""Cached reads of Django models: an application for INSTALLED_APPS. See docs/django.md.

Nothing else in `appclient` imports this package, and Django is imported by nothing but it.
"""

from freshness.errors import missing_package

try:
    from appclient.django.installed import get_cache
    from appclient.django.session import wrote
except ModuleNotFoundError as error:
    missing = missing_package(error, "django")
    if missing is None:
        raise
    raise ModuleNotFoundError(str(missing), name=error.name) from error

__all__ = ["get_cache", "wrote"]
