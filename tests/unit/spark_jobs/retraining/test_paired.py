"""The paired comparison against scipy, and the policies' verdicts drawn as a table."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError
from scipy import stats

from sparkring.conf.schema.retrain import PromoteConfig, TriggerConfig
from sparkring.spark_jobs.retraining.paired import Paired, judge


def paired(champion: np.ndarray, candidate: np.ndarray) -> Paired:
    return Paired(len(champion), champion.mean(), candidate.mean(), (champion - candidate).std(ddof=1))


def test_interval_and_p_value_are_those_of_a_paired_test() -> None:
    random = np.random.default_rng(2)
    hard = random.exponential(size=20_000)  # what makes a row hard for both
    champion, candidate = hard + random.normal(0, 0.05, hard.size), hard + random.normal(-0.001, 0.05, hard.size)
    found = paired(champion, candidate)
    expected = stats.ttest_rel(champion, candidate)
    assert found.interval(0.95) == pytest.approx(tuple(expected.confidence_interval(0.95)), rel=1e-3)
    assert found.p_value == pytest.approx(expected.pvalue, rel=0.01)
    assert stats.ttest_ind(champion, candidate).pvalue > 0.5  # control: without pairs the same gain drowns


def test_equal_models_have_no_gain() -> None:
    same = np.ones(100)
    assert paired(same, same).p_value == 1
    assert paired(same, same).interval(0.99) == (0, 0)
    assert paired(same, same * 0).p_value == 0


CLEARLY_BETTER = Paired(10_000, 0.50, 0.49, 0.1)  # gain 0.01 +- 0.00196
CLEARLY_WORSE = Paired(10_000, 0.49, 0.50, 0.1)
A_LITTLE_WORSE = Paired(10_000, 0.500, 0.501, 0.1)  # at worst -0.003, and 1 % of 0.5 is 0.005
UNSURE = Paired(100, 0.50, 0.49, 0.1)  # gain 0.01 +- 0.0196
FEW = Paired(20, 0.50, 0.10, 0.1)


@pytest.mark.parametrize(("found", "better", "not_worse"), [
    pytest.param(CLEARLY_BETTER, True, True, id="clearly better"),
    pytest.param(CLEARLY_WORSE, False, False, id="clearly worse"),
    pytest.param(A_LITTLE_WORSE, False, True, id="a little worse, within the margin"),
    pytest.param(UNSURE, False, False, id="perhaps better, perhaps worse than the margin allows"),
    pytest.param(FEW, False, False, id="too few rows to tell"),
    pytest.param(None, True, True, id="no champion yet"),
])
def test_a_policy_promotes_what_it_says(found: Paired | None, better: bool, not_worse: bool) -> None:
    assert judge(found, PromoteConfig(when="better")).promote == better
    assert judge(found, PromoteConfig(when="not_worse")).promote == not_worse
    assert judge(found, PromoteConfig(when="always")).promote
    assert not judge(found, PromoteConfig(when="never")).promote


@pytest.mark.parametrize(("margin", "said"), [(0.01, "1%"), (0.07, "7%"), (0.005, "0.5%"), (0.0, "0%")])
def test_the_reason_names_the_margin_as_the_config_has_it(margin: float, said: str) -> None:
    reason = judge(CLEARLY_BETTER, PromoteConfig(when="not_worse", margin=margin)).reason
    assert reason.startswith(f"not worse by more than {said} of the champion's loss: ")


def test_the_reason_names_figures() -> None:
    assert judge(CLEARLY_BETTER, PromoteConfig(when="better")).reason == (
        "better: mean loss 0.49000, the champion's 0.50000, gain +0.01000 [+0.00804, +0.01196] on 10,000 held-out rows")


def test_a_config_without_any_trigger_is_refused() -> None:
    with pytest.raises(ValidationError, match="no trigger is left"):
        TriggerConfig(new_rows=None)
