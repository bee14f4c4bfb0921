"""Facts about the data from a manifest: rows and label shares of each split, storage and encoding of each column. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from sparkring.pipelines.data.dataset.manifest import Manifest, Split
from sparkring.pipelines.data.dataset.preprocessing import BucketFeature, CategoricalFeature, HashFeature, NumericFeature
from sparkring.pipelines.data.dataset.row_schema import DataField, Standardisation

Feature = NumericFeature | CategoricalFeature | BucketFeature | HashFeature
"""A feature that becomes a number or an id."""
SHOWN_VALUES = 3
"""Values of a vocabulary, or borders of buckets, that are shown."""


@dataclass(frozen=True, kw_only=True)
class SplitFacts:
    """One split's files, added up."""

    name: str
    rows: int
    label_share: float | None
    """Share of rows whose label is 1; None without rows."""
    files: int
    row_groups: int
    smallest_group: int
    """Rows of the smallest row group."""
    largest_group: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class ColumnFacts:
    """One column: its storage and the network's encoding of it."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    codec: str
    nullable: bool
    role: str
    """``row id``, ``label``, ``number``, ``category`` or ``not used``."""
    encoding: str
    """In words: vocabulary or mean."""


@dataclass(frozen=True, kw_only=True)
class SourceFacts:
    """One source table."""

    name: str
    path: str
    rows: int | None
    sha256: str | None


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """Everything that the report says about a dataset version."""

    version: int
    parent: int | None
    content_id: str
    recipe_id: str
    created_at: str
    code_version: str
    label: str
    split_column: str | None
    seed: int | None
    splits: tuple[SplitFacts, ...]
    columns: tuple[ColumnFacts, ...]
    sources: tuple[SourceFacts, ...]

    @property
    def rows(self) -> int:
        """Rows of all splits."""
        return sum(split.rows for split in self.splits)


def data_facts(manifest: Manifest) -> DataFacts:
    """Compute the facts of a dataset version."""
    seed, split = manifest.recipe.get("seed"), manifest.recipe.get("split")
    return DataFacts(
        version=manifest.version, parent=manifest.parent, content_id=manifest.content_id, recipe_id=manifest.recipe_id,
        created_at=manifest.created_at, code_version=manifest.code_version, label=manifest.label,
        split_column=split.get("column") if isinstance(split, dict) else None, seed=seed if isinstance(seed, int) else None,
        splits=tuple(_split(name, split) for name, split in manifest.splits.items()),
        columns=tuple(_column(field, manifest) for field in manifest.fields),
        sources=tuple(_source(name, facts) for name, facts in sorted(manifest.source.items())))


def feature_words(feature: Feature, *, train_rows: int) -> str:
    """The fitted figures of a feature in words, e.g. ``mean 4.2, standard deviation 1.5; null in 3.0% of rows, filled with the median 4``.

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


def label_words(label: Standardisation) -> str:
    """The fitted figures of a label that is a number."""
    return f"mean {label.mean:.6g}, standard deviation {label.std:.4g}"


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
    """Words about filled nulls; none if there were no nulls and the config says nothing about them."""
    by_default = feature.fill == "mean" and feature.scale == "standard"
    if not feature.nulls and by_default and not feature.indicator:
        return []
    share = f"null in {feature.nulls / train_rows:.1%} of rows" if feature.nulls and train_rows else "never null"
    how = "" if by_default else f", filled with {'' if feature.fill == 'constant' else f'the {feature.fill} '}{feature.filled_with:.4g}"
    return [f"{share}{how}", *([f"{feature.indicator} marks nulls"] if feature.indicator else [])]


def _split(name: str, split: Split) -> SplitFacts:
    groups = [rows for file in split.files for rows in file.row_groups]
    return SplitFacts(
        name=name, rows=split.rows, files=len(split.files), row_groups=len(groups),
        label_share=split.positives / split.rows if split.rows and split.positives is not None else None,
        smallest_group=min(groups, default=0), largest_group=max(groups, default=0),
        bytes=sum(file.bytes for file in split.files))


def _column(field: DataField, manifest: Manifest) -> ColumnFacts:
    numeric = manifest.preprocessing.numeric
    features: dict[str, Feature] = {feature.column: feature for feature in (*numeric, *manifest.preprocessing.with_ids)}
    feature = features.get(field.name)
    flagged = next((each for each in numeric if each.indicator == field.name), None)
    return ColumnFacts(
        name=field.name, dtype=field.dtype, shape=field.shape, codec=field.codec, nullable=field.nullable,
        role=_role(field.name, feature or flagged, manifest),
        encoding=_encoding(field.name, feature, flagged, manifest))


def _role(name: str, feature: Feature | None, manifest: Manifest) -> str:
    if name == manifest.row_id:
        return "row id"
    if name == manifest.label:
        return "label"
    if name == manifest.weight:
        return "weight"
    if isinstance(feature, NumericFeature):
        return "number"
    return "not used" if feature is None else "category"


def _encoding(name: str, feature: Feature | None, flagged: NumericFeature | None, manifest: Manifest) -> str:
    label = manifest.preprocessing.label
    if label is not None and name == manifest.label:
        return label_words(label)
    if flagged:
        return f"1 where {flagged.source} is null"
    if feature is None:
        return ""
    made_of = f"of {feature.source}: " if feature.source != feature.column else ""
    return made_of + feature_words(feature, train_rows=manifest.preprocessing.train_rows)


def _source(name: str, facts: object) -> SourceFacts:
    known = facts if isinstance(facts, dict) else {}
    rows, sha256 = known.get("rows"), known.get("sha256")
    return SourceFacts(name=name, path=str(known.get("path", "")), rows=rows if isinstance(rows, int) else None,
                       sha256=sha256 if isinstance(sha256, str) else None)
