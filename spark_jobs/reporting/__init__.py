"""The report: facts computed from what a workspace holds, pictures drawn from facts, one page made of both.

    events, manifest, evaluation.json, model card      gather.py      the only module here that reads files
      -> RunFacts, DataFacts, QualityFacts             *_facts.py     pure: plain data in, frozen dataclasses out
      -> inline SVG                                    *_charts.py    pure: facts in, markup out
      -> one HTML file                                 page.py        pure: all of it into page.html.j2
"""
