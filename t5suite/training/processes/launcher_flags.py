"""What launchers add to a command line for themselves: `deepspeed` puts `--local_rank=N` before all other words.

    >>> without_launcher_flags(["--local_rank=0", "predict", "--input", "rows.jsonl"])
    ['predict', '--input', 'rows.jsonl']

Ranks are told by the environment (RANK, LOCAL_RANK, WORLD_SIZE), which the same launchers set, too.
Imports no torch: every sub-command's command line goes through here.
"""

LAUNCHER_FLAGS = ("--local_rank", "--local-rank", "--_wandb")


def without_launcher_flags(argv) -> list[str]:
    """The command line without what launchers add to it.

    >>> without_launcher_flags(["--local_rank", "0", "--seed", "7"])
    ['--seed', '7']
    """
    kept, skip = [], False
    for i, token in enumerate(argv):
        if skip:
            skip = False
        elif token in LAUNCHER_FLAGS:
            skip = i + 1 < len(argv) and not argv[i + 1].startswith("--")
        elif not token.startswith(tuple(f"{flag}=" for flag in LAUNCHER_FLAGS)):
            kept.append(token)
    return kept
