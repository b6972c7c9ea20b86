"""A small shop in Flask with SQLAlchemy, whose rows are read by one of several caches: see docs/performance.md.

``SHOP_CACHE`` says which: "freshness", "rows" (the same cache without the ORM), "dogpile", "none".
"""
