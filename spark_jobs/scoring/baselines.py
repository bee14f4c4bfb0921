"""Baselines: predictions without a network, on the same rows. Their settings are fixed and never tuned on held-out rows."""

from __future__ import annotations

from pyspark.ml import Pipeline
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.feature import OneHotEncoder, VectorAssembler
from pyspark.ml.functions import vector_to_array
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.spark_jobs.etl.columns.expressions import named

REGULARISATION = 1e-4
"""L2 penalty of the mean loss: enough to make the optimum unique, since one-hot columns add up to 1."""
MAX_ITERATIONS, TOLERANCE = 100, 1e-5
"""Limits of L-BFGS; beyond them the loss changes in its sixth digit."""


def logistic_regression(train: DataFrame, test: DataFrame, preprocessing: Preprocessing, *, label: str) -> DataFrame:
    """Fit ``pyspark.ml``'s logistic regression on encoded train rows and predict encoded test rows.

    Numeric features are used as they are (standardised); each id of a categorical feature becomes a column.

    Args:
        train: Encoded rows with the label.
        test: Encoded rows with the same columns.
        preprocessing: Names the numeric and categorical columns.
        label: The label's column.
    Returns:
        ``probability`` (double, of label 1) and ``label`` (double) of each test row.
    """
    numeric = preprocessing.numeric_columns
    categorical = [feature.column for feature in preprocessing.with_ids]
    one_hot = [f"__one_hot_{place}" for place in range(len(categorical))]
    steps = [OneHotEncoder(inputCols=categorical, outputCols=one_hot, dropLast=False, handleInvalid="keep")] if categorical else []
    model = Pipeline(stages=[
        *steps, VectorAssembler(inputCols=[*numeric, *one_hot], outputCol="__features"),
        LogisticRegression(featuresCol="__features", labelCol=label, probabilityCol="__probability", rawPredictionCol="__raw",
                           predictionCol="__prediction", regParam=REGULARISATION, maxIter=MAX_ITERATIONS, tol=TOLERANCE)]).fit(train)
    return model.transform(test).select(vector_to_array(sf.col("__probability"))[1].alias("probability"),
                                        named(label).cast("double").alias("label"))
