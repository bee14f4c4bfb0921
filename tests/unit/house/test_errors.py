"""Errors say what was found, what was expected and what to do, in one line, and survive a journey between processes."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Callable, Iterator
from inspect import signature
from pathlib import Path

import pytest

from sparkring import errors
from sparkring.errors import DatasetVersionNotFound, NotEnoughSlots, RankDied, RankFailed, SparkringError, nearest

CLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SparkringError)]
ROOT = Path(__file__).parents[3]
ROOMS = ("conf", "models", "pipelines", "spark_jobs", "sparkring")
WITHOUT_REMEDY = (errors.ReceiptError, errors.CheckpointDamaged)
"""What a proof found is all that there is to say, and the checkpoint before a damaged one is used without asking."""


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind is not SparkringError])
def test_a_caller_can_catch_it_as_the_builtin_that_it_expects(kind: type[SparkringError]) -> None:
    builtins = {ValueError, LookupError, RuntimeError, TimeoutError, OSError}
    assert [base for base in kind.__mro__ if base in builtins]
    assert kind.__doc__


@pytest.mark.parametrize(("make", "expected"), [
    pytest.param(lambda: DatasetVersionNotFound("runs/x", wanted=4, existing=[1, 2]),
                 "runs/x has no version 4, it has 1, 2; name one of these, or run `sparkring prepare` to commit another.",
                 id="a version that is not there"),
    pytest.param(lambda: DatasetVersionNotFound("runs/x", wanted=4, existing=[], moved="name its new address with --dataset"),
                 "runs/x has no version 4 any more; if the dataset was moved, name its new address with --dataset.", id="a moved dataset"),
    pytest.param(lambda: DatasetVersionNotFound("runs/x", wanted=4, existing=[5], moved="name its new address with --dataset"),
                 "runs/x has no version 4, it has 5; name one of these, or run `sparkring prepare` to commit another.",
                 id="a removed version of a dataset that is there"),
    pytest.param(lambda: DatasetVersionNotFound("runs/x", wanted=None, existing=[]),
                 "runs/x has no committed version; run `sparkring prepare` to commit one.",
                 id="no version at all"),
    pytest.param(lambda: NotEnoughSlots(wanted=4, slots=2, where="local[2]", remedy="add two"),
                 "local[2] has 2 of the 4 free slots needed at once; add two.", id="too few slots"),
    pytest.param(lambda: NotEnoughSlots(wanted=1, slots=None, where="yarn", remedy="add one"),
                 "yarn has fewer than the 1 free slot needed at once; add one.", id="too few slots, nobody knows how many"),
    pytest.param(lambda: RankDied(1, "node-3", -9),
                 "rank 1 on node-3 was killed by SIGKILL; if nobody killed it, the machine may have run out of memory; "
                 "run the same command again to resume from the last checkpoint.", id="a rank that was killed"),
    pytest.param(lambda: RankDied(1, "", -9),
                 "rank 1 on its executor was killed by SIGKILL; if nobody killed it, the machine may have run out of memory; "
                 "run the same command again to resume from the last checkpoint.", id="a rank whose host is unknown"),
    pytest.param(lambda: RankDied(0, "node-1", -40),
                 "rank 0 on node-1 was killed by signal 40; if nobody killed it, the machine may have run out of memory; "
                 "run the same command again to resume from the last checkpoint.", id="a signal without a name"),
    pytest.param(lambda: RankDied(0, "node-1", 3),
                 "rank 0 on node-1 ended with exit code 3 and no result; run the same command again to resume from the last checkpoint.",
                 id="a rank that left"),
])
def test_the_message_says_what_was_found_what_was_expected_and_what_to_do(make: Callable[[], SparkringError], expected: str) -> None:
    assert str(make()) == expected


def test_the_last_lines_of_a_dead_rank_follow_its_message() -> None:
    assert str(RankDied(1, "n", 1, stderr_tail="out of luck\n")).endswith("\nlast lines it wrote:\nout of luck")


@pytest.mark.parametrize(("summary", "has_traceback"), [
    pytest.param("DatasetChanged: part-1.parquet is missing; restore it.", False, id="the user's fault"),
    pytest.param("KeyError: 'label'", True, id="a bug, of whoever it is")])
def test_a_rank_s_traceback_is_shown_for_bugs_only(summary: str, has_traceback: bool) -> None:
    error = RankFailed(1, summary, "Traceback ...")
    assert str(error).startswith(f"rank 1 raised {summary}")
    assert ("Traceback" in str(error)) == has_traceback
    assert error.rank_traceback == "Traceback ..."


@pytest.mark.parametrize("error", [
    pytest.param(NotEnoughSlots(wanted=2, slots=1, where="local[1]", remedy="add one"), id="keyword arguments"),
    pytest.param(RankFailed(1, "ValueError: x", "Traceback ..."), id="attributes"),
    pytest.param(errors.ConfigError("plain"), id="a plain message"),
    pytest.param(errors.DeadlinePassed("too late"), id="of two builtins"),
    pytest.param(errors.PeerSilent(rank=0, peer=1, doing="receiving edge f1", seconds=2, last_actions=["send"]), id="both"),
    pytest.param(errors.StorageError("no bucket"), id="an OSError"),
])
def test_a_pickled_error_comes_back_as_it_was(error: SparkringError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))


def test_the_nearest_word_is_offered_and_a_far_one_is_not() -> None:
    assert nearest("epoch", ["epochs", "seed"]) == "; did you mean 'epochs'?"
    assert nearest("zzz", ["epochs", "seed"]) == ""


def _messages() -> Iterator[tuple[str, type[SparkringError], str]]:
    """Where one of our errors is made from a text of its own, its class, and the text as Python source."""
    kinds = {kind.__name__: kind for kind in CLASSES}
    for file in sorted(file for room in ROOMS for file in (ROOT / room).rglob("*.py")):
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in kinds and call.args:
                takes_message = {"message", "args"} & signature(kinds[call.func.id].__init__).parameters.keys()
                if takes_message and isinstance(call.args[0], ast.JoinedStr | ast.Constant):
                    yield f"{file.relative_to(ROOT)}:{call.lineno}", kinds[call.func.id], ast.unparse(call.args[0])


def test_each_message_that_is_written_somewhere_states_a_remedy() -> None:
    written = [(place, text) for place, kind, text in _messages() if not issubclass(kind, WITHOUT_REMEDY)]
    assert len(written) > 200
    assert [place for place, text in written if "; " not in text and not text.endswith(": {error}'")] == []


@pytest.mark.parametrize("error", [
    DatasetVersionNotFound("x", wanted=4, existing=[1, 2]), DatasetVersionNotFound("x", wanted=None, existing=[]),
    errors.DatasetChanged("x", version=1, findings=[f"part-{number} is missing" for number in range(9)]),
    errors.DocumentDamaged("x", found="nothing", expected="JSON", remedy="delete it"),
    errors.ExpectationsNotMet([errors.ExpectationResult("km", "min 0", "-1; -2", met=False)]),
    errors.ScheduleStuck("x", [("0", "F1", "F0"), ("1", "F2", "F1")]), errors.HostsLeftOut(wanted=4, slots=2, slots_left_out=2),
    NotEnoughSlots(wanted=4, slots=2, where="local[2]", remedy="add two"), RankFailed(1, "KeyError: 1", "Traceback; and more"),
    RankFailed(1, "ConfigError: a is 1; set it to 2", ""), RankDied(1, "n", -9, stderr_tail="a; b"), RankDied(1, "n", 3),
    errors.RingEnded("step 3", cause="it shut down"), errors.PeerSilent(rank=0, peer=1, doing="receiving f1", seconds=2),
    errors.PeerSilent(rank=0, peer=1, doing="receiving f1", seconds=2, ended="it left").at("stage 1", rank=0, last_actions=["F1"]),
], ids=lambda error: type(error).__name__)
def test_what_was_found_and_what_to_do_are_told_apart_in_one_line(error: SparkringError) -> None:
    assert str(error).partition("\n")[0] == f"{error.found}; {error.remedy}"
    assert error.found
    assert error.remedy


def test_a_message_that_states_no_remedy_has_none() -> None:
    error = errors.ReceiptError("epoch 1 read 3 rows\nof part-1; of part-2")
    assert (error.found, error.remedy) == ("epoch 1 read 3 rows", "")
