"""Test suites of others, run with the adapters: Django's own and that of SQLAlchemy's ORM. `make foreign`."""
