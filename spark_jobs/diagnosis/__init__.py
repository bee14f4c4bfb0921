"""Checks of the machines and the cluster that a job needs; ``spark_jobs/doctor.py`` puts them in order.

May import: conf, models, pipelines, spark_jobs/spark, spark_jobs/launch, spark_jobs/etl.
Not here: repairing anything.

    survey.py     the facts of a machine; standard library alone, runs here and inside Spark tasks
    needs.py      the needs of a config, in numbers; pure
    cell.py       the versions here, against those that are supported
    machine.py    checks of this machine
    storage.py    check of the places where datasets and runs are committed
    data.py       checks of the sources and of the query
    packages.py   checks of the packages that are installed here
    cluster.py    checks of Spark and of the machines that its tasks run on
"""
