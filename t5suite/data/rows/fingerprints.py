"""The fingerprint that `datasets` keeps of a data set's rows, for manifests and the cache of tokenized rows.

    >>> dataset_fingerprint(rows)
    '1f0a8c9d2e7b6a54'

`datasets` 5.2 has no public name for it.
"""

from t5suite.base.libraries import require_proved


def dataset_fingerprint(dataset) -> str:
    """The fingerprint of a `datasets.Dataset`: another one after any change of its rows."""
    require_proved("row_fingerprints")
    return _fingerprint_of(dataset)


def _fingerprint_of(dataset) -> str:
    return dataset._fingerprint


def probe_fingerprints() -> str | None:
    """What is wrong with the fingerprints of the installed `datasets`: other rows have another one."""
    import datasets

    rows = datasets.Dataset.from_dict({"text": ["a", "b"]})
    fingerprints = [_fingerprint_of(part) for part in (rows, rows.select([1]), rows.select([0]))]
    texts = {text for text in fingerprints if isinstance(text, str)}
    if len(texts) != 3:
        return f"datasets {datasets.__version__}: the fingerprints of three data sets are {fingerprints}"
    return None
