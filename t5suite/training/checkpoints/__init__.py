"""Checkpoints: written completely or not at all, verified before they are read.

    >>> commit_checkpoint("runs/x", 400, write, ranks, run_id="5f3a9c01")
    PosixPath('runs/x/checkpoint-400')
    >>> find_checkpoint("runs/x", "auto")
    PosixPath('runs/x/checkpoint-400')

`saving` defines the contents, `states` their file format, `manifests` the list of files, `committing` the commit.
`folders` finds and deletes checkpoints. `starts` chooses where a run begins, `restoring` takes it up from there, with
`data_positions` for its data and `resuming` for its progress.
"""
