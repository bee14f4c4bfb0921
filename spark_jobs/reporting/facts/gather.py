"""Read each part of a run, and its dataset, and turn it into facts, or say why it is missing.

This and place.py are the only modules of the report that read files. A missing or damaged part never hides the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sparkring.conf.schema import TrainConfig
from sparkring.errors import SparkringError
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.events.writer import read_events
from sparkring.pipelines.training.job.model_files import CARD, ModelCard, load_card
from sparkring.spark_jobs.reporting.facts.data import DataFacts, data_facts
from sparkring.spark_jobs.reporting.facts.explained import Explained, explained_facts
from sparkring.spark_jobs.reporting.facts.place import Place
from sparkring.spark_jobs.reporting.facts.quality import BinaryQuality, MeanQuality, RegressionQuality, mean_quality, quality_facts
from sparkring.spark_jobs.reporting.facts.run import RunFacts
from sparkring.spark_jobs.reporting.facts.run_reader import read_run
from sparkring.spark_jobs.run.listing import read_document_of
from sparkring.spark_jobs.scoring.latest import Scores, latest_scores

DATASET, TRAINING, MODEL, EVALUATION, SCORES = "dataset", "training run", "trained model", "evaluation", "scores"

MADE_BY = {DATASET: "sparkring prepare", TRAINING: "sparkring train", MODEL: "sparkring train", EVALUATION: "sparkring evaluate",
           SCORES: "sparkring score"}
"""The command that makes each part, in the order of making."""

NOT_MADE = "not made yet"

Facts = TypeVar("Facts")


@dataclass(frozen=True)
class Absent:
    """A part that is missing or cannot be read."""

    what: str
    """E.g. ``evaluation``."""
    why: str
    """The reason in one sentence."""
    command: str
    """The command that makes it, e.g. ``sparkring train``."""


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """The parts of a report; ``absent`` explains the parts that are None."""

    data: DataFacts | None
    run: RunFacts | None = None
    learned: TrainConfig | None = None
    """The settings of training that the run was begun with; the config may be another run's."""
    card: ModelCard | None = None
    quality: BinaryQuality | RegressionQuality | None = None
    """The quality of a binary model, or of a regression."""
    mean_quality: MeanQuality | None = None
    """The quality of a model of classes or tokens."""
    explained: Explained | None = None
    """Its slices and its features' importance; None if the evaluation has none."""
    scores: Scores | None = None
    absent: tuple[Absent, ...]
    """In the order of making."""


class _NotThere(Exception):
    """A part that no job has made yet."""


def gather(place: Place) -> Workspace:
    """Read every part of the run of ``place``, if there is one, and its dataset."""
    absent: list[Absent] = []
    if place.run is None:
        absent += [Absent(what, NOT_MADE, command) for what, command in MADE_BY.items() if what != DATASET]
        return Workspace(data=_part(DATASET, absent, lambda: _data(place, place.dataset_version)), absent=_in_order(absent))
    quality, explained = _part(EVALUATION, absent, lambda: _evaluation(place)) or (None, None)
    run = _part(TRAINING, absent, lambda: _run(place))
    version, fold = (run.dataset_version, run.fold) if run else (place.dataset_version, None)
    return Workspace(
        data=_part(DATASET, absent, lambda: _data(place, version, fold)), run=run, learned=_learned(place),
        card=_part(MODEL, absent, lambda: _card(place)), quality=None if isinstance(quality, MeanQuality) else quality,
        mean_quality=quality if isinstance(quality, MeanQuality) else None, explained=explained,
        scores=_part(SCORES, absent, lambda: _scores(place)),
        absent=_in_order(absent))


def _in_order(absent: list[Absent]) -> tuple[Absent, ...]:
    return tuple(sorted(absent, key=lambda part: list(MADE_BY).index(part.what)))


def _part(what: str, absent: list[Absent], read: Callable[[], Facts]) -> Facts | None:
    try:
        return read()
    except _NotThere:
        why = NOT_MADE
    except SparkringError as error:
        why = str(error)
    except (ValueError, KeyError, TypeError, OSError) as error:
        why = f"cannot be read ({type(error).__name__}: {error})"
    absent.append(Absent(what, why, MADE_BY[what]))
    return None


def _run(place: Place) -> RunFacts:
    facts = read_run(read_events(place.run_url))
    if facts is None:
        raise _NotThere
    return facts


def _learned(place: Place) -> TrainConfig | None:
    """None if the run's document cannot be read: its events and results can be shown without it."""
    assert place.run is not None
    try:
        return place.train.changed(**read_document_of(open_store(place.runs), place.run).identity["train"])
    except (SparkringError, OSError, ValueError, KeyError, TypeError):
        return None


def _data(place: Place, version: int | None, fold: int | None = None) -> DataFacts:
    dataset = Dataset(place.dataset)
    if not dataset.versions():
        raise _NotThere
    return data_facts(dataset.manifest(version, fold=fold))


def _card(place: Place) -> ModelCard:
    folder, _, name = CARD.rpartition("/")
    if name not in open_store(place.run_url).names(folder):
        raise _NotThere
    return load_card(place.run_url)


def _evaluation(place: Place) -> tuple[BinaryQuality | RegressionQuality | MeanQuality, Explained | None]:
    try:
        document = json.loads(open_store(place.run_url).read("evaluation.json"))
    except FileNotFoundError:
        raise _NotThere from None
    if isinstance(document, dict) and document.get("task", "binary") not in ("binary", "regression"):
        return mean_quality(document), explained_facts(document)
    return quality_facts(document), explained_facts(document)


def _scores(place: Place) -> Scores:
    scores = latest_scores(open_store(place.scores))
    if scores is None:
        raise _NotThere
    return scores
