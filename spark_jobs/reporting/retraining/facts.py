"""What a report says about the retrainings of a workspace. Pure: documents in, plain data and words out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sparkring.pipelines.data.dataset.manifest import RollingSplit
from sparkring.spark_jobs.registry.documents import AliasChange, ModelVersion
from sparkring.spark_jobs.reporting.facts.headline import Tile
from sparkring.spark_jobs.reporting.facts.quality import MetricColumn
from sparkring.spark_jobs.reporting.facts.words import DASH, count, duration, several
from sparkring.spark_jobs.retraining.history import Begun, Ended

CHIEF = (MetricColumn("auc", "ROC AUC", lower_is_better=False), MetricColumn("r2", "R2", lower_is_better=False),
         MetricColumn("bits_per_byte", "bits per byte", lower_is_better=True),
         MetricColumn("accuracy", "accuracy", lower_is_better=False), MetricColumn("loss", "loss", lower_is_better=True))
"""The best-known metric of each task; the first that a model has is shown."""
SMALL_DRIFT, LARGE_DRIFT = 0.1, 0.25
"""Stability indices that are usually called a small and a large shift."""


@dataclass(frozen=True, kw_only=True)
class Retraining:
    """One retraining that is over."""

    ended: Ended
    triggers: tuple[str, ...]
    """The triggers that held; none if that document is gone."""
    rolling: RollingSplit | None
    """The borders of its dataset version; None if its split does not roll, or the version is gone."""

    @property
    def at(self) -> datetime:
        """Its place on a time axis: the newest row of its dataset version, or the end of the retraining if that is not known."""
        return self.rolling.newest if self.rolling else datetime.fromisoformat(self.ended.at)

    @property
    def seconds(self) -> float:
        """From the decision to retrain to the outcome, with the time that it lay interrupted."""
        return (datetime.fromisoformat(self.ended.at) - datetime.fromisoformat(self.ended.began_at)).total_seconds()

    @property
    def promoted(self) -> bool:
        """Whether the candidate became the champion."""
        return self.ended.outcome == "promoted"

    @property
    def why(self) -> str:
        """The triggers, and the decision without its figures, which the page has in columns."""
        return " ".join(f"{part[0].upper()}{part[1:]}." for part in ("; ".join(self.triggers), self.decision) if part)

    @property
    def decision(self) -> str:
        """The reason of the outcome, without figures."""
        return self.ended.reason.partition(": mean loss")[0]

    @property
    def worst(self) -> tuple[tuple[str, float], ...]:
        """The features that have drifted more than a little, or else the one that has drifted most."""
        listed = sorted(self.ended.drift.items(), key=lambda one: -one[1])
        return tuple([one for one in listed if one[1] > SMALL_DRIFT] or listed[:1])


@dataclass(frozen=True, kw_only=True)
class Retrainings:
    """Everything that the page says."""

    chief: MetricColumn
    """The metric that is drawn."""
    over: tuple[Retraining, ...]
    """Oldest first."""
    unfinished: Begun | None
    """One that was begun and has not ended."""
    champion: ModelVersion | None
    """The champion now; None if there is none, or its document cannot be read."""
    changes: tuple[AliasChange, ...]
    """All changes of the aliases, oldest first."""
    gaps: tuple[str, ...]
    """Sentences about documents that cannot be read."""

    @property
    def by_newest_row(self) -> bool:
        """Whether retrainings stand at the newest row of their dataset version, not at the time of their end."""
        return bool(self.over) and all(each.rolling for each in self.over)

    @property
    def compared(self) -> tuple[Retraining, ...]:
        """Those with a champion and a candidate on the same rows."""
        return tuple(each for each in self.over if each.ended.gain is not None)

    @property
    def with_drift(self) -> tuple[Retraining, ...]:
        """Those before which drift was measured."""
        return tuple(each for each in self.over if each.ended.drift)

    def before(self, each: Retraining) -> float | None:
        """The champion's chief metric on the test rows of that time."""
        return each.ended.champion_metrics.get(self.chief.metric)

    def after(self, each: Retraining) -> float | None:
        """The candidate's, on the same rows."""
        return each.ended.candidate_metrics.get(self.chief.metric)

    def text(self, value: float | None) -> str:
        """A value of the chief metric."""
        return DASH if value is None else self.chief.text(value)


def retrainings(ended: Sequence[Ended], begun: Sequence[Begun], *, rolling: Mapping[int, RollingSplit], champion: ModelVersion | None,
                changes: Sequence[AliasChange], gaps: Sequence[str] = ()) -> Retrainings:
    """Put documents together.

    Args:
        ended: Retrainings that are over.
        begun: Those that were begun.
        rolling: The borders of dataset versions whose split rolls, by version.
        champion: The champion now.
        changes: All changes of the aliases.
        gaps: What cannot be read.
    """
    triggers = {each.number: each.reasons for each in begun}
    over = sorted(ended, key=lambda each: each.number)
    open_ones = [each for each in begun if each.number not in {one.number for one in over}]
    metrics = over[-1].candidate_metrics if over else {}
    return Retrainings(
        chief=next((column for column in CHIEF if column.metric in metrics), CHIEF[-1]),
        over=tuple(Retraining(ended=each, triggers=triggers.get(each.number, ()), rolling=rolling.get(each.dataset_version))
                   for each in over),
        unfinished=max(open_ones, key=lambda each: each.number, default=None), champion=champion, changes=tuple(changes), gaps=tuple(gaps))


def headline(facts: Retrainings) -> str:
    """Two or three sentences: how many retrainings, who is champion, what became of the last one."""
    return " ".join(_sentences(facts))


def tiles(facts: Retrainings) -> tuple[Tile, ...]:
    """The most important figures."""
    return tuple(_tiles(facts))


def _sentences(facts: Retrainings) -> Iterator[str]:
    if not facts.over:
        yield "No retraining has ended here yet."
    else:
        promoted = sum(each.promoted for each in facts.over)
        yield f"{several(len(facts.over), 'retraining')}, of which {count(promoted)} made a new champion."
    if facts.champion:
        change = next((each for each in reversed(facts.changes) if each.champion == facts.champion.version
                       and each.act in ("promoted", "rolled back")), None)
        since = f", {change.act} on {day(change.at)}" if change else ""
        yield (f"Model version {facts.champion.version} is the champion{since}; it was trained on dataset version "
               f"{facts.champion.dataset_version}.")
    if facts.over:
        last = facts.over[-1]
        verdict = "was promoted" if last.promoted else "was not promoted"
        yield f"The last candidate, model version {last.ended.candidate}, {verdict}: {last.decision}."


def _tiles(facts: Retrainings) -> Iterator[Tile]:
    if facts.champion:
        yield Tile("champion", f"version {facts.champion.version}", f"run {facts.champion.run}")
    if not facts.over:
        return
    last = facts.over[-1]
    kept, after = facts.before(last), facts.after(last)
    shown = after if last.promoted or kept is None else kept
    if shown is not None:
        yield Tile(f"last {facts.chief.title}", facts.chief.text(shown),
                   f"of the model kept, on {count(last.ended.held_out_rows)} rows")
    if last.ended.gain is not None and last.ended.gain_low is not None and last.ended.gain_high is not None:
        sure = True if last.ended.gain_low > 0 else False if last.ended.gain_high < 0 else None
        yield Tile("last gain", signed(last.ended.gain),
                   f"of mean loss, {signed(last.ended.gain_low)} to {signed(last.ended.gain_high)}", sure)
    if last.worst:
        name, index = last.worst[0]
        yield Tile("largest drift", f"{index:.3f}", name, False if index > LARGE_DRIFT else None)
    yield Tile("last retraining", duration(last.seconds), f"ended {day(last.ended.at)}")


def signed(gain: float | None) -> str:
    """A gain, of any size, with its sign; a dash if there is none."""
    return DASH if gain is None else f"{gain:+.4f}" if abs(gain) < 100 else f"{gain:+,.0f}"


def day(at: str | datetime) -> str:
    """A moment as ``2013-01-31``."""
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    return moment.strftime("%Y-%m-%d")


def minute(at: str | datetime) -> str:
    """A moment as ``2013-01-31 12:00``."""
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    return moment.strftime("%Y-%m-%d\u00a0%H:%M")
