"""Checkpoints: written completely or not at all, verified before they are read.

    >>> commit_checkpoint("runs/x", 400, write, ranks, run_id="5f3a9c01")
    PosixPath('runs/x/checkpoint-400')
    >>> choose_start("runs/x", "auto").checkpoint
    PosixPath('runs/x/checkpoint-400')

The way out: `saving` writes the contents, `committing` commits them, with the list of files of `manifests`. The way
back: `starts` chooses where a run begins, `restoring` takes it up from there, with `data_positions` for its data and
`resuming` for its progress. `folders` names, rotates and cleans up.
"""
