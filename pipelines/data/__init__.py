"""Dataset versions, the exact order of their rows, and the loader. Imports neither pyspark nor petastorm nor horovod."""
