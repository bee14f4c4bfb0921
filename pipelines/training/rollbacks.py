"""Going back to the last checkpoint after a step that was not finite: how often, and which steps are left out the next time.

Steps are computed again as they were, so without a difference the same step would fail again. It is therefore left out; and if that does
not get the run past its next checkpoint, so are all steps since the last one, which may have led up to it.

    checkpoint 100 ------------------ x 137      back to 100, without step 137
    checkpoint 100 ------------------ - - x 140  back to 100, without steps 100 to 140
    checkpoint 100 - - - - - ... - - - - --------- checkpoint 200: three more times are allowed from here

Source: Chowdhery et al. 2022, PaLM, arXiv:2204.02311, section 5.1 (batches before a spike are skipped, since the same data did not
spike from another state).

Pure. All ranks decide alike, from what all of them know.
"""

from __future__ import annotations


class Rollbacks:
    """Counts them, and knows which steps are left out."""

    def __init__(self, limit: int) -> None:
        """``limit``: how often a run may go back to one checkpoint."""
        self._limit = limit
        self._to, self._count = -1, 0
        self._left_out: set[int] = set()

    def leaves_out(self, step: int) -> bool:
        """Whether optimizer step ``step``, counted from the run's beginning, is only read over."""
        return step in self._left_out

    def back(self, *, to: int, spoiled: int) -> str | None:
        """Count one more; what happens then in words, or None where the run has gone back often enough.

        Args:
            to: Optimizer steps of the checkpoint.
            spoiled: The step that was not finite.
        """
        self._count = self._count + 1 if to == self._to else 1
        self._to = to
        if self._count > self._limit:
            return None
        first = spoiled if self._count == 1 else to
        self._left_out.update(range(first, spoiled + 1))
        which = f"step {spoiled}" if first == spoiled else f"steps {first} to {spoiled}"
        return f"back to the checkpoint after {to} steps, leaving out {which} of the run ({self._count} of {self._limit} times)"
