"""The cache with everything behind it in one process, for an application's own tests.

See docs/testing-your-application.md.

from appclient.testing import FakeSystem

system = FakeSystem("freshness.toml", "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT)")
"""

from typing import TYPE_CHECKING, Any

from freshness.errors import required_extra

if TYPE_CHECKING:
    from appclient.testing.system import FakeSystem
else:

    def __getattr__(name: str) -> Any:
        """Not before it is used: every run of pytest imports this package for its fixture."""
        if name != "FakeSystem":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with required_extra("appclient"):
            from appclient.testing.system import FakeSystem

            return FakeSystem


__all__ = ["FakeSystem"]
