"""The fingerprint that `datasets` keeps of a data set's rows, for manifests and the cache of tokenized rows.

    >>> dataset_fingerprint(rows)
    '1f0a8c9d2e7b6a54'

`datasets` 5.2 has no public name for it.
"""

from t5suite.base.libraries import require_proved


def dataset_fingerprint(dataset) -> str:
    """The fingerprint of a `datasets.Dataset`: another one after any change of its rows."""
    require_proved("row_fingerprints")
    return dataset._fingerprint
