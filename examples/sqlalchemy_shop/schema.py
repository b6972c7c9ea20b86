"""Makes the tables: ``python -m examples.sqlalchemy_shop.schema``."""

from __future__ import annotations

from sqlalchemy import create_engine

from examples.sqlalchemy_shop.models import Base
from examples.sqlalchemy_shop.place import PLAIN, PRIMARY_PORT, url_of

if __name__ == "__main__":
    Base.metadata.create_all(create_engine(url_of("pymysql", PRIMARY_PORT), connect_args=PLAIN))
