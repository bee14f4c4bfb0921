"""What a job needs of machines and clusters, one check a concern; ``spark_jobs/doctor.py`` puts them in order.

May import: conf, models, pipelines, spark_jobs/spark, spark_jobs/launch.
Not here: mending anything.

    survey.py     asks a machine what it has; standard library alone, runs here and inside Spark tasks
    needs.py      what a config asks for, in numbers; pure
    machine.py    checks of this machine
    packages.py   checks of what is installed here
    cluster.py    checks of Spark and of the machines that its tasks run on
"""
