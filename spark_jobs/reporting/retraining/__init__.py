"""The report of a workspace's retrainings: one page of facts and charts, from their documents alone.

May import: conf, pipelines/data, spark_jobs/registry, spark_jobs/reporting, spark_jobs/reporting/charts, spark_jobs/reporting/facts,
spark_jobs/retraining.
Not here: retraining itself (spark_jobs/retrain.py); the report of one run (spark_jobs/reporting/page.py).

    retrain/begun, retrain/ended, models/aliases, manifests   gather.py   the only module here that reads files
      -> Retrainings                                          facts.py    pure
      -> inline SVG                                           charts.py   pure
      -> retrain/report.html                                  page.py
"""
