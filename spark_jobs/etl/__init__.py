"""What ``prepare`` does with Spark, in the order in which a row passes.

May import: conf, pipelines/data, spark_jobs/spark, the rooms inside.
Not here: training, scoring.

    sources/                 find, identify and read the tables, or folders of images and texts, of the config
    examples.py              run the query, check its columns, split
    append.py                when adding to a version: which rows are new
    expectations.py, drift.py   what the rows must be like, and how far they moved
    fitted.py                from the query to fitted examples:
      columns/                 splits, labels, values that are computed from a column
      fit.py, fit_numbers.py   statistics and vocabularies of the train split
      encoding/                columns that the network sees: numbers, arrays, images, tokens
    writing/                 the global shuffle, the files, and the manifest's facts about them
"""
