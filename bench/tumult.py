"""Tumult Analytics' part of query_error.py, run by an interpreter that has `tmlt.analytics` and not Sfumato.

It reads one JSON object from standard input and writes one to standard output. The noise of a query is what
Tumult's session says that it would add; the averages are really released.
"""

import importlib.metadata
import json
import math
import sys

from pyspark.sql import SparkSession
from tmlt.analytics import (
    AddOneRow,
    AddRowsWithID,
    KeySet,
    MaxRowsPerID,
    PureDPBudget,
    QueryBuilder,
    Session,
)

_QUANTILE = 0.05  # 95% intervals


def half_width(session, question, epsilon):
    """± at 95% of a count, sum or mean of one row; for a mean, the noise on the sum alone, in its favour."""
    query = QueryBuilder("t").enforce(MaxRowsPerID(question["rows"]))
    low, high = question["low"], question["high"]
    asked = {
        "count": lambda: query.count(),
        "distinct": lambda: query.count_distinct(["person"]),
        "sum": lambda: query.sum("x", low, high),
        "mean": lambda: query.average("x", low, high),
    }[question["kind"]]()
    noises = session._noise_info(asked, PureDPBudget(epsilon / question["parts"]))
    return float(noises[0]["noise_parameter"]) * math.log(1 / _QUANTILE)


def averages(spark, request):
    """Each group's average, released once; copies of the groups stand for so many releases."""
    data = spark.read.parquet(request["path"])
    session = Session.from_dataframe(PureDPBudget(request["epsilon"]), "t", data, protected_change=AddOneRow())
    keys = KeySet.from_dict({"city": request["cities"]})
    low, high = request["bounds"]
    asked = QueryBuilder("t").groupby(keys).average("age", low, high, name="mean")
    found = session.evaluate(asked, PureDPBudget(request["epsilon"])).collect()
    return {row["city"]: float(row["mean"]) for row in found}


def main():
    request = json.load(sys.stdin)
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    rows = spark.createDataFrame([("a", 1.0)], "person string, x double")
    session = Session.from_dataframe(
        PureDPBudget(request["epsilon"]), "t", rows, protected_change=AddRowsWithID("person")
    )
    widths = [half_width(session, item, request["epsilon"]) for item in request["questions"]]
    version = importlib.metadata.version("tmlt.analytics")
    print(json.dumps({"version": version, "widths": widths, "averages": averages(spark, request)}))


if __name__ == "__main__":
    main()
