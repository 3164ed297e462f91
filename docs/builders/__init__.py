"""Generates the site's generated pages: `python -m docs.builders` (`make docs` runs it, too).

    docs/tasks.md         its tables: from the registry and t5suite.tasks.metrics.METRICS
    docs/coming_from.md   from docs/builders/coming_from/*.yaml

A test checks that the pages equal what is generated here (tests/test_docs_pages.py).
"""
