"""A small shop in Django whose rows are read by one of several caches: see docs/performance.md.

``SHOP_CACHE`` says which: "freshness", "signals" (Django's cache framework, a key for each row), "cachalot", "none".
"""

import pymysql

pymysql.install_as_MySQLdb()
