"""The GPUs of ranks, driver side: dealt out by us on a local master, else asked of Spark for the ring's stage alone.

May import: conf, spark_jobs/launch, spark_jobs/spark.
Not here: using a GPU (launch/rank/gpu.py).
"""
