"""Checkpoints: written as a whole or not at all, verified before they are read.

    >>> commit_checkpoint("runs/x", 400, write, ranks, run_id="5f3a9c01")
    PosixPath('runs/x/checkpoint-400')
    >>> find_checkpoint("runs/x", "auto")
    PosixPath('runs/x/checkpoint-400')

`saving` says what is in one and `states` how, `manifests` what it must hold, `committing` gives it its name; `folders`
finds and deletes them, `starts` and `resuming` go on from one, `data_positions` in its data.
"""
