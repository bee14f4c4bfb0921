"""The choice of the next trial's values, and whether a trial ends early: Optuna, told of all trials that are known."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sparkring.conf.schema.search import SearchConfig
from sparkring.pipelines.training.evaluation.score import signed
from sparkring.spark_jobs.searching.space import as_internal, as_params, distributions
from sparkring.spark_jobs.searching.trials import Trial

if TYPE_CHECKING:
    import optuna


MOST_ASKS = 50
"""Times that values are drawn until some were not tried yet."""


class Study:
    """A search's trials as Optuna sees them. One thread at a time uses it."""

    def __init__(self, search: SearchConfig, known: Iterable[Trial], *, epochs: int) -> None:
        """Tell Optuna what is known.

        Args:
            search: What is searched, and how.
            known: Trials of earlier calls; those that have not ended take part in nothing.
            epochs: Of a whole trial, for Hyperband.
        """
        import optuna

        logging.getLogger("optuna").setLevel(logging.WARNING)
        self._search, self._distributions = search, distributions(search.space)
        known = list(known)
        self._study = optuna.create_study(study_name="search", sampler=_sampler(search, len(known)), pruner=_pruner(search, epochs))
        self._tried = [trial.params for trial in known]
        self._asked: dict[int, optuna.Trial] = {}
        self._reported: dict[int, int] = {}
        """Epochs of each trial that Optuna knows."""
        for trial in known:
            if trial.state in ("done", "pruned"):
                self._study.add_trial(self._frozen(trial))

    def ask(self, number: int) -> Trial | None:
        """The values of the next trial, which gets this number; None if hardly any are left that were not tried."""
        from optuna.trial import TrialState

        for _ in range(MOST_ASKS):
            asked = self._study.ask(self._distributions)
            params = as_params(self._search.space, asked.params)
            if params not in self._tried:  # the same values are the same run
                self._tried.append(params)
                self._asked[number] = asked
                return Trial(number=number, params=params)
            self._study.tell(asked, state=TrialState.FAIL)
        return None

    def resume(self, trial: Trial) -> None:
        """Take a trial that an earlier call began and did not end."""
        self._study.enqueue_trial(as_internal(self._search.space, trial.params))
        self._asked[trial.number] = self._study.ask(self._distributions)

    def prunes(self, number: int, epochs: Sequence[float]) -> bool:
        """Whether to end a trial early whose metric after each epoch so far is this."""
        asked = self._asked[number]
        for place in range(self._reported.get(number, 0), len(epochs)):
            asked.report(signed(epochs[place], self._search.metric), place)
        self._reported[number] = len(epochs)
        return bool(epochs and asked.should_prune())

    def tell(self, trial: Trial) -> None:
        """Note how a trial ended."""
        from optuna.trial import TrialState

        asked = self._asked.pop(trial.number)
        if trial.state == "done":
            assert trial.value is not None
            self._study.tell(asked, signed(trial.value, self._search.metric))
        else:
            self._study.tell(asked, state=TrialState.PRUNED if trial.state == "pruned" else TrialState.FAIL)

    def _frozen(self, trial: Trial) -> optuna.trial.FrozenTrial:
        from optuna.trial import TrialState, create_trial

        reported = {place: signed(value, self._search.metric) for place, value in enumerate(trial.epochs)}
        done = trial.state == "done" and trial.value is not None
        return create_trial(
            params=as_internal(self._search.space, trial.params), distributions=self._distributions, intermediate_values=reported,
            state=TrialState.COMPLETE if done else TrialState.PRUNED,
            value=signed(trial.value, self._search.metric) if done and trial.value is not None else None)


def _sampler(search: SearchConfig, known: int) -> optuna.samplers.BaseSampler:
    """A sampler that begins elsewhere than that of an earlier call, which drew the values of the known trials."""
    import optuna

    seed = abs(search.seed + known) % 2**32
    if search.sampler == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    return optuna.samplers.TPESampler(seed=seed, constant_liar=True)  # values of trials under way are not tried again


def _pruner(search: SearchConfig, epochs: int) -> optuna.pruners.BasePruner:
    import optuna

    match search.pruner:
        case "median":
            return optuna.pruners.MedianPruner()
        case "hyperband":
            return optuna.pruners.HyperbandPruner(max_resource=epochs)
        case "none":
            return optuna.pruners.NopPruner()
