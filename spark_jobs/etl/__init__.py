"""What ``spark_jobs/prepare.py`` does with Spark, in the order in which a row passes.

    sources.py            find, identify and read the tables of the config
    folders.py, idx.py    the same for folders of images and texts
    examples.py           run the query, check its columns, split
    fitted.py             from the query to fitted examples, a table's, images or texts:
      derive.py             parts of moments, buckets, hashes: values that are computed from a column
      fit.py, encode.py     statistics and vocabularies of the train split; columns that the network sees
      labels.py             labels of several classes
      images.py             image files of one size and codec
      tokens.py, npy.py     texts cut into rows of tokens; arrays as Petastorm stores them
    describe.py           columns and tensors of the dataset; pure
    layout.py             how many files and row groups a split gets; pure
    write_dataset.py      the global shuffle, the files, and the manifest's facts about them
    petastorm_schema.py   the same schema as Petastorm knows it
"""
