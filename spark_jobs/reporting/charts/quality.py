"""Charts of the model's quality, beside the baselines.

    binary       ROC and calibration
    regression   labels by prediction, and the residuals
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from sparkring.pipelines.training.evaluation.metrics import BinaryMetrics, CalibrationBin
from sparkring.pipelines.training.evaluation.regression import RegressionMetrics
from sparkring.spark_jobs.reporting.charts.canvas import HEIGHT, KeyStyle, LegendEntry, Picture, draw, name_axes
from sparkring.spark_jobs.reporting.charts.palette import BASE_RATE, LOGISTIC, MUTED, NETWORK, Shade
from sparkring.spark_jobs.reporting.facts.quality import BinaryQuality, ModelQuality, RegressionQuality
from sparkring.spark_jobs.reporting.facts.words import compact, count, measure, metric, share

_SHADES: dict[str, Shade] = {"network": NETWORK, "logistic_regression": LOGISTIC, "ridge": LOGISTIC, "base_rate": BASE_RATE,
                             "mean": BASE_RATE}
_STYLES: dict[str, KeyStyle] = {"network": "line", "logistic_regression": "dashed", "ridge": "dashed", "base_rate": "dotted",
                                "mean": "dotted"}
_Dashes = str | tuple[int, tuple[int, ...]]
_DASHES: dict[KeyStyle, _Dashes] = {"line": "-", "dashed": (0, (5, 2)), "dotted": (0, (1, 2))}
Binary = ModelQuality[BinaryMetrics]
Regression = ModelQuality[RegressionMetrics]

FEWEST_ROWS = 20
"""Fewest rows of a bin that is drawn: the observed share of fewer rows is noise."""


def quality_pictures(facts: BinaryQuality | RegressionQuality) -> tuple[Picture, ...]:
    """ROC and calibration, or labels by prediction and the residuals."""
    if isinstance(facts, BinaryQuality):
        return _roc(facts), _calibration(facts)
    return _by_prediction(facts), _residuals(facts)


def _roc(facts: BinaryQuality) -> Picture:
    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.grid(axis="both")
        for model in reversed(facts.models):  # the network on top
            axes.plot(model.metrics.roc.fpr, model.metrics.roc.tpr, color=_SHADES[model.key].light, linestyle=_dashes(model))
        axes.set(xlim=(0, 1), ylim=(0, 1.005))
        axes.margins(0)
        name_axes(axes, x="share of negatives flagged", y="share of positives found")

    found = "; ".join(f"{model.title} {metric(model.metrics.auc)}" for model in facts.models)
    return Picture(
        name="roc", title="Positives found against false alarms",
        svg=draw(paint, name="roc", label=f"ROC curves. Area under each: {found}.", height=HEIGHT + 50),
        legend=tuple(_key(model, f"{model.title}, AUC {metric(model.metrics.auc)}") for model in facts.models),
        caption="The further a curve bends to the upper left, the better the model ranks the rows. The diagonal is guessing.")


def _calibration(facts: BinaryQuality) -> Picture:
    def paint(figure: Figure) -> None:
        grid = figure.add_gridspec(2, 1, height_ratios=[3, 1])
        top = figure.add_subplot(grid[0])
        highest = max((max(part.predicted, part.observed) for model in facts.models for part in _drawn(model)), default=1.0)
        limit = min(1.0, 1.05 * highest)
        top.plot([0, 1], [0, 1], color=MUTED.light, linewidth=1, linestyle=(0, (2, 3)))
        for model in reversed(facts.models):
            _plot_bins(top, model)
        top.set(xlim=(0, limit), ylim=(0, limit))
        top.tick_params(labelbottom=False)
        top.set_title("observed share of positives", loc="left", fontsize=11.5, color=MUTED.light)
        bottom = figure.add_subplot(grid[1], sharex=top)
        for model in reversed([model for model in facts.models if model.key != "base_rate"]):
            _plot_counts(bottom, model)
        bottom.yaxis.set_major_locator(MaxNLocator(nbins=2, integer=True))
        bottom.yaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
        name_axes(bottom, x="predicted probability", y="rows")

    errors = "; ".join(f"{model.title} {metric(model.metrics.calibration_error)}" for model in facts.models)
    return Picture(
        name="calibration", title="Predicted against observed",
        svg=draw(paint, name="calibration", label=f"Calibration plot with rows per bin. Calibration error: {errors}.", height=HEIGHT + 50),
        legend=tuple(_key(model, model.title) for model in facts.models),
        caption="On the dotted diagonal, of the rows given 30\u00a0% about 30\u00a0% are positive. Below: how many rows were "
                f"given each prediction; where they are fewer than {FEWEST_ROWS}, no share is drawn above.")


def _by_prediction(facts: RegressionQuality) -> Picture:
    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.grid(axis="both")
        means = [mean for model in facts.models for part in model.metrics.bins for mean in (part.predicted, part.observed)]
        axes.plot(*2 * [(min(means), max(means))], color=MUTED.light, linewidth=1, linestyle=(0, (2, 3)))
        for model in reversed(facts.models):
            bins = model.metrics.bins
            axes.plot([part.predicted for part in bins], [part.observed for part in bins], color=_SHADES[model.key].light,
                      linestyle=_dashes(model), marker="o", markersize=4.5)
        name_axes(axes, x="mean prediction", y="mean label")

    found = "; ".join(f"{model.title} {metric(model.metrics.r2)}" for model in facts.models)
    return Picture(
        name="by-prediction", title="Predicted against observed",
        svg=draw(paint, name="by-prediction", label=f"Mean label by mean prediction. R2: {found}.", height=HEIGHT + 50),
        legend=tuple(_key(model, f"{model.title}, R2 {metric(model.metrics.r2)}") for model in facts.models),
        caption="Rows are sorted by their prediction and cut into parts of about equal size. A point on the dotted diagonal is right on "
                "average; the further a line reaches along it, the more the model tells rows apart.")


def _residuals(facts: RegressionQuality) -> Picture:
    found = facts.network.residuals

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.bar([found.lower + found.width * place for place in range(len(found.rows))], found.rows, width=found.width, align="edge",
                 color=NETWORK.light, alpha=0.45)
        axes.axvline(0, color=MUTED.light, linewidth=1, linestyle=(0, (2, 3)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
        name_axes(axes, x="label minus prediction", y="rows")

    shown = sum(found.rows)
    ends = f"{measure(found.lower)} to {measure(found.lower + found.width * len(found.rows))}"
    return Picture(
        name="residuals", title="How far off the network is",
        svg=draw(paint, name="residuals", label=f"Histogram of label minus prediction for {count(shown)} rows, from {ends}.",
                 height=HEIGHT + 50),
        caption=f"Right of 0 the label is higher than its prediction. {share(shown / facts.network.rows)} of the rows are drawn; "
                f"{count(found.below)} lie further left, {count(found.above)} further right.")


def _dashes(model: Binary | Regression) -> _Dashes:
    return _DASHES[_STYLES[model.key]]


def _key(model: Binary | Regression, label: str) -> LegendEntry:
    return LegendEntry(label, _SHADES[model.key], _STYLES[model.key])


def _plot_bins(axes: Axes, model: Binary) -> None:
    """A point a bin, joined."""
    bins = _drawn(model)
    axes.plot([part.predicted for part in bins], [part.observed for part in bins], color=_SHADES[model.key].light,
              linestyle=_dashes(model), marker="o", markersize=4.5)


def _drawn(model: Binary) -> list[CalibrationBin]:
    return [part for part in model.metrics.calibration if part.rows >= FEWEST_ROWS]


def _plot_counts(axes: Axes, model: Binary) -> None:
    """Rows a bin: the network filled, a baseline as an outline over it."""
    bins, colour = model.metrics.calibration, _SHADES[model.key].light
    fill, edge, alpha = (colour, "none", 0.45) if model.key == "network" else ("none", colour, 1.0)
    axes.bar([part.lower for part in bins], [part.rows for part in bins], width=[part.upper - part.lower for part in bins],
             align="edge", color=fill, edgecolor=edge, alpha=alpha)
