"""A small shop in FastAPI with asynchronous SQLAlchemy, whose rows are read by one of several caches: see
docs/performance.md.

``SHOP_CACHE`` says which: "freshness", "rows" (the same cache without the ORM), "aiocache", "none".
"""
