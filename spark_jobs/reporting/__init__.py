"""The report: one page made of facts and charts.

May import: conf, pipelines/parallel/schedules, the rooms inside.
Not here: computing facts, drawing charts (the rooms inside).

    events, manifest, evaluation.json, model card   facts/gather.py   reads files, as place.py does
      -> RunFacts, DataFacts, QualityFacts          facts/*.py        pure: plain data in, frozen dataclasses out
      -> inline SVG                                 charts/*.py       pure: facts in, markup out
      -> one HTML file                              page.py           pure: all of it into page.html.j2
"""
