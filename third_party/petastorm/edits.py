"""What the recipe changes in the published Petastorm 0.13.1, as data: (file, what it says, what it must say).

Each text must stand in its file, and is replaced wherever it stands there. Files are those of the unpacked wheel.
``legacy_parquet.py`` beside this file is added as ``petastorm/legacy_parquet.py``.
"""

Edit = tuple[str, str, str]

_FIRST_PARQUET = ("from pyarrow import parquet as pq", "from petastorm import legacy_parquet as pq")

PRODUCT: list[Edit] = [
    # What pyarrow 15 removed: its first ParquetDataset ...
    *((f"petastorm/{name}.py", *_FIRST_PARQUET) for name in (
        "reader", "arrow_reader_worker", "py_dict_reader_worker", "etl/dataset_metadata", "etl/rowgroup_indexing",
        "etl/petastorm_generate_metadata", "etl/metadata_util")),
    # ... and its first file systems.
    ("petastorm/fs_utils.py", "import pyarrow\n", ""),
    ("petastorm/fs_utils.py", "self._filesystem = pyarrow.localfs", "self._filesystem = fsspec.filesystem('file')"),
    ("petastorm/fs_utils.py", "lambda: pyarrow.localfs", "lambda: fsspec.filesystem('file')"),
    ("petastorm/utils.py", "import pyarrow\n", "import pyarrow.parquet\n"),
    ("petastorm/utils.py", "from pyarrow.filesystem import LocalFileSystem", "from fsspec.implementations.local import LocalFileSystem"),
    ("petastorm/spark/spark_dataset_converter.py", "from pyarrow import LocalFileSystem",
     "from fsspec.implementations.local import LocalFileSystem"),
    ("petastorm/hdfs/namenode.py", "import pyarrow\n", ""),
    ("petastorm/hdfs/namenode.py", "from pyarrow.hdfs import HadoopFileSystem\nfrom pyarrow.lib import ArrowIOError\n",
     "from fsspec.implementations.arrow import HadoopFileSystem\n"),
    ("petastorm/hdfs/namenode.py", "logger = logging.getLogger(__name__)\n",
     "logger = logging.getLogger(__name__)\n\nArrowIOError = OSError  # pyarrow's other name for it until 15\n"),
    ("petastorm/hdfs/namenode.py", "class HAHdfsClient(HadoopFileSystem):\n",
     "class HAHdfsClient(HadoopFileSystem):\n    cachable = False  # fsspec would return one object for equal arguments\n\n"),
    ("petastorm/hdfs/namenode.py", "            if not name.startswith('_'):\n",
     "            if not name.startswith('_') and hasattr(method, '__name__'):\n"),
    ("petastorm/hdfs/namenode.py", """        if LooseVersion(pyarrow.__version__) < LooseVersion('0.12.0'):
            hostname = url.hostname or 'default'
            driver = driver
        else:
            hostname = six.text_type(url.hostname or 'default')
            driver = six.text_type(driver)

        kwargs = dict(user=user)
        if LooseVersion(pyarrow.__version__) < LooseVersion('0.17.0'):
            # Support for libhdfs3 was removed in v0.17.0, we include it here for backwards
            # compatibility
            kwargs['driver'] = driver
        return pyarrow.hdfs.connect(hostname, url.port or 8020, **kwargs)
""", """        return HadoopFileSystem(url.hostname or 'default', url.port or 8020, user=user)
"""),
    # What NumPy 2 removed; the new names are in NumPy 1.23 too.
    ("petastorm/arrow_reader_worker.py", "np.unicode_", "np.str_"),
    ("petastorm/unischema.py", "                    np.unicode_: T.StringType(),\n", ""),
    ("petastorm/unischema.py", "np.unicode_", "np.str_"),
    ("petastorm/unischema.py", "np.string_", "np.bytes_"),
    ("petastorm/tf_utils.py", "    np.unicode_: tf.string,\n", ""),
    ("petastorm/tf_utils.py", "np.unicode_", "np.str_"),
    ("petastorm/tf_utils.py", "np.string_", "np.bytes_"),
    ("petastorm/predicates.py", "np.in1d(", "np.isin("),
    ("petastorm/weighted_sampling_reader.py", "dtype=np.float)", "dtype=np.float64)"),  # NumPy 1.24 removed this one
    # Datasets outlive the NumPy that they were written beside: their pickled schema may name a class as the other one does.
    ("petastorm/etl/legacy.py", "    def find_class(self, module, name):\n", """    def find_class(self, module, name):
        if module == 'numpy':
            name = {'unicode_': 'str_', 'string_': 'bytes_', 'bool': 'bool_'}.get(name, name)
"""),
    # pandas 3 has a class for text, where a missing value is NaN and Arrow's type is large_string; Petastorm looks for None and string.
    ("petastorm/arrow_reader_worker.py", "column.chunks[0].to_pandas()", "pq.to_pandas(column.chunks[0])"),
    *(("petastorm/arrow_reader_worker.py", f"= {table}.to_pandas()", f"= pq.to_pandas({table})") for table in (
        "column", "result", "predicates_table", "other_table", "table")),
    ("petastorm/arrow_reader_worker.py", "pa.types.is_string(column.type)",
     "pa.types.is_string(column.type) or pa.types.is_large_string(column.type)"),
    ("petastorm/py_dict_reader_worker.py",
     "piece.read(columns=column_names, partitions=self._dataset.partitions).to_pandas(\n            integer_object_nulls=True)",
     "pq.to_pandas(\n            piece.read(columns=column_names, partitions=self._dataset.partitions), integer_object_nulls=True)"),
    ("petastorm/etl/rowgroup_indexing.py", "piece.read(columns=list(column_names), partitions=partitions).to_pandas()",
     "pq.to_pandas(piece.read(columns=list(column_names), partitions=partitions))"),
    ("petastorm/unischema.py", "types.is_string(field_type)", "types.is_string(field_type) or types.is_large_string(field_type)"),
    # pandas 3.1 puts no None into a column of booleans. These rows are dropped a few lines later.
    ("petastorm/arrow_reader_worker.py", "        predicates_data_frame[erase_mask] = None\n\n", ""),
    ("petastorm/arrow_reader_worker.py", "            other_data_frame[erase_mask] = None\n", ""),
    # A race in each pool: all was done, for nothing had begun; then all items were handed out, so the end was told and every row was
    # lost. On a busy machine this happened in a third of all small reads. Asked in the other order, the two answers belong together.
    ("petastorm/workers_pool/thread_pool.py", """            if self.all_workers_done():
                # We also need to check if we are using a ventilator and if it is completed
                if not self._ventilator or self._ventilator.completed():
                    raise EmptyResultError()
""", """            if not self._ventilator or self._ventilator.completed():
                if self.all_workers_done():
                    raise EmptyResultError()
"""),
    ("petastorm/workers_pool/process_pool.py", """            if self._ventilated_items == self._ventilated_items_processed:
                # We also need to check if we are using a ventilator and if it is completed
                if not self._ventilator or self._ventilator.completed():
""", """            if not self._ventilator or self._ventilator.completed():
                if self._ventilated_items == self._ventilated_items_processed:
"""),
    ("petastorm/workers_pool/dummy_pool.py", "while self._ventilator_queue or (self._ventilator and not self._ventilator.completed()):",
     "while (self._ventilator and not self._ventilator.completed()) or self._ventilator_queue:"),
    # What Python 3.12 removed.
    ("petastorm/hdfs/namenode.py", "from distutils.version import LooseVersion\n", ""),
    ("petastorm/spark/spark_dataset_converter.py", "from distutils.version import LooseVersion\n",
     "from packaging.version import Version as LooseVersion\n"),
]

_LOCAL = "from fsspec.implementations.local import LocalFileSystem"
_ERROR = ("from pyarrow.lib import ArrowIOError\n", "ArrowIOError = OSError\n")

TESTS: list[Edit] = [
    # Petastorm's own tests, where they name what is gone; what they check stays the same.
    *((f"petastorm/tests/{name}.py", "np.unicode_", "np.str_") for name in (
        "test_codec_scalar", "test_common", "test_ngram", "test_ngram_end_to_end", "test_parquet_reader", "test_pytorch_dataloader",
        "test_pytorch_utils", "test_tf_dataset", "test_tf_utils", "test_transform")),
    *((f"petastorm/tests/{name}.py", "np.string_", "np.bytes_") for name in (
        "test_codec_scalar", "test_common", "test_end_to_end", "test_pytorch_utils", "test_unischema")),
    ("petastorm/tests/test_codec_compressed_image.py", "astype(np.float)", "astype(np.float64)"),
    ("petastorm/tests/test_codec_scalar.py", "numpy_dtype=np.bool,", "numpy_dtype=np.bool_,"),
    ("petastorm/tests/test_unischema.py", "import pyarrow.parquet as pq\n", "from petastorm import legacy_parquet as pq\n"),
    ("petastorm/tests/test_arrow_table_serializer.py", "pandas.util.testing", "pandas.testing"),
    ("petastorm/tests/test_spark_dataset_converter.py", "from distutils.version import LooseVersion\n",
     "from packaging.version import Version as LooseVersion\n"),
    ("petastorm/tests/test_dataset_metadata.py", "import pyarrow\n", f"{_LOCAL}\n"),
    ("petastorm/tests/test_dataset_metadata.py", "pyarrow.LocalFileSystem", "LocalFileSystem"),
    ("petastorm/tests/test_end_to_end.py", "import pyarrow.hdfs\n", f"{_LOCAL}\n"),
    ("petastorm/tests/test_end_to_end.py", "pyarrow.LocalFileSystem", "LocalFileSystem"),
    ("petastorm/tests/test_fs_utils.py", "from pyarrow.filesystem import LocalFileSystem\n", f"{_LOCAL}\n"),
    ("petastorm/tests/test_fs_utils.py", *_ERROR),
    ("petastorm/hdfs/tests/test_hdfs_namenode.py", *_ERROR),
    # pandas 3.1 combines no list with a column.
    ("petastorm/tests/test_end_to_end_predicates_impl.py", "result = [True] * len(values)", "result = True"),
]

REQUIREMENTS = [
    # (line of METADATA, what it must say; nothing: left out)
    ("Requires-Dist: pyarrow>=6.0.1", "Requires-Dist: pyarrow<27,>=14.0.1"),  # 14.0.1 mends CVE-2023-47248
    ("Requires-Dist: numpy>=1.13.3", "Requires-Dist: numpy<3,>=1.23"),
    ("Requires-Dist: setuptools<70", ""),  # for distutils, which nothing imports any more
]
