# Databricks notebook source
# MAGIC %md
# MAGIC # Train a network where the table is
# MAGIC
# MAGIC **Is this for you?** Databricks itself recommends serverless GPU compute for deep learning, and `TorchDistributor` or Ray on a
# MAGIC cluster of its own. They are the better choice for models beyond one GPU that need FSDP or DeepSpeed, and where you write the
# MAGIC training loop yourself. sparkring is the better choice for networks on large tables, images and texts that Spark prepares: the data
# MAGIC loader, exact epochs on any number of ranks, recovery, evaluation, scoring and retraining come with it, also without a GPU.
# MAGIC
# MAGIC Cluster: Databricks Runtime 16.4 LTS or 17.3 LTS, dedicated access mode, a fixed number of workers, no Photon.

# COMMAND ----------

# MAGIC %pip install --find-links /Volumes/main/default/sparkring/wheels 'sparkring[train]' torch==2.8.0

# COMMAND ----------

dbutils.widgets.text("workspace", "/Volumes/main/default/sparkring/flights")
dbutils.widgets.text("tables", "/Volumes/main/default/sparkring/nycflights13")

# COMMAND ----------

import sparkring

tables = dbutils.widgets.get("tables")
config = sparkring.load_config(
    "databricks/flights", workspace=dbutils.widgets.get("workspace"),
    prepare={"sources": {name: {"path": f"{tables}/{name}.csv"} for name in ("flights", "weather", "planes", "airports")}})

# COMMAND ----------

prepared = sparkring.prepare(config)
trained = sparkring.train(config)
display(spark.createDataFrame([{"metric": name, "held out": float(value)} for name, value in trained.validation.items()]))

# COMMAND ----------

sparkring.evaluate(config)
scores = sparkring.score(config)
display(spark.read.parquet(scores.url).limit(20))
