"""What ``spark_jobs/prepare.py`` does with Spark, in the order in which a row passes.

    sources.py            find, identify and read the tables of the config
    examples.py           run the query, check its columns, split
    fit.py, encode.py     statistics and vocabularies of the train split; columns that the network sees
    layout.py             how many files and row groups a split gets; pure
    write_dataset.py      the global shuffle, the files, and the manifest's facts about them
    petastorm_schema.py   the same schema as Petastorm knows it
"""
