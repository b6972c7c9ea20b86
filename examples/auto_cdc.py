"""A table that a declarative pipeline of Spark 4.3 keeps by the archive: ``spark-pipelines run`` (docs/spark.md)."""

from typing import Any

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

from spark.stream.source import UpdateStreamSource

spark = SparkSession.active()
spark.dataSource.register(UpdateStreamSource)


@dp.temporary_view
def customer_changes() -> Any:
    changes = spark.readStream.format("updatestream").option("path", "/data/archive").load()
    rows = changes.where("table = 'customers' AND op IN ('insert', 'update', 'delete')").selectExpr(
        "ordinal",
        "row",
        "inline(array(struct(before AS image, true AS is_gone), struct(after AS image, false AS is_gone)))",
    )
    rows = rows.where("image IS NOT NULL").selectExpr(
        "from_json(image, 'id BIGINT, name STRING') AS image", "is_gone", "struct(ordinal, row, NOT is_gone) AS place"
    )
    return rows.select("image.*", "is_gone", "place")


dp.create_streaming_table("customers")
dp.create_auto_cdc_flow(
    target="customers",
    source="customer_changes",
    keys=["id"],
    sequence_by="place",
    apply_as_deletes="is_gone",
    except_column_list=["is_gone", "place"],
    stored_as_scd_type=1,
)
