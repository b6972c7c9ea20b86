"""Jobs on Apache Spark, each ``freshness-spark NAME`` or ``spark-submit spark/NAME/__main__.py`` (docs/spark.md).

Imports ``freshness`` alone. A ``__main__`` parses options, calls the job beside it, and returns the exit code. The
code that runs on executors is plain Python over plain values. Never ``import spark`` bare: a SparkSession parameter
is called ``session``.
"""
