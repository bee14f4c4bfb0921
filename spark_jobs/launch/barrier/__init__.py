"""The default launcher: one Spark stage whose tasks each start and watch a rank.

May import: conf, pipelines/parallel, spark_jobs/spark, spark_jobs/launch/gpus, spark_jobs/launch/rank, spark_jobs/launch/meeting.
Not here: upstream's launcher (launch/horovod).
"""
