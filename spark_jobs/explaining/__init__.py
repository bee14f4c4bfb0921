"""What a model's mean figures hide: the groups of rows on which it is worse, and the features that it leans on.

May import: conf, models, pipelines/data, pipelines/training.
Not here: metrics of whole splits (spark_jobs/scoring), drawing (spark_jobs/reporting).

    files of a split -> sample.py -> network.py: each row's loss -> slices.py, importance.py -> documents.py, in evaluation.json
"""
