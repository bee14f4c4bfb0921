"""From a trained model to one ONNX file: preprocessing and network as a graph, its check, its model card, its use.

May import: conf, models, pipelines/data, pipelines/training, spark_jobs/etl/columns, spark_jobs/reporting/facts, spark_jobs/scoring.
Not here: the command (spark_jobs/export.py); predictions of torch on Spark (spark_jobs/scoring).
"""
