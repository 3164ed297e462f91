"""The position in the training data: the examples of each update, and what a checkpoint saves about it.

    >>> order = ExampleOrder(shuffled_order(21, seed=0), name_example="rte.train:{}".format)
    >>> order.examples_of(step=3, update_size=8)                # of rows: an epoch's last update may be smaller
    ['rte.train:4', 'rte.train:17', 'rte.train:0', 'rte.train:9', 'rte.train:20']

A stream has no length: `max_steps` says when training ends. Every rank writes the position of its own virtual streams
(`stream-rank-0.json`); a resumed run reads all of them, even with another number of ranks, and continues exactly.
"""

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path

from t5suite.base.errors import ChangedDataError, ConfigError
from t5suite.base.files import write_json
from t5suite.data.batches.samplers import shifted_order
from t5suite.data.streams.loader import StreamLoader
from t5suite.data.streams.positions import BEGIN_ANEW, merge_states
from t5suite.runs.settings import allowed_names
from t5suite.training.callback import Callback
from t5suite.training.checkpoints.starts import Start, examples_before

logger = logging.getLogger(__name__)

POSITION_FILE = "stream-rank-{rank}.json"


def load_position(loader: StreamLoader, checkpoint) -> None:
    """Resumes a loader from a checkpoint, even if another number of ranks wrote it.

    Raises:
      ConfigError: the position is missing, incomplete or unreadable, or the settings differ.
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


class ExampleOrder:
    """Training examples in a fixed order: one epoch after another, split into updates.

    Args:
      order: epoch -> the indices of its examples in training order; None: there are no training examples.
      name_example: index -> the example's name in incidents.
      order_by_update_size: examples an update -> the order in which so many of similar length are together; None: the
        order does not depend on it.

    Attributes:
      offset: examples seen beyond what the step implies, for example after a resume from another run's checkpoint.
      begun_epoch: the epoch within which a checkpoint of another update size was written; its order stays that of the
        checkpoint, so that no example comes twice.
      begun_update_size: the update size of its order.
    """

    def __init__(self, order=None, name_example=int, order_by_update_size: Callable | None = None):
        self.order = order
        self.name_example = name_example
        self.order_by_update_size = order_by_update_size
        self.offset = 0
        self.begun_epoch: int | None = None
        self.begun_update_size = 0

    @property
    def length(self) -> int:
        """Examples per epoch; 0 if there are none."""
        return len(self.order(0)) if self.order else 0

    def shifted(self):
        """Epoch -> the indices of its examples, shifted by `offset`."""
        order = self.order
        if self.begun_epoch is not None:
            order = replaced_epoch(order, self.begun_epoch, self.order_by_update_size(self.begun_update_size))
        return shifted_order(order, self.length, self.offset) if self.offset else order

    def seen(self, step: int, update_size: int) -> int:
        """The number of examples that the run has seen after a step."""
        if not self.length:
            return step * update_size + self.offset
        return examples_before(step, self.length, update_size) + self.offset

    def update_size_of_order(self, examples: int, update_size: int) -> int:
        """The update size of the order in the epoch that goes on after so many examples."""
        if self.begun_epoch is not None and examples // self.length == self.begun_epoch:
            return self.begun_update_size
        return update_size

    def examples_of(self, step: int, update_size: int) -> list:
        """The names of an update's examples over all ranks; `step` 1 is the first update."""
        length = self.length
        if not length:
            return []
        epoch, update = divmod(step - 1, math.ceil(length / update_size))
        indices = self.shifted()(epoch)[update * update_size : (update + 1) * update_size]
        return [self.name_example(int(index)) for index in indices]

    def save(self, checkpoint) -> None:
        """Saves nothing: `position.json` has the number of examples seen."""

    def load(self, start: Start, update_size: int, allow_changed: str | None = None) -> None:
        """Continues with the example after the last one seen."""
        if start.checkpoint is None or not self.length:
            return
        examples = start.examples_seen(self.length, update_size)
        self.offset = examples - examples_before(start.step, self.length, update_size)
        update_size_before = start.update_size_of_order
        if update_size_before in (None, update_size) or self.order_by_update_size is None:
            return
        if examples % self.length:
            self.begun_epoch = examples // self.length
            self.begun_update_size = update_size_before

    def close(self) -> None:
        """Nothing is open."""


def replaced_epoch(order, epoch_replaced: int, order_of_epoch):
    """Epoch -> the indices of its examples: one epoch has another order.

    >>> order = replaced_epoch(lambda epoch: [1, 2, 3], 0, lambda epoch: [3, 2, 1])
    >>> order(0), order(1)
    ([3, 2, 1], [1, 2, 3])
    """
    return lambda epoch: order_of_epoch(epoch) if epoch == epoch_replaced else order(epoch)


class StreamSource(Callback):
    """A stream of training data: sets the epoch to the fraction of the run, and checks that position and step agree.

    Raises:
      ConfigError: `max_steps` is not positive, so training would have no end.
    """

    length = 0
    offset = 0

    def __init__(self, loader: StreamLoader, max_steps: int):
        if max_steps <= 0:
            raise ConfigError(f"--max_steps {max_steps}: a stream has no end, so give the number of steps")
        self.loader = loader
        self.ahead_of_steps = 0

    def seen(self, step: int, update_size: int) -> int:
        """The number of examples that the run has seen after a step."""
        return self.ahead_of_steps + step * update_size

    def update_size_of_order(self, examples: int, update_size: int) -> int:
        """The update size; a stream's order does not depend on it."""
        return update_size

    def examples_of(self, step: int, update_size: int) -> list[str]:
        """The run-long indices of an update's examples, as one range."""
        first = self.ahead_of_steps + (step - 1) * update_size
        return [f"stream data {first} to {first + update_size - 1}"]

    def save(self, checkpoint) -> None:
        """Writes the position of this rank's streams."""
        write_json(Path(checkpoint) / POSITION_FILE.format(rank=self.loader.rank), self.loader.state_dict())

    def load(self, start: Start, update_size: int, allow_changed: str | None = None) -> None:
        """Continues where the checkpoint's run stopped, unless `--reset data`.

        Raises:
          ChangedDataError: the text has changed, and `--allow_changed data`, which starts over, is not given.
        """
        if start.checkpoint is None or "data" in start.reset:
            return
        try:
            load_position(self.loader, start.checkpoint)
        except ChangedDataError as error:
            if "data" not in allowed_names(allow_changed):
                raise ChangedDataError(
                    f"{error}; {BEGIN_ANEW}, or --allow_changed data, which works in sharded training, too"
                ) from None
            logger.warning("%s; --allow_changed data: the stream begins anew", error)

    def close(self) -> None:
        """Stops the workers."""
        self.loader.close()

    def on_step_end(self, args, state, control, **kwargs):
        """Sets the epoch from the run's start; the trainer counts from the resumed step, as a stream is one epoch."""
        state.epoch = state.global_step / state.max_steps

    def on_train_begin(self, args, state, control, **kwargs):
        self.ahead_of_steps = self.loader.num_given - self._of_steps(args, state)

    def on_save(self, args, state, control, **kwargs):
        """Checks that the position in the checkpoint belongs to its step."""
        assert self.loader.num_given - self._of_steps(args, state) == self.ahead_of_steps, "somebody reads ahead"

    def on_train_end(self, args, state, control, **kwargs):
        self.loader.close()
        read = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in self.loader.counts().items())
        logger.info("rank %d read %s", self.loader.rank, read)

    def _of_steps(self, args, state) -> int:
        """The number of examples in the steps so far, over all ranks."""
        update = self.loader.batch_size * args.gradient_accumulation_steps * self.loader.world_size
        return state.global_step * update
