"""Rolling back to the last checkpoint after a step that was not finite: how often, and which steps are left out afterwards.

Training is exact: the same steps would fail again. The failed step is therefore left out. If the run fails again before its next
checkpoint, all steps since the last checkpoint are left out, since they may have led up to the failure.

    checkpoint 100 ------------------ x 137      back to 100, without step 137
    checkpoint 100 ------------------ - - x 140  back to 100, without steps 100 to 140
    checkpoint 100 - - - - - ... - - - - --------- checkpoint 200: the count starts again here

Source: Chowdhery et al. 2022, PaLM, arXiv:2204.02311, section 5.1 (batches before a spike are skipped, since the same data did not
spike from another state).

Pure. All ranks decide alike, since they decide from the same facts.
"""

from __future__ import annotations


class Rollbacks:
    """Counts rollbacks, and knows which steps are left out."""

    def __init__(self, limit: int) -> None:
        """``limit``: how often a run may go back to one checkpoint."""
        self._limit = limit
        self._checkpoint, self._count = -1, 0
        self._left_out: set[int] = set()

    def leaves_out(self, step: int) -> bool:
        """Whether optimizer step ``step``, counted from the run's beginning, is read but not learned from."""
        return step in self._left_out

    def back(self, *, to: int, spoiled: int) -> str | None:
        """Count one more rollback; returns its description, or None if the run has reached its limit.

        Args:
            to: Optimizer steps of the checkpoint.
            spoiled: The step that was not finite.
        """
        self._count = self._count + 1 if to == self._checkpoint else 1
        self._checkpoint = to
        if self._count > self._limit:
            return None
        first = spoiled if self._count == 1 else to
        self._left_out.update(range(first, spoiled + 1))
        which = f"step {spoiled}" if first == spoiled else f"steps {first} to {spoiled}"
        return f"back to the checkpoint after {to} steps, leaving out {which} of the run ({self._count} of {self._limit} times)"
