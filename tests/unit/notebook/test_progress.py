"""Progress in a notebook: one block, redrawn at most so often, that says at its end what happened."""

from __future__ import annotations

import threading

import pytest

from sparkring.notebook.progress import REDRAW_S, NotebookProgress
from tests.support import seams


class Page:
    """A notebook's page: all drawings of each block."""

    def __init__(self) -> None:
        self.blocks: list[list[tuple[str, str]]] = []

    def __call__(self, html: str, text: str) -> Page:
        self.blocks.append([(html, text)])
        return self

    def replace(self, html: str, text: str) -> None:
        self.blocks[-1].append((html, text))

    @property
    def text(self) -> str:
        return self.blocks[-1][-1][1]


class Clock:
    """Seconds that pass when the test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def progress() -> tuple[NotebookProgress, Page, Clock]:
    page, clock = Page(), Clock()
    return NotebookProgress(clock=clock, block=page), page, clock  # type: ignore[arg-type]  # what a Block does, on no page


def test_stages_and_notes_of_a_call_are_lines_of_one_block_in_their_order() -> None:
    shown, page, clock = progress()
    with shown.stage("prepare", total=2):
        shown.note("version 1 is reused")
        clock.now = 3.0
    with shown.stage("train"):
        clock.now = 5.0
    assert len(page.blocks) == 1
    assert page.text.splitlines() == ["prepare: 100% in 3\u00a0s, done", "version 1 is reused", "train: 100% in 2\u00a0s, done"]


def test_a_bar_that_moves_all_the_time_is_drawn_a_few_times_a_second() -> None:
    shown, page, clock = progress()
    with shown.stage("train", total=1000) as bar:
        for step in range(1000):
            clock.now = step * 0.01
            bar.update(step, text=f"loss {step}")
        assert "95% in" in page.text
    assert len(page.blocks[0]) <= 10 / REDRAW_S + 2


def test_the_last_report_of_a_long_part_is_drawn_although_no_other_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.NOTEBOOK_TICK_S, 0.01)
    seen = threading.Event()

    class Watched(Page):
        def replace(self, html: str, text: str) -> None:
            if "the last one" in text:
                seen.set()

    shown = NotebookProgress(clock=Clock(), block=Watched())  # type: ignore[arg-type]
    with shown.stage("init") as bar:
        bar.update(1, text="the last one")  # right after the drawing of its beginning
        assert seen.wait(60)


@pytest.mark.parametrize(("error", "word"), [(KeyboardInterrupt, "stopped"), (ZeroDivisionError, "failed")])
def test_a_stage_that_raised_stays_where_it_was_and_says_so(error: type[BaseException], word: str) -> None:
    shown, page, _ = progress()
    with pytest.raises(error), shown.stage("train", total=4) as bar:
        bar.update(2)
        raise error
    assert page.text.startswith("train: 50%")
    assert page.text.endswith(word)


def test_text_of_the_data_is_no_html() -> None:
    shown, page, _ = progress()
    with shown.stage("<b>odd</b>", total=1) as bar:
        bar.update(1, text="<script>")
    shown.note("<i>")
    html = page.blocks[0][-1][0]
    assert not [tag for tag in ("<b>", "<script>", "<i>") if tag in html]
    assert "&lt;script&gt;" in html
