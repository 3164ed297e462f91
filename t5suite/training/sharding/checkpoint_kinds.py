"""Which runs can go on from which checkpoints: DeepSpeed's are its own, all others are one kind.

    >>> check_kind("runs/x/checkpoint-400", deepspeed=False, world_size=2)
    ConfigError: runs/x/checkpoint-400 was written under DeepSpeed; ...

One process, plain data parallelism and FSDP2 write the same files (`fsdp_state`), so each goes on from any other's.
DeepSpeed keeps a rank's moments and master weights in files of that rank, which only as many ranks can read.
"""

from pathlib import Path

from t5suite.base.errors import CheckpointError, ConfigError
from t5suite.training.checkpoints.manifests import read_manifest


def is_deepspeeds(folder) -> bool:
    """Whether a checkpoint's optimizer is in DeepSpeed's files."""
    return any(Path(folder).glob("global_step*"))


def check_kind(folder, deepspeed: bool, world_size: int) -> None:
    """Refuses a checkpoint that this run could only take the weights from.

    Raises:
      ConfigError: with what to do.
    """
    fresh = f"or start a new run with its weights: --model_name_or_path {folder}"
    if is_deepspeeds(folder) != deepspeed:
        was, now = ("under", "without") if is_deepspeeds(folder) else ("without", "under")
        raise ConfigError(f"{folder} was written {was} DeepSpeed, and this run is {now} it; run as before, {fresh}")
    if not deepspeed:
        return
    try:
        written_by = read_manifest(folder).world_size
    except CheckpointError:
        return  # it has none, and --trust_checkpoint; DeepSpeed says itself that ranks are missing
    if written_by != world_size:
        raise ConfigError(
            f"{folder}: DeepSpeed wrote it on {written_by} ranks, and only as many can go on from it, not {world_size};"
            f" start {written_by} processes, {fresh}"
        )
