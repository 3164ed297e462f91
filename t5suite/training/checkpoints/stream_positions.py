"""Training from a stream: where it stands goes into every checkpoint, and a resumed run goes on from there exactly.

    >>> trainer = StreamPreTrainer(stream=loader, model=model, args=args, collator=collator, ...)
    >>> trainer.train(resume_from_checkpoint="runs/x/checkpoint-500")
    >>> (Path("runs/x/checkpoint-1000") / "stream-rank-0.json").is_file()
    True

A stream has no length: `max_steps` says when training ends. Every rank writes the position of its own virtual streams;
a run that goes on with another number of ranks reads them all.
"""

import json
import logging
from pathlib import Path

from transformers import TrainerCallback

from t5suite.base.errors import ChangedDataError, ConfigError
from t5suite.data.corpora.stream_loader import StreamLoader, merge_states
from t5suite.runs.directory import write_json
from t5suite.runs.settings import allowed_names
from t5suite.training.pre_training import PreTrainer

logger = logging.getLogger(__name__)

POSITION_FILE = "stream-rank-{rank}.json"


def save_position(loader: StreamLoader, checkpoint) -> Path:
    """Writes the position of a rank's streams into a checkpoint."""
    path = Path(checkpoint) / POSITION_FILE.format(rank=loader.rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, loader.state_dict())
    return path


def load_position(loader: StreamLoader, checkpoint) -> None:
    """Makes a loader go on from a checkpoint, whatever the number of ranks that wrote it.

    Raises:
      ConfigError: the checkpoint has no position, or not of all streams; other settings.
      DataError: the text has changed.
    """
    paths = sorted(Path(checkpoint).glob(POSITION_FILE.format(rank="*")))
    if not paths:
        raise ConfigError(
            f"{checkpoint} has no {POSITION_FILE.format(rank=loader.rank)}: it was not trained from a stream, or its "
            "save was cut short. Resume from an earlier checkpoint, or begin the data anew with --reset data"
        )
    states = []
    for path in paths:
        try:
            states.append(json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise ConfigError(f"{path} is broken ({error}): resume from an earlier checkpoint") from None
    try:
        loader.load_state_dict(merge_states(states))
    except (ConfigError, KeyError) as error:
        raise ConfigError(f"{checkpoint}: {error}") from None


class StreamPositionCallback(TrainerCallback):
    """Keeps the epoch a share of the run, sees that positions and steps agree, and ends the workers."""

    def __init__(self, loader: StreamLoader):
        self.loader = loader
        self.ahead_of_steps = 0

    def on_step_end(self, args, state, control, **kwargs):
        """The trainer counts the epoch from where it resumed, for a stream is one epoch; a whole run counts from 0."""
        state.epoch = state.global_step / state.max_steps

    def on_train_begin(self, args, state, control, **kwargs):
        """Notes what has been given out."""
        self.ahead_of_steps = self.loader.num_given - self._of_steps(args, state)

    def on_save(self, args, state, control, **kwargs):
        """The position in the checkpoint belongs to its step."""
        assert self.loader.num_given - self._of_steps(args, state) == self.ahead_of_steps, "somebody reads ahead"

    def on_train_end(self, args, state, control, **kwargs):
        """Ends the workers and says what was read."""
        self.loader.close()
        read = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in self.loader.counts().items())
        logger.info("rank %d read %s", self.loader.rank, read)

    def _of_steps(self, args, state) -> int:
        """The data of the steps so far, over all ranks."""
        update = self.loader.batch_size * args.gradient_accumulation_steps * self.loader.world_size
        return state.global_step * update


class StreamTraining:
    """For a `SuiteTrainer` that trains from a stream; stands before it among the base classes."""

    def __init__(self, *, stream: StreamLoader, **kwargs):
        args = kwargs["args"]
        if args.max_steps <= 0:
            raise ConfigError(f"--max_steps {args.max_steps}: a stream has no end, so give the number of steps")
        # The stream itself goes on from its position; the trainer would draw and throw away all batches before it.
        args.ignore_data_skip = True
        super().__init__(**kwargs)
        self.stream = stream
        self.stream_position = StreamPositionCallback(stream)
        self.add_callback(self.stream_position)

    def get_train_dataloader(self) -> StreamLoader:
        """The stream, as it is: accelerate would read a batch ahead and count it as given out."""
        return self.stream

    def write_checkpoint(self, folder: Path) -> None:
        """A checkpoint comes with the position of every rank's streams."""
        super().write_checkpoint(folder)
        save_position(self.stream, folder)

    def examples_of(self, step: int) -> list[str]:
        """The run-long numbers of the data of an update, from the first to the last."""
        size = self.update_size()
        first = self.stream_position.ahead_of_steps + (step - 1) * size
        return [f"stream data {first} to {first + size - 1}"]

    def train(self, resume_from_checkpoint=None, **kwargs):
        """Trains on from the stream's position in the checkpoint; `--reset data` begins the stream anew."""
        if resume_from_checkpoint and not self.data_reset:
            self._load_position(resume_from_checkpoint)
        try:
            return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        finally:
            self.stream.close()

    def _load_position(self, checkpoint) -> None:
        try:
            load_position(self.stream, checkpoint)
        except ChangedDataError as error:
            if "data" not in allowed_names(self.args.allow_changed):
                raise
            logger.warning("%s; --allow_changed data: the stream begins anew", error)


class StreamPreTrainer(StreamTraining, PreTrainer):
    """A `PreTrainer` whose blocks come from a stream."""
