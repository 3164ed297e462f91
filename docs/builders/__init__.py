"""What makes the pages of the site that are made: `python -m docs.builders` (`make docs` does it, too).

    docs/metrics.md        from t5suite.tasks.metrics.METRICS and the registry
    docs/text_formats.md   from the registry, with an example of each task's text
    docs/coming_from.md    from docs/builders/coming_from/*.yaml

A test keeps the pages equal to what is made here (tests/test_docs_pages.py).
"""
