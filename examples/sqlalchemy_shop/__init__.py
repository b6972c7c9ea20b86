"""Tables, servers and orders of a small shop in SQLAlchemy, for examples/fastapi_shop and examples/flask_shop."""
