"""What a checkpoint contains, and how it is written: the one way out.

    checkpoint-400/
      checkpoint.json                      sizes and SHA-256 of all other files: written last, checked first
      model.safetensors, config.json, ...  what `from_pretrained` loads
      optimizer.pt, scheduler.pt           optimizer and scheduler state, bit for bit; under fp16 also scaler.pt
      rank-0.json, rank-1.json             each rank's random state, and its loss since the last log
      trainer_state.json, position.json    the trainer's own state; how many examples were seen
      progress.json                        loss so far, callbacks' state (lines of metrics.jsonl etc.), what is pending

`torch.save` writes the states, under the names of Hugging Face's trainer. They are read with `weights_only=True`, so
that nothing in them can run code; `save_state` refuses a state that could not be read that way.

FSDP2 shards weights and moments: `whole_state` gathers them on rank 0, so that a checkpoint has the same files as a
single process's, and any number of ranks can resume from it. Rank 0 needs main memory for the whole state: 12 bytes per
parameter for Adam.

A final model is written in a similar way: its files replace older ones once all of them are on disk. `restoring` is the
way back.
"""

import contextlib
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from accelerate.utils import recursively_apply
from torch.distributed.tensor import DTensor
from torch.serialization import get_unsafe_globals_in_checkpoint

from t5suite.base.errors import ConfigError
from t5suite.base.files import FULL, follow_umask, sync_file, sync_folder, write_json
from t5suite.models.adapter_files import save_adapter
from t5suite.models.adapters import is_adapted
from t5suite.models.generation_settings import save_with_generation_settings
from t5suite.tasks.task_card import write_task_card
from t5suite.training.checkpoints.committing import as_os_error, commit_checkpoint, commit_weights
from t5suite.training.checkpoints.folders import rotate
from t5suite.training.checkpoints.manifests import files_below
from t5suite.training.checkpoints.starts import POSITION_FILE, Position
from t5suite.training.processes.ranks import Ranks
from t5suite.training.processes.weight_check import check_agreement, check_weights

NEW_MODEL = ".saving-model"
# Names of files with states, without `.pt`.
OPTIMIZER = "optimizer"
SCHEDULER = "scheduler"
SCALER = "scaler"
PROGRESS_FILE = "progress.json"
RANK_FILE = "rank-{rank}.json"


class Checkpoints:
    """Writes a run's checkpoints and models; every rank calls each method.

    Args:
      fsdp, deepspeed: whether FSDP or DeepSpeed shards the weights.
      stop: requests to stop (signals), which wait while a checkpoint is written.

    Attributes:
      run_details: what every manifest says about the run: `run_id`, and in `details` the fingerprint of its
        settings and what it selects checkpoints by.
      task_card: the task card that every saved model gets (`t5suite.tasks.task_card`), or None.
    """

    def __init__(self, args, accelerator, ranks: Ranks, stop, *, fsdp: bool = False, deepspeed: bool = False):
        self.args = args
        self.accelerator = accelerator
        self.ranks = ranks
        self.stop = stop
        self.fsdp = fsdp
        self.deepspeed = deepspeed
        self.run_details = {"run_id": "", "details": {}}
        self.task_card = None
        self.keep_every = args.keep_every
        self.save_total_limit = args.save_total_limit

    def commit(self, model, state, write: Callable[[Path], None]) -> Path:
        """Commits a complete `checkpoint-N`, or raises and leaves the previous one unchanged.

        Args:
          write: writes this rank's files into a folder.
        """
        check_weights(model, state.global_step, self.ranks)
        self.check_agreement(model, state.global_step)
        directory = self.args.output_dir
        best = Path(directory) / f"checkpoint-{state.best_global_step}"
        if state.best_global_step and (state.best_global_step == state.global_step or best.is_dir()):
            state.best_model_checkpoint = str(best)
        with self.stop.phase("saving"):
            path = commit_checkpoint(directory, state.global_step, write, self.ranks, **self.run_details)
            if self.ranks.is_main:
                rotate(directory, self.save_total_limit, self.keep_every)
        return path

    def check_agreement(self, model, step: int) -> None:
        """Checks that all ranks have the same weights, unless FSDP or DeepSpeed shards them."""
        if self.ranks.world_size > 1 and not (self.deepspeed or self.fsdp):
            check_agreement(model, self.ranks, step)

    def write_optimizer(self, folder: Path, optimizer, scheduler) -> None:
        """Writes the state of optimizer, scheduler and loss scaler; DeepSpeed writes its own."""
        state = optimizer.state_dict()
        if self.fsdp:
            state = whole_state(state, keep=self.args.should_save)
        if not self.args.should_save:
            return
        save_state(folder, OPTIMIZER, state)
        save_state(folder, SCHEDULER, scheduler.state_dict())
        scaler = getattr(self.accelerator, "scaler", None)
        if scaler is not None:
            save_state(folder, SCALER, scaler.state_dict())

    def write_progress(self, folder: Path, of_rank: dict, progress: dict, position: Position) -> None:
        """Writes this rank's random state and sums, and the progress that is the same on all ranks."""
        state = {"random_state": random_state(), **of_rank}
        write_json(folder / RANK_FILE.format(rank=self.ranks.rank), state, indent=None)
        if self.args.should_save:
            write_json(folder / POSITION_FILE, asdict(position))
            write_json(folder / PROGRESS_FILE, progress)

    def write_model(self, folder: Path, model, tokenizer, state_dict=None) -> None:
        """Writes weights, configuration, tokenizer and task card; not training arguments, which may contain secrets."""
        if not self.args.should_save:
            return
        folder.mkdir(parents=True, exist_ok=True)
        model = self.accelerator.unwrap_model(model, keep_torch_compile=False)
        if is_adapted(model):
            save_adapter(model, folder, state_dict, run_folder=self.args.output_dir)
        else:
            if state_dict is not None:
                # Gathered from shards, tied weights no longer share memory: each would be saved under every name.
                tied = getattr(model, "all_tied_weights_keys", None) or {}
                state_dict = {name: tensor for name, tensor in state_dict.items() if tied.get(name) not in state_dict}
            save_with_generation_settings(model, folder, state_dict=state_dict)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        if self.task_card is not None:
            write_task_card(folder, self.task_card)

    def replace_model(self, folder: Path, model, step: int, write: Callable[[Path], None]) -> None:
        """Writes a model for others to load: its files replace older ones once all of them are on disk.

        Args:
          write: writes this rank's files of the model into a folder.
        """
        check_weights(model, step, self.ranks)
        new = folder / NEW_MODEL
        self.ranks.together(shutil.rmtree, new, ignore_errors=True)
        with _naming_failed_writes(folder, model):
            try:
                write(new)
            except Exception:
                shutil.rmtree(new, ignore_errors=True)
                raise
        self.ranks.barrier()
        self.ranks.together(_move_into_place, new, folder)

    def replace_best(self, folder: Path, model, step: int, write: Callable[[Path], None]) -> None:
        """Writes a task's best weights in place of its former ones, with a manifest that shows later damage.

        Args:
          write: writes this rank's files of the model into a folder.
        """
        check_weights(model, step, self.ranks)
        with self.stop.phase("saving"), _naming_failed_writes(folder, model):
            commit_weights(folder, step, write, self.ranks, self.run_details["run_id"])


@contextlib.contextmanager
def _naming_failed_writes(folder: Path, model):
    """A write that a library has failed at is raised as an `OSError` that names the folder."""
    try:
        yield
    except Exception as error:
        failure = as_os_error(error, folder)
        if failure is None:
            raise
        if failure.errno in FULL:
            failure.bytes_wanted = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        raise failure from None


def _move_into_place(new: Path, folder: Path) -> None:
    """Replaces each file atomically; the weights, which readers look for, are moved last."""
    names = sorted(files_below(new), key=lambda name: name.endswith(".safetensors"))
    follow_umask(new / name for name in names)
    for name in names:
        sync_file(new / name)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(new / name, folder / name)
    sync_folder(folder)
    shutil.rmtree(new)


def save_state(folder, name: str, state) -> None:
    """Writes a nested state of tensors and plain data as `<name>.pt`.

    Raises:
      ConfigError: it contains other objects, which could not be read back without running code.
      OSError: the write failed.
    """
    path = Path(folder) / f"{name}.pt"
    state = recursively_apply(_readable_by_every_torch, state)
    try:
        with open(path, "wb") as file:
            torch.save(state, file)
    except (OSError, RuntimeError) as error:
        cause = error.__context__ if isinstance(error, RuntimeError) else error  # torch's zip writer hides it
        if not isinstance(cause, OSError):
            raise
        raise OSError(cause.errno, cause.strerror, str(path)) from None
    unsafe = get_unsafe_globals_in_checkpoint(path)
    if unsafe:
        raise ConfigError(f"{name}: objects of {', '.join(unsafe)} cannot be kept in a checkpoint; keep plain numbers")


def _readable_by_every_torch(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of a device's own subclass as one of the CPU."""
    return tensor if type(tensor) in (torch.Tensor, torch.nn.Parameter) else tensor.detach().cpu()


def random_state() -> dict:
    """The state of this process's random number generators (python, numpy, torch on CPU and GPUs), as JSON values.

    >>> random_state()["python"][0]                                     # the version of Python's own generator
    3
    """
    name, keys, *position = np.random.get_state()
    state = {
        "python": list(random.getstate()),
        "numpy": [name, keys.tolist(), *position],
        "torch": torch.get_rng_state().tolist(),
    }
    if torch.cuda.is_available():
        state["cuda"] = [device_state.tolist() for device_state in torch.cuda.get_rng_state_all()]
        state["cuda_device"] = torch.cuda.current_device()
    return state


def whole_state(state, keep: bool):
    """A nested state with every sharded tensor gathered in main memory, or replaced by None if not `keep`.

    >>> state = whole_state(optimizer.state_dict(), keep=rank == 0)     # every rank; a plain state on rank 0
    >>> optimizer.load_state_dict(state_in_pieces(state, optimizer))    # `restoring`: every rank gets its pieces

    Every rank must call it with a state of the same structure.
    """
    if isinstance(state, DTensor):
        tensor = state.full_tensor()
        return tensor.cpu() if keep else None
    if isinstance(state, dict):
        return {key: whole_state(value, keep) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(whole_state(value, keep) for value in state)
    return state
