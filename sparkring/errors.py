"""Every error a user can meet. Each says what was found, what was expected, and what to do next: ``SparkringError`` has the form.

The command line prints them as one line and exits with code 2; anything else that escapes is a bug and keeps its
traceback. Each class also derives from the builtin that a caller would expect to catch.
"""

from __future__ import annotations

import difflib
import signal
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Self


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the known word most like ``word``, or an empty string."""
    close = nearest_of(word, known)
    return f"; did you mean {close!r}?" if close else ""


def nearest_of(word: str, known: Iterable[str]) -> str | None:
    """The known word most like ``word``, if one is like it."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)), None)


_FINDINGS_SHOWN = 5
UNKNOWN_HOST = "its executor"
"""Where a rank is, in a message, if the name of its host is unknown."""


def in_one_line(findings: Sequence[str]) -> str:
    """The first findings of several, and the number of the others. No semicolon parts them: in a message it comes before the remedy."""
    more = [f"{len(findings) - _FINDINGS_SHOWN} more"] if len(findings) > _FINDINGS_SHOWN else []
    return ", and ".join([*findings[:_FINDINGS_SHOWN], *more])


def in_lines(where: str, problems: Sequence[str]) -> str:
    """``where: problem``; of several different problems, their number and then each in a line of its own."""
    distinct = list(dict.fromkeys(problems))
    if len(distinct) == 1:
        return f"{where}: {distinct[0]}"
    return "\n".join([f"{where} has {len(distinct)} problems; correct each of them:", *(f"  {problem}" for problem in distinct)])


class SparkringError(Exception):
    """Base of all errors that are the input's or the cluster's fault, not a bug of ours.

    The first line of a message is ``found; remedy``: what was found and expected, a semicolon and a space, what to do next. What was
    found holds no such semicolon. Further lines give details, such as a table or a traceback.
    """

    problems: tuple[SparkringError, ...] = ()
    """The errors that this one is made of, if it is made by ``together``."""

    @property
    def found(self) -> str:
        """What was found, without what to do."""
        return self._parts()[0]

    @property
    def remedy(self) -> str:
        """What to do next; empty if the message does not say."""
        return self._parts()[2]

    def _parts(self) -> tuple[str, str, str]:
        return str(self).partition("\n")[0].partition("; ")

    def __reduce__(self) -> tuple[Callable[..., SparkringError], tuple[object, ...]]:
        """Copies and pickles keep message and attributes, whatever arguments the class takes (a process pool hangs otherwise)."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[SparkringError], args: tuple[object, ...], attributes: dict[str, object]) -> SparkringError:
    maker = OSError if issubclass(kind, OSError) else kind  # among several builtin bases, Python needs the one with its own layout
    error: SparkringError = maker.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


_PROBLEMS_SHOWN = 20


def together(problems: Sequence[SparkringError]) -> SparkringError:
    """One error about all ``problems``, of the first one's class: a single one as it is, several with a line each."""
    each = [part for problem in problems for part in problem.problems or (problem,)]
    if len(each) == 1:
        return each[0]
    more = [f"and {len(each) - _PROBLEMS_SHOWN} more"] if len(each) > _PROBLEMS_SHOWN else []
    lines = "\n  ".join([*map(str, each[:_PROBLEMS_SHOWN]), *more])
    whole = type(each[0])(f"{len(each)} problems were found; correct all of them:\n  {lines}")
    whole.problems = tuple(each)
    return whole


def class_names(*kinds: type[Exception]) -> frozenset[str]:
    """Names of these classes and of all their subclasses: of an error on a rank, the driver knows only the name."""
    return frozenset[str]().union(*({kind.__name__} | class_names(*kind.__subclasses__()) for kind in kinds))


class ConfigError(SparkringError, ValueError):
    """A config value or key that cannot be used."""


class LayoutRefused(ConfigError):
    """A layout of stages, replicas and shards that cannot run: it does not fit the model, the memory, or the number of ranks."""


class SourceError(SparkringError, ValueError):
    """Source data that is missing or contradicts the config."""


class ExpectationResult(NamedTuple):
    """An expectation of a column, or of the table if ``column`` is empty, and what was found."""

    column: str
    expected: str
    found: str
    met: bool


class ExpectationsNotMet(SparkringError, ValueError):
    """Rows that break ``prepare.expectations``; the message ends in a table of all ``results``."""

    def __init__(self, results: Sequence[ExpectationResult]) -> None:
        self.results = tuple(results)
        breaches = sum(not result.met for result in results)
        rows = [("", "column", "expected", "found")]
        rows += [("ok" if result.met else "NO", result.column or "(table)", result.expected, result.found) for result in results]
        widths = [max(len(row[place]) for row in rows) for place in range(3)]
        table = "\n".join("  ".join([*(cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)), row[3]]) for row in rows)
        super().__init__(f"{breaches} of {len(results)} expectations are not met, so nothing was committed; fix the source or the query, "
                         f"or change prepare.expectations:\n{table}")


class DatasetError(SparkringError, ValueError):
    """A dataset version whose content does not match its manifest or the request."""


class DatasetVersionNotFound(SparkringError, LookupError):
    """The dataset has no such committed version."""

    def __init__(self, url: str, *, wanted: int | None, existing: Sequence[int], moved: str | None = None) -> None:
        """``moved``: what to do if the version was there before, and nothing is there now: the dataset may have been moved."""
        what = "no committed version" if wanted is None else f"no version {wanted}"
        if moved is not None and not existing:
            super().__init__(f"{url} has {what} any more; if the dataset was moved, {moved}.")
        elif existing:
            super().__init__(f"{url} has {what}, it has {', '.join(map(str, existing))}; name one of these, or run `sparkring prepare` to "
                             "commit another.")
        else:
            super().__init__(f"{url} has {what}{'' if wanted is None else ', it has none yet'}; run `sparkring prepare` to commit one.")


class DatasetChanged(DatasetError):
    """Files of a dataset version that differ from the committed ones."""

    def __init__(self, url: str, *, version: int, findings: Sequence[str]) -> None:
        self.findings = tuple(findings)
        super().__init__(f"version {version} of {url} has changed: {in_one_line(findings)}; "
                         "restore the named files from a copy, or prepare a new version and train on that.")


class HostileDataset(DatasetError):
    """Metadata that would run code if it were read as its format prescribes."""


class ReceiptError(SparkringError, ValueError):
    """Receipts of a run that were changed, or that do not prove that each row was read once."""


class CommitConflict(SparkringError, RuntimeError):
    """Another writer committed the same name first; nothing of theirs was touched."""


class Superseded(CommitConflict):
    """A later generation of the run has begun, so this one is over: it can commit nothing more."""


class StorageError(SparkringError, OSError):
    """Storage that cannot be reached, or that refuses a request."""


class DocumentDamaged(SparkringError, ValueError):
    """A document of a run that no longer holds what was written."""

    def __init__(self, path: str, *, found: str, expected: str, remedy: str) -> None:
        super().__init__(f"{path} is damaged: found {found}, expected {expected}; {remedy}.")


class ModelVersionNotFound(SparkringError, LookupError):
    """The registry has no such model version, or nobody has that alias."""

    def __init__(self, url: str, *, wanted: str, existing: Sequence[int]) -> None:
        has = f"it has {', '.join(map(str, existing))}" if existing else "it has none yet"
        super().__init__(f"{url} has no model version {wanted}, {has}; see `sparkring models list`, or make one with `sparkring evaluate` "
                         "and `sparkring models promote`.")


class RegistryChanged(SparkringError, ValueError):
    """Files of a registered model that differ from the registered ones."""

    def __init__(self, url: str, *, version: int, findings: Sequence[str]) -> None:
        self.findings = tuple(findings)
        super().__init__(f"model version {version} in {url} has changed: {in_one_line(findings)}; restore the named files from a copy, or "
                         "promote another version.")


class RunFolderMismatch(SparkringError, ValueError):
    """A run folder that was started with another config."""


class CheckpointDamaged(SparkringError, ValueError):
    """A checkpoint whose bytes do not match their hashes."""


class ScheduleInvalid(SparkringError, ValueError):
    """A schedule that does not process every micro-batch exactly once and in order, or a file that is not a schedule."""


class ScheduleStuck(SparkringError, RuntimeError):
    """A schedule whose workers would deadlock; ``waits`` holds (worker, next action, awaited action)."""

    def __init__(self, name: str, waits: Sequence[tuple[str, str, str]]) -> None:
        self.waits = tuple(waits)
        lines = ", and ".join(f"worker {worker} at {action} waits for {awaited}" for worker, action, awaited in waits)
        super().__init__(f"schedule {name} cannot continue: {lines}; reorder the lists so that awaited actions come first.")


class EnvironmentProblem(SparkringError, RuntimeError):
    """The machine or cluster lacks something that the job needs (Java, a GPU, memory, a port)."""


class RingError(SparkringError, RuntimeError):
    """The ring could not start, or did not finish."""

    place: str = ""
    """The action in which the rank raised it, e.g. ``stage 1, micro-batch 3, RECV_F3``; empty outside of a step."""
    last_actions: tuple[str, ...] = ()
    """The actions of that rank before, the newest last, e.g. ``2.31 s ago: F3``."""

    def at(self, place: str, *, rank: int, last_actions: Sequence[str]) -> Self:
        """Add the action of the rank and its last actions before; returns the error."""
        self.place, self.last_actions = place, tuple(last_actions)
        self.args = (f"rank {rank} ({place}): {self} {_history(rank, last_actions)}",)
        return self


class SparkEnded(EnvironmentProblem):
    """The session's JVM has ended, or cannot be reached: nothing can be started in it any more."""


class HostsLeftOut(RingError):
    """Too few slots remain once failing hosts are left out: ``slots`` remain, ``slots_left_out`` are on those hosts."""

    def __init__(self, *, wanted: int, slots: int, slots_left_out: int) -> None:
        self.wanted, self.slots, self.slots_left_out = wanted, slots, slots_left_out
        super().__init__(f"{slots_left_out} slots are on hosts that fail repeatedly and are left out, "
                         f"which leaves {slots} for {wanted} ranks; add executors"
                         + (f", or set train.num_ranks to at most {slots}." if slots else "."))


class NotEnoughSlots(RingError):
    """Spark cannot run ``wanted`` tasks at once, one of them for each rank; ``slots`` is the number that it can run, if known."""

    def __init__(self, *, wanted: int, slots: int | None, where: str, remedy: str) -> None:
        self.wanted, self.slots = wanted, slots
        super().__init__(f"{where} has {'fewer than' if slots is None else f'{slots} of'} the {wanted} free "
                         f"slot{'' if wanted == 1 else 's'} needed at once; {remedy}.")


class ExecutorLost(RingError):
    """Spark lost an executor with ranks on it; ``host`` is Spark's name for its machine, empty if unknown."""

    def __init__(self, message: str, *, host: str = "") -> None:
        self.host = host
        super().__init__(message)


class RankFailed(RingError):
    """Code raised on a rank; ``rank_traceback`` is that rank's own traceback, ``host`` is its host, if known.

    The message ends in the traceback, except if one of the errors of this module was raised: their messages are enough.
    """

    def __init__(self, rank: int, summary: str, rank_traceback: str, *, host: str = "") -> None:
        self.rank, self.summary, self.rank_traceback, self.host = rank, summary, rank_traceback, host
        is_fault = summary.partition(":")[0] in class_names(SparkringError)
        super().__init__(f"rank {rank} raised {summary}" + ("" if is_fault else f"; see its traceback:\n{rank_traceback.rstrip()}"))


class RankDied(RingError):
    """A rank's process ended without a result; ``host`` is empty if it is unknown."""

    def __init__(self, rank: int, host: str, exit_code: int, *, stderr_tail: str = "") -> None:
        self.rank, self.host, self.exit_code = rank, host, exit_code
        if exit_code < 0:
            how = f"was killed by {_signal_name(-exit_code)}"
            advice = "if nobody killed it, the machine may have run out of memory; "
        else:
            how, advice = f"ended with exit code {exit_code} and no result", ""
        tail = f"\nlast lines it wrote:\n{stderr_tail.rstrip()}" if stderr_tail.strip() else ""
        super().__init__(f"rank {rank} on {host or UNKNOWN_HOST} {how}; {advice}"
                         f"run the same command again to resume from the last checkpoint.{tail}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # the real-time signals have no names
        return f"signal {number}"


class ExportRefused(SparkringError, ValueError):
    """A trained model that cannot be written in another format, or whose file answers otherwise than the model itself."""


class NotFinite(SparkringError, ValueError):
    """A step's loss or gradient, or a network's answer, was NaN or infinite."""


class TrackingFailed(SparkringError, RuntimeError):
    """MLflow does not answer, or refuses. Training goes on, and what was not sent is sent later."""


class Stopped(SparkringError, RuntimeError):
    """A run was asked to end early; it has saved, and the same command resumes. ``signal_number`` is the signal that asked."""

    def __init__(self, message: str, *, signal_number: int = signal.SIGTERM) -> None:
        self.signal_number = signal_number
        super().__init__(message)


class DeadlinePassed(RingError, TimeoutError):
    """Something did not happen in time; ``awaited`` holds the ranks that others waited for, as far as known."""

    def __init__(self, message: str, *, awaited: Sequence[int] = (), host: str = "") -> None:
        self.awaited, self.host = tuple(awaited), host
        super().__init__(message)


class RingEnded(RingError):
    """Horovod ended on this rank while it wanted ``what``, because some other rank raised, died or left."""

    def __init__(self, what: str, *, cause: str) -> None:
        super().__init__(f"{what}: the ring has ended, so some rank raised or died ({cause}); see the other ranks' last lines.")


class PeerSilent(RingError, TimeoutError):
    """A rank that this one waits for said nothing until the deadline, or has ended; then ``ended`` describes the sign of that."""

    def __init__(self, *, rank: int, peer: int, doing: str, seconds: float, ended: str = "", last_actions: Sequence[str] = ()) -> None:
        self.rank, self.peer, self.doing, self.seconds, self.ended = rank, peer, doing, seconds, ended
        self.last_actions = tuple(last_actions)
        self.awaited = () if ended else (peer,)
        super().__init__(self._text())

    def at(self, place: str, *, rank: int, last_actions: Sequence[str]) -> Self:
        """Add the action of the rank; the rank and its last actions are known already."""
        self.place = place
        self.args = (self._text(),)
        return self

    def _text(self) -> str:
        who = f"rank {self.rank} ({self.place})" if self.place else f"rank {self.rank}"
        if self.ended:
            what = f"{who} stopped {self.doing}: {self.ended}; see the other ranks' last lines"
        else:
            what = (f"{who} timed out after {self.seconds:g} s {self.doing}: rank {self.peer} did not respond; see rank {self.peer}'s "
                    "last lines, or raise train.ring.deadline_s if it is only slow")
        return f"{what}. {_history(self.rank, self.last_actions)}"


def _history(rank: int, last_actions: Sequence[str]) -> str:
    return f"Last actions of rank {rank}: {', '.join(last_actions) or 'none'}."


class PipelineShapeError(RingError, ValueError):
    """A message between stages whose tensors differ from the agreed ones, or cannot be sent."""
