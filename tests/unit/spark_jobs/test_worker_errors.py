"""An error of ours that ends a Python worker's task is ours again in the driver, in whatever form Spark passes its text on."""

from __future__ import annotations

import pytest
from pyspark.errors import PythonException

from sparkring.errors import DatasetError, StorageError
from sparkring.spark_jobs.spark.errors import error_of_worker, reason

SIMPLE = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "predict_split.py", line 117, in _answer_tasks
    rows = file.read(group.number)
sparkring.errors.DatasetError: row group 0 of a.parquet cannot be read: no such file; check it.
"""
CHAINED = """
Traceback (most recent call last):
  File "retry.py", line 60, in ask
    return read()
FileNotFoundError: a.parquet

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "predict_split.py", line 117, in _answer_tasks
    rows = file.read(group.number)
sparkring.errors.StorageError: s3://b/a.parquet: 503; try again.
"""
PY4J = f"""An error occurred while calling o69.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 5.0 failed 1 times, most recent failure: Lost task 0.0:
org.apache.spark.api.python.PythonException: {SIMPLE.strip()}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:572)
"""


@pytest.mark.parametrize(("text", "kind", "said"), [
    pytest.param(SIMPLE, DatasetError, "row group 0 of a.parquet cannot be read: no such file; check it.", id="simplified"),
    pytest.param(CHAINED, StorageError, "s3://b/a.parquet: 503; try again.", id="with its cause"),
    pytest.param(PY4J, DatasetError, "row group 0 of a.parquet cannot be read: no such file; check it.", id="over Py4J, from Spark 3.5")])
def test_the_error_of_a_worker_is_the_last_of_ours(text: str, kind: type[Exception], said: str) -> None:
    for error in (PythonException(text), RuntimeError(text)):  # Py4J's own class needs a JVM
        told = error_of_worker(error)
        assert (type(told), str(told), reason(error)) == (kind, said, said.rstrip("."))


def test_another_error_of_a_worker_is_told_by_its_last_line() -> None:
    other = PythonException(SIMPLE.replace("sparkring.errors.DatasetError", "KeyError"))
    assert error_of_worker(other) is None
    assert reason(other) == "row group 0 of a.parquet cannot be read: no such file; check it"
