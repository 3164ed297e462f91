"""What a checkpoint holds, and how a trainer goes on from it exactly; stands before `Seq2SeqTrainer` among the bases.

    checkpoint-400/
      checkpoint.json                      sizes and SHA-256 of all the others: written last, looked at first
      model.safetensors, config.json, ...  what `from_pretrained` loads
      optimizer.pt, scheduler.pt           moments and the like, bit by bit; under fp16 scaler.pt
      rank-0.json, rank-1.json             each rank's random numbers, and its loss since the last log
      trainer_state.json, position.json    the trainer's own state; how many examples were seen
      progress.json                        loss so far, lines of metrics.jsonl, what callbacks remember, what is pending

transformers 5.23 has no public hook around a save or a load of these, so `_save_checkpoint`, `_load_optimizer_and_scheduler`,
`_load_scaler`, `_load_rng_state` and `_load_best_model` are overridden under their own names (tests/test_exact_resume.py
tells when one is gone).
"""  # noqa: E501

import logging
import os
import shutil
from pathlib import Path

import torch
from transformers.trainer_callback import ExportableState

from t5suite.base.errors import CheckpointError
from t5suite.base.files import follow_umask, sync_file, sync_folder
from t5suite.models.adapter_files import save_adapter
from t5suite.models.adapters import is_adapted
from t5suite.models.weights import load_weights
from t5suite.runs.directory import read_json, write_json
from t5suite.tasks.task_card import write_task_card
from t5suite.training.checkpoints.committing import as_os_error, commit_checkpoint
from t5suite.training.checkpoints.folders import STATE_FILE, rotate
from t5suite.training.checkpoints.manifests import damage, files_below
from t5suite.training.checkpoints.resuming import PROGRESS_FILE, RANK_FILE
from t5suite.training.checkpoints.starts import write_position
from t5suite.training.checkpoints.states import (
    load_state,
    random_state,
    restore_optimizer,
    restore_random_state,
    save_state,
    state_in_pieces,
    whole_state,
)
from t5suite.training.hub_uploads import HubUploads
from t5suite.training.processes.ranks import Ranks
from t5suite.training.processes.signals import stop_requests
from t5suite.training.processes.weight_check import check_agreement, check_weights

logger = logging.getLogger(__name__)

NEW_MODEL = ".saving-model"
OPTIMIZER, SCHEDULER, SCALER = "optimizer", "scheduler", "scaler"


class Checkpointing(HubUploads):
    """For a `Seq2SeqTrainer`: checkpoints are committed whole, and a resumed run equals an uninterrupted one.

    Attributes:
      ranks: how the processes agree.
      stop: requests to stop (signals).
      run_details: what every checkpoint says of its run: `run_id`, and in `details` the fingerprint of its settings.
      task_card: what every saved model says of its task (`t5suite.tasks.task_card`); None without one.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.ranks = Ranks.of(self.accelerator)
        self.stop = stop_requests()
        self.run_details = {"run_id": "", "details": {}}
        self.task_card = None
        self.keep_every, self.save_total_limit = self.args.keep_every, self.args.save_total_limit
        # Rotation is ours: the trainer's own deletes in place, so that a kill leaves half a checkpoint.
        self.args.save_total_limit = None

    # -----------------------------------------------------------------------------------------------------------------
    # Saving

    def _save_checkpoint(self, model, trial=None) -> None:
        """Commits `checkpoint-N` whole, or fails with the previous one untouched."""
        args, state = self.args, self.state
        check_weights(self.model, state.global_step, self.ranks)
        self.check_agreement()
        self.store_flos()
        best = Path(args.output_dir) / f"checkpoint-{state.best_global_step}"
        if state.best_global_step and (state.best_global_step == state.global_step or best.is_dir()):
            state.best_model_checkpoint = str(best)
        with self.stop.phase("saving"):
            path = commit_checkpoint(
                args.output_dir, state.global_step, self.write_checkpoint, self.ranks, **self.run_details
            )
            if self.ranks.is_main:
                rotate(args.output_dir, self.save_total_limit, self.keep_every, state.best_model_checkpoint)
        self.push_checkpoint(path)

    def write_checkpoint(self, folder: Path) -> None:
        """This rank's files of a checkpoint."""
        self.save_model(str(folder), _internal_call=True)
        if not self.args.save_only_model:
            self._write_optimizer(folder)
        state = {"random_state": random_state(), **self.rank_progress()}
        write_json(folder / RANK_FILE.format(rank=self.ranks.rank), state)
        if self.args.should_save:
            write_position(folder, self.position())
            write_json(folder / PROGRESS_FILE, self.progress())
            self._write_state(folder)

    def _write_optimizer(self, folder: Path) -> None:
        """Optimizer, schedule and loss scaler; those of DeepSpeed as it writes them."""
        if self.is_deepspeed_enabled:
            self._save_optimizer_and_scheduler(str(folder))
            return
        state = self.optimizer.state_dict()
        if self.is_fsdp_enabled:
            state = whole_state(state, keep=self.args.should_save)
        if self.args.should_save:
            save_state(folder, OPTIMIZER, state)
            save_state(folder, SCHEDULER, self.lr_scheduler.state_dict())
        scaler = getattr(self.accelerator, "scaler", None)
        if scaler is not None and self.args.should_save:
            save_state(folder, SCALER, scaler.state_dict())

    def _write_state(self, folder: Path) -> None:
        """The trainer's own state, with that of its callbacks."""
        for part in [*self.callback_handler.callbacks, self.control]:
            if isinstance(part, ExportableState):
                self.state.stateful_callbacks[type(part).__name__] = part.state()
        self.state.save_to_json(str(folder / STATE_FILE))

    def _save(self, output_dir=None, state_dict=None) -> None:
        """Weights, configuration and tokenizer; not the training arguments, which may hold tokens."""
        if not self.args.should_save:
            return
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        if is_adapted(model):
            save_adapter(model, folder, state_dict, run_folder=self.args.output_dir)
        elif state_dict is not None:
            # Put together from pieces, tied weights do not share memory any more: each would be written by every name.
            tied = getattr(model, "all_tied_weights_keys", None) or {}
            state_dict = {name: value for name, value in state_dict.items() if tied.get(name) not in state_dict}
        if not is_adapted(model):
            model.save_pretrained(folder, state_dict=state_dict)
        if self.processing_class is not None:
            self.processing_class.save_pretrained(folder)
        if self.task_card is not None:
            write_task_card(folder, self.task_card)

    def save_model(self, output_dir=None, _internal_call: bool = False) -> None:
        """A model for others to load: its files take the places of older ones when all are on the disk."""
        if _internal_call and self.is_fsdp_enabled:
            # Whole weights on rank 0; the trainer writes none where it writes pieces (SHARDED_STATE_DICT).
            self._save(output_dir, state_dict=self.accelerator.get_state_dict(self.model))
            return
        if _internal_call:
            super().save_model(output_dir, _internal_call)
            return
        check_weights(self.model, self.state.global_step, self.ranks)
        folder = Path(output_dir or self.args.output_dir)
        new = folder / NEW_MODEL
        self.ranks.together(shutil.rmtree, new, ignore_errors=True)
        try:
            self.save_model(str(new), _internal_call=True)
        except Exception as error:
            shutil.rmtree(new, ignore_errors=True)
            failure = as_os_error(error, folder / "model.safetensors")
            if failure is None:
                raise
            failure.bytes_wanted = sum(p.numel() * p.element_size() for p in self.model.parameters())
            raise failure from None
        self.ranks.barrier()
        self.ranks.together(_move_into_place, new, folder)

    def check_agreement(self) -> None:
        """All ranks of plain data parallelism hold the same weights."""
        if self.ranks.world_size > 1 and not (self.is_deepspeed_enabled or self.is_fsdp_enabled):
            check_agreement(self.model, self.ranks, self.state.global_step)

    # -----------------------------------------------------------------------------------------------------------------
    # Going on

    def _load_optimizer_and_scheduler(self, checkpoint) -> None:
        """Bit by bit; DeepSpeed's and FSDP's own files as the stock trainer reads them."""
        if checkpoint is None or self.is_deepspeed_enabled or not (Path(checkpoint) / f"{OPTIMIZER}.pt").is_file():
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        state = load_state(checkpoint, OPTIMIZER)
        if self.is_fsdp_enabled:
            state = state_in_pieces(state, self.optimizer)
        restore_optimizer(self.optimizer, state)
        self.lr_scheduler.load_state_dict(load_state(checkpoint, SCHEDULER))

    def _load_from_checkpoint(self, checkpoint, model=None) -> None:
        """All weights; under FSDP each rank takes its pieces of the whole ones."""
        load_weights(self.accelerator.unwrap_model(self.model, keep_torch_compile=False), checkpoint)

    def _load_scaler(self, checkpoint) -> None:
        """The loss scaler's state, where there is one: a run that went from --fp16 to --bf16 has none any more."""
        if checkpoint is not None and self.accelerator.scaler is not None:
            if (Path(checkpoint) / f"{SCALER}.pt").is_file():
                self.accelerator.scaler.load_state_dict(load_state(checkpoint, SCALER))

    def _load_rng_state(self, checkpoint) -> None:
        """This rank's random numbers; a rank that was not there draws from numbers of its own."""
        if checkpoint is None or not any(Path(checkpoint).glob(RANK_FILE.format(rank="*"))):
            super()._load_rng_state(checkpoint)
            return
        path = Path(checkpoint) / RANK_FILE.format(rank=self.ranks.rank)
        if path.is_file():
            restore_random_state(read_json(path)["random_state"])
        else:
            torch.manual_seed(hash((self.args.seed, self.state.global_step, self.ranks.rank)))

    def _load_best_model(self) -> None:
        """The best checkpoint's weights, if they are still what was written."""
        best = self.state.best_model_checkpoint
        reason = self.ranks.together(damage, best)
        if reason:
            raise CheckpointError(f"the best checkpoint, {best}, is damaged: {reason}; no other has its weights")
        if self.is_deepspeed_enabled:
            super()._load_best_model()
        else:
            self._load_from_checkpoint(best)


def _move_into_place(new: Path, folder: Path) -> None:
    """Each file is whole at any time; the last one moved is the weights', which a reader looks for."""
    names = sorted(files_below(new), key=lambda name: name.endswith(".safetensors"))
    follow_umask(new / name for name in names)
    for name in names:
        sync_file(new / name)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(new / name, folder / name)
    sync_folder(folder)
    shutil.rmtree(new)
