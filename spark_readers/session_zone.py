"""The time zone of a session, where a Python data source can learn of it: in its tasks.

Spark gives tasks what was set in the session. What was not, which is then the zone of the driver's machine, it tells to
no source: ``read_journals`` asks the session itself, and whoever reads in another way has UTC, or says which.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark import TaskContext

from spark_readers.read_options import ReadOptions

ZONE = "spark.sql.session.timeZone"


def zoned(options: ReadOptions) -> ReadOptions:
    """With a time zone, for a task."""
    if options.time_zone:
        return options
    task = TaskContext.get()
    return replace(options, time_zone=(task.getLocalProperty(ZONE) if task else None) or "UTC")
