"""``launcher: horovod.spark``: upstream's launcher behind ``run_ring``'s contract, hardened.

May import: conf, pipelines/parallel, spark_jobs/spark, spark_jobs/launch/gpus, spark_jobs/launch/rank, spark_jobs/launch/meeting.
Not here: our own launcher (launch/barrier).
"""
