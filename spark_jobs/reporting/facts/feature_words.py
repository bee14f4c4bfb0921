"""A fitted feature in words, for people: what ``datasets show`` and the report say of it. Pure."""

from __future__ import annotations

from sparkring.pipelines.data.dataset.preprocessing import BucketFeature, CategoricalFeature, HashFeature, NumericFeature

Feature = NumericFeature | CategoricalFeature | BucketFeature | HashFeature
"""What becomes a number or an id."""
SHOWN_VALUES = 3
"""Values of a vocabulary, and borders, that are named."""


def feature_words(feature: Feature, *, train_rows: int) -> str:
    """What was fitted for a feature, e.g. ``mean 4.2, standard deviation 1.5; null in 3.0% of rows, filled with the median 4``.

    Args:
        feature: The feature.
        train_rows: Rows that it was fitted on.
    """
    if isinstance(feature, NumericFeature):
        return "; ".join([_scaling(feature), *_filling(feature, train_rows)])
    if isinstance(feature, CategoricalFeature):
        shown = ", ".join(feature.vocabulary[:SHOWN_VALUES])
        return f"{feature.size:,} ids" + (f"; most frequent: {shown}" if shown else "")
    if isinstance(feature, BucketFeature):
        shown = ", ".join(f"{edge:.4g}" for edge in feature.edges[:SHOWN_VALUES])
        return f"{feature.size:,} ids by range" + (f"; first borders: {shown}" if shown else "")
    return f"{feature.size:,} ids by hash"


def _scaling(feature: NumericFeature) -> str:
    figures = f"mean {feature.mean:.4g}, standard deviation {feature.std:.4g}"
    match feature.scale:
        case "standard":
            return figures
        case "min_max":
            return f"{feature.centre:.4g} becomes 0 and {feature.centre + feature.spread:.4g} becomes 1 ({figures})"
        case "robust":
            return f"median {feature.centre:.4g}, quartiles {feature.spread:.4g} apart ({figures})"
        case "log1p":
            return f"ln(1 + x) ({figures})"
        case _:
            return f"as it is ({figures})"


def _filling(feature: NumericFeature, train_rows: int) -> list[str]:
    """Nothing where there was nothing to fill and nothing was said about it."""
    by_default = feature.fill == "mean" and feature.scale == "standard"
    if not feature.nulls and by_default and not feature.indicator:
        return []
    share = f"null in {feature.nulls / train_rows:.1%} of rows" if feature.nulls and train_rows else "never null"
    how = "" if by_default else f", filled with {'' if feature.fill == 'constant' else f'the {feature.fill} '}{feature.filled_with:.4g}"
    return [f"{share}{how}", *([f"{feature.indicator} says where"] if feature.indicator else [])]
