"""Differences between the versions of Spark that are supported: one module each, with its reason.

May import: nothing of ours.
Not here: anything that all supported versions do alike.

    supported.py       the versions, the Java, Scala and Parquet of each, and what is refused
    arrow_frames.py    an Arrow table as a data frame, and back
    groups.py          a function of each group of rows, over Arrow
    casts.py           a cast that gives null where a value does not fit; a type from its name
    text.py            whether text is well-formed UTF-8
    variants.py        the type VARIANT
    profiles.py        a stage with a resource profile of its own
    threads.py         a thread whose jobs belong to the session of the thread that starts it
    query_logs.py      loggers that repeat an error before it is raised

Each asks PySpark whether it has the newer way, rather than for its version: a platform may have brought it back.
"""
