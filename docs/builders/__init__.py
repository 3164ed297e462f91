"""What makes the pages of the site that are made: `python -m docs.builders` (`make docs` does it, too).

    docs/tasks.md         its tables: from the registry and t5suite.tasks.metrics.METRICS
    docs/coming_from.md   from docs/builders/coming_from/*.yaml

A test keeps the pages equal to what is made here (tests/test_docs_pages.py).
"""
