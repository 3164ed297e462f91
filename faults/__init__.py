"""The fault suite: what a run survives, shown by injecting the faults for real.

    python -m faults                    # every check, two at once; a table, and faults.json
    python -m faults --quick --only C1,R4

A check kills, truncates, floods or poisons runs of the real scripts (`fine_tune_t5`, `pre_train_t5`) and says what it
saw. The tables of checks stand at the ends of `resume`, `checkpoints`, `signals`, `numerics`, `data`, `trackers` and
`security`; how one is written is shown in `harness`.
"""
