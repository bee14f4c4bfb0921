"""What ``prepare`` does with Spark, from the sources to the written files.

May import: conf, models, pipelines/data, spark_jobs/spark, the rooms inside.
Not here: training, scoring.

    sources/                 find, identify and read the tables, or folders of images and texts, of the config
    examples.py, names.py    analyse the query, check its columns and their names, split
    append.py, changes.py    for an append: which rows are new, and which known ones have changed
    expectations.py, drift.py   check the rows, and how far they have drifted
    fitted.py                from the query to fitted examples:
      columns/                 row ids, splits, labels, derived values
      fit.py, fit_numbers.py   statistics and vocabularies of the train split
      encoding/                the network's input columns: numbers, arrays, images, tokens
    writing/                 the global shuffle, the files, and their description for the manifest
"""
