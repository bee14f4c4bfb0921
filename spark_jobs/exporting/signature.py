"""What an exported file takes and answers, and which preprocessing is inside of it. Pure; stored in the file itself.

    number    float64 (batch,)                             a column, or a part of a moment; NaN if it is missing
    text      string  (batch,)                             a category as Spark's CAST(x AS STRING) writes it
    id        int64   (batch,)                             an id that is made outside: the hash of a text
    pixels    uint8   (batch, height, width[, channels])   a decoded image of the right size, colours as RGB
    tokens    int64   (batch, length)                      a row of token ids
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from sparkring.conf.schema import Task
from sparkring.errors import ExportRefused
from sparkring.models.inputs import TOKENS
from sparkring.pipelines.data.dataset.preprocessing import MomentPart, Preprocessing, TokensFeature
from sparkring.pipelines.data.dataset.row_schema import IMAGE_CODECS, DataField
from sparkring.pipelines.data.stores.documents import StrictModel
from sparkring.spark_jobs.scoring.columns import NATS, PREDICTED, PREDICTION, PROBABILITIES, PROBABILITY, RIGHT

if TYPE_CHECKING:  # it loads torch, which a prediction does without
    from sparkring.pipelines.training.job.model_files import ModelCard

METADATA = "sparkring"
"""Key of the signature in the file's metadata."""
LOGITS = "logits"
"""Output of the logits of tokens."""
Kind = Literal["number", "text", "id", "pixels", "tokens"]


class Input(StrictModel):
    """One input of the file."""

    name: str
    kind: Kind
    meaning: str
    """In words, for the model card."""
    missing: str | None = None
    """Of a text: the text to give in place of a null. It is in no vocabulary."""
    field: DataField | None = None
    """Of images and tokens: how the dataset stores them."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row; empty for a column. A row of tokens may be shorter."""
        return tuple(size or 0 for size in self.field.shape) if self.field else ()


class Signature(StrictModel):
    """Everything that a user of the file needs beside it."""

    format: Literal[1] = 1
    name: str
    task: Task
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    inside: tuple[str, ...]
    """The preprocessing that the file does."""
    beside: tuple[str, ...]
    """The preprocessing that whoever runs the file does."""
    dataset_version: int
    content_id: str
    weights_sha256: str
    code_version: str


def signature_of(card: ModelCard, fields: Sequence[DataField]) -> Signature:
    """The signature of the file that a model becomes.

    Args:
        card: The model's card.
        fields: The columns of the dataset version that it was trained on.
    Raises:
        ExportRefused: a column is used in two ways, has the name of an output, or holds arrays in place of images.
    """
    fitted, outputs, stored = card.preprocessing, outputs_of(card.task), {field.name: field for field in fields}
    if card.model.kind == "tabular":
        inputs, inside, beside = _table_inputs(fitted), _inside(fitted), _beside(fitted)
    elif card.model.kind == "image":
        assert fitted.image is not None
        inputs, inside = (_pixels(stored[fitted.image.column]),), ("the scaling of pixels",)
        beside = (f"reading image files, and cropping and scaling them to {fitted.image.height} x {fitted.image.width}",)
    else:
        assert fitted.tokens is not None
        if fitted.tokens.mask:
            raise ExportRefused(f"the model {card.name} is for masked tokens, whose masks depend on row ids, which an ONNX file does not "
                                "take; score a split of a dataset with `sparkring score`, or export a model for next_token.")
        inputs, inside, beside = (_tokens(fitted.tokens, stored[TOKENS]),), (), (_token_work(fitted.tokens),)
    taken = next((each.name for each in inputs if each.name in outputs), None)
    if taken is not None:
        raise ExportRefused(f"the feature {taken} of {card.name} has the name of an output of the file ({', '.join(outputs)}); give the "
                            "column another name in prepare.query (AS), then prepare and train again.")
    return Signature(name=card.name, task=card.task, inputs=inputs, outputs=outputs, inside=inside, beside=beside,
                     dataset_version=card.dataset_version, content_id=card.content_id, weights_sha256=card.weights_sha256,
                     code_version=card.code_version)


def outputs_of(task: Task) -> tuple[str, ...]:
    """Names of the file's outputs: the columns that ``sparkring score`` adds, and the logits of tokens."""
    match task:
        case "binary":
            return (PROBABILITY,)
        case "multiclass":
            return PREDICTION, PROBABILITY, PROBABILITIES
        case "regression":
            return (PREDICTION,)
        case "next_token" | "masked_tokens":
            return LOGITS, NATS, PREDICTED, RIGHT


def _table_inputs(fitted: Preprocessing) -> tuple[Input, ...]:
    """One input for each column that the features are made of, in the order in which they are first used."""
    inputs: dict[str, Input] = {}
    for made in _each_feature(fitted):
        before = inputs.setdefault(made.name, made)
        if before != made:
            raise ExportRefused(f"two features take {made.name}, one as {before.meaning} ({before.kind}) and one as {made.meaning} "
                                f"({made.kind}), but an input of an ONNX file is one of them; yield the column twice in prepare.query, "
                                "under two names, then prepare and train again.")
    return tuple(inputs.values())


def _each_feature(fitted: Preprocessing) -> Iterator[Input]:
    for number in fitted.numeric:
        yield Input(name=number.column, kind="number", meaning=_part(number.moment) if number.moment else "a number")
    for category in fitted.categorical:
        yield Input(name=category.column, kind="text", missing=missing_text(category.vocabulary),
                    meaning=(_part(category.moment) if category.moment else "a category") + f", {category.size - 1:,} known")
    for bucket in fitted.buckets:
        yield Input(name=bucket.of, kind="number", meaning="a number")
    for hashed in fitted.hashed:
        yield Input(name=hashed.column, kind="id", meaning=f"the id of {hashed.of} by its hash: {hashed.ids:,} ids, seed {hashed.seed}")


def missing_text(vocabulary: tuple[str, ...]) -> str:
    """A text that stands for a null: the empty one, unless that is a value of its own."""
    text = ""
    while text in vocabulary:
        text += "?"
    return text


def _part(moment: MomentPart) -> str:
    """``the hour of at in UTC``"""
    waves = {"sin": "the sine of ", "cos": "the cosine of ", None: ""}
    return f"{waves[moment.wave]}the {moment.part.replace('_', ' ')} of {moment.of} in {moment.time_zone}"


def _inside(fitted: Preprocessing) -> tuple[str, ...]:
    counted = (("filling and scaling", fitted.numeric, "number"), ("ids", fitted.categorical, "text"), ("ranges", fitted.buckets, "number"))
    return tuple(f"the {what} of {len(features)} {noun}{'' if len(features) == 1 else 's'}" for what, features, noun in counted if features)


def _beside(fitted: Preprocessing) -> tuple[str, ...]:
    moments = dict.fromkeys(feature.moment.of for feature in (*fitted.numeric, *fitted.categorical) if feature.moment)
    hashed = dict.fromkeys(feature.of for feature in fitted.hashed)
    return ("the query that yields these columns", *([f"the parts of the moments {', '.join(moments)}"] if moments else []),
            *([f"the hashes of {', '.join(hashed)}"] if hashed else []))


def _pixels(field: DataField) -> Input:
    if field.codec not in IMAGE_CODECS:
        raise ExportRefused(f"column {field.name} of the dataset holds arrays ({field.codec}), but the file takes images that were stored "
                            f"as {' or '.join(IMAGE_CODECS)}; prepare the images with `sparkring prepare`.")
    colour = ", as RGB" if len(field.shape) > 2 else ""
    return Input(name=field.name, kind="pixels", field=field, meaning=f"a decoded image, values from 0 to 255{colour}")


def _tokens(tokens: TokensFeature, field: DataField) -> Input:
    return Input(name=TOKENS, kind="tokens", field=field,
                 meaning=f"ids below {tokens.vocabulary:,}; {tokens.end_id} ends a text, {tokens.pad_id} fills a row")


def _token_work(tokens: TokensFeature) -> str:
    by = f"by the tokenizer with SHA-256 {tokens.tokenizer_sha256}" if tokens.tokenizer_sha256 else "one a byte of UTF-8"
    return f"cutting texts into tokens, {by}"
