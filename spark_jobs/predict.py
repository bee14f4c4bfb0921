"""``sparkring.predict``: a trained network's predictions as columns of any frame, of a table, a file or a stream.

    scored = sparkring.predict(orders, config)
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from sparkring.conf.loading import ConfigLike, config_of_job
from sparkring.spark_jobs.exporting.on_spark import model_of
from sparkring.spark_jobs.run.place import with_existing_run
from sparkring.spark_jobs.scoring.predict import predict_with


def predict(frame: DataFrame, config: ConfigLike, **keys: Any) -> DataFrame:
    """Add predictions to rows as the query of ``config.prepare`` yields them; neither an id nor a label is needed.

    Args:
        frame: The features' columns and any others; it may be a stream (``readStream``).
        config: What ``load_config`` takes; names the run whose model predicts (see ``run/place.py``), and the keys of ``score`` but its
            ``split``.
        keys: Keys of ``score`` or of the whole config that replace those of ``config``, e.g. ``top_k=3``.
    Returns:
        All columns of ``frame``, then those of the model's task (``scoring/columns.py``). Nothing is computed yet.
    Raises:
        ConfigError: the run has no trained model; or, for ``engine="onnx"``, no file exported from it.
        SourceError: a feature is missing or has a type that prepare refuses for it, or a column has the name of one that is added.
        EnvironmentProblem: over Spark Connect, the session's time zone would change a feature.
    """
    config = with_existing_run(config_of_job(predict, config, keys, section="score"))
    model = model_of(config.run_url, config.score.engine)
    return predict_with(frame, model, top_k=config.score.top_k, batch_rows=config.score.batch_rows)
