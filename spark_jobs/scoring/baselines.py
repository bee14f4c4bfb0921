"""Baselines: predictions without a network, on the same rows. Their settings are fixed and never tuned on held-out rows."""

from __future__ import annotations

from pyspark.ml import Pipeline, Transformer
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.feature import OneHotEncoder, VectorAssembler
from pyspark.ml.functions import vector_to_array
from pyspark.ml.regression import LinearRegression
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.pipelines.data.dataset.row_schema import Standardisation
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.scoring.columns import PREDICTION, PROBABILITY

REGULARISATION = 1e-4
"""L2 penalty of the mean loss: enough to make the optimum unique, since one-hot columns add up to 1."""
MAX_ITERATIONS, TOLERANCE = 100, 1e-5
"""Limits of L-BFGS; beyond them the loss changes in its sixth digit."""
_FEATURES, _LABEL, _PREDICTION = "__features", "__label", "__prediction"


def logistic_regression(train: DataFrame, test: DataFrame, preprocessing: Preprocessing, *, label: str) -> DataFrame:
    """Fit ``pyspark.ml``'s logistic regression on encoded train rows and predict encoded test rows.

    Args:
        train: Encoded rows with the label.
        test: Encoded rows with the same columns.
        preprocessing: Names the numeric and categorical columns.
        label: The label's column.
    Returns:
        ``probability`` (double, of label 1) and ``label`` (double) of each test row.
    """
    model = _fitted(train, preprocessing, LogisticRegression(
        featuresCol=_FEATURES, labelCol=label, probabilityCol="__probability", rawPredictionCol="__raw", predictionCol=_PREDICTION,
        regParam=REGULARISATION, maxIter=MAX_ITERATIONS, tol=TOLERANCE))
    return model.transform(test).select(vector_to_array(sf.col("__probability"))[1].alias(PROBABILITY),
                                        named(label).cast("double").alias("label"))


def ridge_regression(train: DataFrame, test: DataFrame, preprocessing: Preprocessing, *, label: str, fitted: Standardisation) -> DataFrame:
    """Fit ``pyspark.ml``'s linear regression with an L2 penalty on encoded train rows and predict encoded test rows.

    Args:
        train: Encoded rows with the label.
        test: Encoded rows with the same columns.
        preprocessing: Names the numeric and categorical columns.
        label: The label's column, in its own units.
        fitted: The mean and deviation by which labels are standardised for the fit.
    Returns:
        ``prediction`` (double, in the label's own units) and the label of each test row.
    """
    standardised = train.withColumn(_LABEL, (named(label) - fitted.mean) / fitted.std)
    model = _fitted(standardised, preprocessing, LinearRegression(
        featuresCol=_FEATURES, labelCol=_LABEL, predictionCol=_PREDICTION, regParam=REGULARISATION, elasticNetParam=0.0,
        maxIter=MAX_ITERATIONS, tol=TOLERANCE))
    return model.transform(test).select((sf.col(_PREDICTION) * fitted.std + fitted.mean).alias(PREDICTION), named(label))


def _fitted(train: DataFrame, preprocessing: Preprocessing, model: LogisticRegression | LinearRegression) -> Transformer:
    """Fit a linear model on the encoded features: numbers as they are (standardised), and a column for each id of the others."""
    numeric = preprocessing.numeric_columns
    categorical = [feature.column for feature in preprocessing.with_ids]
    one_hot = [f"__one_hot_{place}" for place in range(len(categorical))]
    steps = [OneHotEncoder(inputCols=categorical, outputCols=one_hot, dropLast=False, handleInvalid="keep")] if categorical else []
    assembler = VectorAssembler(inputCols=[*numeric, *one_hot], outputCol=_FEATURES)
    return Pipeline(stages=[*steps, assembler, model]).fit(train)
