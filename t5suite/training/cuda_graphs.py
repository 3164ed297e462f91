"""CUDA graphs: a GPU is given a whole pass at once, for batches of a few shapes (`--torch_compile_mode reduce-overhead`).

    python fine_tune_t5.py --pack_rows --bf16 --torch_compile --torch_compile_mode reduce-overhead
    INFO 6 CUDA graphs are recorded before the first step, the largest first: 32 x 304, ..., 6 x 304

A step of a T5 of base size on short rows is 4,000 to 5,600 kernels, each of which costs the host some microseconds;
recorded once, they are started together. `torch.compile` records them (`max-autotune` does, too); a graph is bound to
the shape of its batch and to the memory that it was recorded in, hence

* shapes are few (`data.shapes`, `data.packed_rows`): a run with any number of them is refused;
* every shape is run before the first step, three times (compiled, recorded, replayed), the largest first, so that the
  others find memory that suits them, and that no step waits half a minute for a shape that comes up late;
* what outlives a pass is copied out of the graph's memory: the loss, which is added up until it is logged, and the
  gradients that a second micro-batch adds to. torch 2.13 lets autograd take over gradients as they lie in that memory,
  and says of the next pass that it has overwritten them (`test_what_outlives_a_pass_is_copied`).

The decisions and the copies are tested on a CPU; none of it has been run on a GPU yet.
"""  # noqa: E501

import logging
from collections.abc import Callable, Iterable

import torch
from transformers import TrainerCallback

from t5suite.base.errors import ConfigError
from t5suite.data.collators import Seq2SeqCollator
from t5suite.data.features import TokenArrays
from t5suite.training.updates.micro_batches import is_out_of_memory, random_state, restore_random_state

logger = logging.getLogger(__name__)

# What `torch.compile` calls the ways that record graphs.
MODES = ("reduce-overhead", "max-autotune")
# Graphs keep their memory to the end.
MOST_GRAPHS = 8
# Compiled in the first pass, recorded in the second, replayed in the third.
PASSES = 3


def records_graphs(args, num_shapes: int) -> bool:
    """Whether a run records CUDA graphs; warns where it was asked to and cannot.

    Args:
      num_shapes: how many shapes its batches have, 0 for any number.

    Raises:
      ConfigError: there are too many shapes, or something moves weights from where graphs were recorded.
    """
    mode = args.torch_compile_mode
    if not args.torch_compile or mode not in MODES:
        return False
    flag = f"--torch_compile_mode {mode}"
    if args.torch_compile_backend != "inductor":
        raise ConfigError(
            f"{flag} is a way of inductor's; leave out --torch_compile_backend {args.torch_compile_backend}"
        )
    if not 1 <= num_shapes <= MOST_GRAPHS:
        found = f"{num_shapes} shapes" if num_shapes else "any number of shapes"
        raise ConfigError(
            f"{flag} records a CUDA graph for each shape of a batch, and these have {found}: choose --length_buckets 1 "
            f"to {MOST_GRAPHS} (pre-training: leave out --pack)"
        )
    sharded = next((name for name in ("deepspeed", "fsdp") if getattr(args, name)), None)
    if sharded:
        raise ConfigError(f"{flag}: --{sharded} moves weights from where CUDA graphs were recorded; leave out the mode")
    if args.device.type != "cuda":
        logger.warning("%s records no CUDA graphs: this is a %s", flag, args.device.type)
        return False
    return True


class GraphedSteps:
    """For a trainer, behind whatever cuts micro-batches into pieces: passes may be replayed as CUDA graphs.

    Attributes:
      graph_batches: one for each shape that is recorded before the first step; None where no graphs are recorded.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.graph_batches = None
        self._kept: dict[torch.nn.Parameter, int] = {}
        self._trained: list[torch.nn.Parameter] = []

    def record_graphs(self, batches: Iterable[dict]) -> None:
        """From the beginning of the next training on, passes are graphs, recorded for these batches first.

        Raises:
          ConfigError: weights lie on several devices, or not where they are computed with.
        """
        devices = sorted({str(parameter.device) for parameter in self.model.parameters()})
        if len(devices) > 1 or self.is_deepspeed_enabled or self.is_fsdp_enabled:
            where = "are in pieces" if len(devices) == 1 else f"lie on {', '.join(devices)}"
            raise ConfigError(
                f"--torch_compile_mode {self.args.torch_compile_mode}: CUDA graphs need all weights in "
                f"one place, and these {where}; leave out the mode"
            )
        self.graph_batches = list(batches)
        self.add_callback(RecordCallback(self))

    def training_step(self, model, inputs, num_items_in_batch=None) -> torch.Tensor:
        """One pass, forward and backward, whose loss and gradients the next one leaves alone."""
        if self.graph_batches is None:
            return super().training_step(model, inputs, num_items_in_batch)
        self._keep_gradients(model)
        torch.compiler.cudagraph_mark_step_begin()
        return super().training_step(model, inputs, num_items_in_batch).clone()

    def _keep_gradients(self, model) -> None:
        """Copies what the update's passes before this one have left out of the graphs' memory, once.

        What is added to a copy stays in it. An update of one pass leaves nothing: its gradients are used where they
        are.
        """
        self._trained = self._trained or [parameter for parameter in model.parameters() if parameter.requires_grad]
        for parameter in self._trained:
            gradient = parameter.grad
            if gradient is None:
                self._kept.pop(parameter, None)
            elif self._kept.get(parameter) != gradient.data_ptr():
                parameter.grad = gradient.clone()
                self._kept[parameter] = parameter.grad.data_ptr()

    def run_all_shapes(self, model) -> None:
        """Every shape's passes, as an update's are made; weights, gradients and random numbers stay as they were."""
        shapes = [" x ".join(map(str, batch["input_ids"].shape)) for batch in self.graph_batches]
        logger.info(
            "%d CUDA graphs are recorded before the first step, the largest first: %s", len(shapes), ", ".join(shapes)
        )
        before = random_state()
        for batch, shape in zip(self.graph_batches, shapes, strict=True):
            try:
                for _ in range(PASSES):
                    (ready,), items = self.get_batch_samples(iter([batch]), 1, self.args.device)
                    GraphedSteps.training_step(self, model, ready, items)
                    model.zero_grad(set_to_none=True)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                logger.warning("out of memory while the graph of %s was recorded; its steps are cut in pieces", shape)
                model.zero_grad(set_to_none=True)
        restore_random_state(before)


class RecordCallback(TrainerCallback):
    """Runs all shapes once training is set up."""

    def __init__(self, trainer):
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        """The model is wrapped and compiled by now; nothing has been counted."""
        if self.trainer.graph_batches and state.global_step < state.max_steps:
            self.trainer.run_all_shapes(self.trainer.model_wrapped)
            self.trainer.monitor.on_train_begin(args, state, control)  # the first step's time begins here


def batches_of_all_shapes(collator: Seq2SeqCollator, features: TokenArrays, make: Callable | None = None) -> list[dict]:
    """A batch of each shape that a collator with few shapes makes, the largest first; less that of an example a row,
    which packed examples need next to never, and which would take several times the memory of the others.

    >>> [batch["input_ids"].shape for batch in batches_of_all_shapes(collator, features)]     # widths=(32, 64)
    [torch.Size([8, 64]), torch.Size([8, 32])]

    Args:
      make: what makes a run's batches, where something stands around the collator.
    """
    make = make or collator
    row_lengths, row_counts = getattr(collator, "row_lengths", None), getattr(collator, "row_counts", ())
    if row_counts:
        shapes = [(count, *row_lengths) for count in row_counts[: max(1, len(row_counts) - 1)]]
    else:
        shapes = [(1, width, target) for width in collator.widths for target in collator.target_widths or (1,)]
    batches = [make([_example(features, width, target)] * count) for count, width, target in shapes]
    return sorted(batches, key=lambda batch: -(batch["input_ids"].numel() + batch["labels"].numel()))


def _example(features: TokenArrays, width: int, target: int) -> dict[str, list]:
    """One of the first example's columns, of so many tokens."""
    first = features[0]
    lengths = {"input_ids": width, "token_type_ids": width, "labels": target}
    return {name: [values[0] if len(values) else 1] * lengths[name] for name, values in first.items()}
