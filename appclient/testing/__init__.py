"""The cache with everything behind it in one process, for an application's own tests.

See docs/testing-your-application.md.

from appclient.testing import FakeSystem

system = FakeSystem("freshness.toml", "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT)")
"""

from appclient.testing.system import FakeSystem

__all__ = ["FakeSystem"]
