"""What a made-up shop has sold, by product: a query of Spark over the files of journals.

Brokers only tell which fragments there are. Spark reads them from the store itself, and from brokers what is not
stored yet.

  python -m examples.order_totals --broker localhost:8080 --file-root DIR/fragments
"""

from __future__ import annotations

import argparse
import sys

import spark_readers
from examples.local_session import local_session

COLUMNS = "order long, product string, amount long, cents long, _fragment string"


def main() -> None:
    arguments = argparse.ArgumentParser(
        prog="python -m examples.order_totals",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arguments.add_argument("--broker", default="localhost:8080", help="Any of them leads to all (localhost:8080).")
    arguments.add_argument("--selector", default="name:prefix=acme/orders/", help="Labels of the journals to read.")
    arguments.add_argument("--file-root", default="", help="Where file:/// stores of brokers are on this machine.")
    arguments.add_argument("--expect", type=int, help="Fail unless there are exactly so many orders.")
    given = arguments.parse_args()
    options = {"fileRoot": given.file_root} if given.file_root else {}
    with local_session("order totals") as spark:
        orders = spark_readers.read_journals(
            spark, broker=given.broker, selector=given.selector, framing="json", columns=COLUMNS, **options
        )
        # Those that were appended at least once may be there twice.
        once = orders.dropDuplicates(["order"]).cache()
        totals = once.groupBy("product").agg({"order": "count", "amount": "sum", "cents": "sum"})
        totals.selectExpr(
            "product", "`count(order)` as orders", "`sum(amount)` as pieces", "`sum(cents)` div 100 as revenue"
        ).orderBy("revenue", ascending=False).show(truncate=False)
        count, stored = once.count(), once.where("_fragment is not null").count()
    print(f"{count:,} orders, {stored:,} of them from files of the store, the rest from brokers.")
    if given.expect is not None and count != given.expect:
        sys.exit(f"There should have been {given.expect:,} orders.")


if __name__ == "__main__":
    main()
