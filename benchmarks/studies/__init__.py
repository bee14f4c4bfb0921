"""Studies: what a choice does to training, as a page with tables and pictures that are all made from one file of numbers.

    __main__.py        the command: run a study, or draw it again
    catalogue.py       the studies by name
    large_batches.py, staleness.py, scaling.py, layouts.py    one study each: what it measures, and the page about it
    study.py           what a study is; its files
    markdown.py        paragraphs and tables; charts.py: pictures
    digits.py          the dataset; runs.py: a run on ranks without Spark

A page states no number that is not in its file, so its sentences cannot contradict it. No bar is set here: that is a benchmark's part.
"""
