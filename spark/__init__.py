"""Jobs on Apache Spark, each ``python -m spark.NAME`` or ``spark-submit spark/NAME/__main__.py`` (docs/spark.md).

Imports ``freshness`` alone. What runs on executors is plain Python over plain values; the modules with a ``main``
are thin. Never ``import spark`` bare: a SparkSession parameter is called ``session``.
"""
