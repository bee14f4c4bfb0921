"""Preparing each result in a thread of its own while the result before it is in use, e.g. copying a batch to a GPU during a step.

    consumer           use 0        use 1        use 2
    thread      prepare 0 | prepare 1  | prepare 2 |               so two are prepared at most: one in use and the next one
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


def one_ahead(coming: Iterator[Future[T]], prepare: Callable[[T], U]) -> Generator[U]:
    """Yield every result, prepared, in order.

    Args:
        coming: Results, made by other threads.
        prepare: Called in one thread, in order.
    Raises:
        Exception: from a result or its preparation, once all results before it have been used.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="sparkring-copier")
    try:
        before: Future[U] | None = None
        for future in coming:
            following = thread.submit(partial(_prepared, future, prepare))
            if before is not None:
                yield before.result()
            before = following
        if before is not None:
            yield before.result()
    finally:
        thread.shutdown(wait=False, cancel_futures=True)


def _prepared(made: Future[T], prepare: Callable[[T], U]) -> U:
    return prepare(made.result())
