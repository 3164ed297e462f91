"""What a run did, step by step, as bits: batches, losses, rates, weights, optimizer.

    >>> traces.compare(traces.read(killed_and_resumed), traces.read(uninterrupted))
    'step 5 rank 0: loss 0x1.9p+1 there, 0x1.ap+1 here'

Every victim writes one line an update and rank, beside its run directory. The processes of one run, one after the
other, append to the same file: a step that is done again after a kill must give the same line again.
"""

import hashlib
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

# What two runs that are the same have in common, in the order in which one looks for the cause of a difference.
EXACT = ("batch", "loss", "learning_rate", "weights", "optimizer")


def file_name(rank: int) -> str:
    """The file of a rank's lines."""
    return f"rank-{rank}.jsonl"


@dataclass
class Trace:
    """A run's lines.

    Attributes:
      steps: {step: {rank: line}}, of a step that was done again its last line.
      order: the steps in the order in which rank 0 did them, those done again included.
      conflict: the first step that was done again with another outcome.
    """

    steps: dict[int, dict[int, dict]] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    conflict: str | None = None

    @property
    def redone(self) -> int:
        """How many steps were done more than once."""
        return len(self.order) - len(set(self.order))

    def rows(self, step: int) -> list[str]:
        """Hashes of the examples of an update without their padding, over all ranks, sorted."""
        return sorted(row for line in self.steps[step].values() for row in line["rows"])


def read(directory) -> Trace:
    """The trace of the run in a directory. Of a step that was done by two ranks and again by one, the one counts."""
    trace, lines = Trace(), []
    for path in Path(f"{directory}.trace").glob("rank-*.jsonl"):
        lines += map(json.loads, _whole_lines(path))
    for line in sorted(lines, key=lambda line: (line["time"], line["rank"])):
        if line["rank"] == 0:
            trace.order.append(line["step"])
        ranks = trace.steps.setdefault(line["step"], {})
        before = ranks.get(line["rank"])
        if before and before["world_size"] == line["world_size"] and trace.conflict is None:
            trace.conflict = _difference(line, before, "at first", "done again")
        if any(other["world_size"] != line["world_size"] for other in ranks.values()):
            ranks.clear()
        ranks[line["rank"]] = line
    return trace


def compare(ours: Trace, reference: Trace, keys=EXACT) -> str | None:
    """The first difference of two runs, or None: every step of every rank, bit by bit."""
    if ours.conflict:
        return ours.conflict
    for step in sorted({*ours.steps, *reference.steps}):
        here, there = ours.steps.get(step), reference.steps.get(step)
        if here is None or there is None:
            return f"step {step} was done {'here' if there is None else 'there'} only"
        if set(here) != set(there):
            return f"step {step}: ranks {sorted(there)} there, {sorted(here)} here"
        for rank in sorted(here):
            found = _difference(here[rank], there[rank], "there", "here", keys)
            if found:
                return found
    return None


def last_step(path: Path) -> int:
    """The last step in a trace's file; 0 before the first."""
    lines = _whole_lines(path) if path.exists() else []
    return json.loads(lines[-1])["step"] if lines else 0


def _difference(line: dict, other: dict, other_name: str, name: str, keys=EXACT) -> str | None:
    for key in keys:
        if line[key] != other[key]:
            where = f"step {line['step']} rank {line['rank']}"
            return f"{where}: {key} {str(other[key])[:20]} {other_name}, {str(line[key])[:20]} {name}"
    return None


def _whole_lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]


# ---------------------------------------------------------------------------------------------------------------------
# In the victim


def install(folder: str) -> None:
    """Makes every `SuiteTrainer` of this process write its trace into a folder."""
    from t5suite.training.trainer import SuiteTrainer

    Path(folder).mkdir(parents=True, exist_ok=True)
    make, step = SuiteTrainer.__init__, SuiteTrainer.training_step

    def init(self, *arguments, **keywords):
        make(self, *arguments, **keywords)
        self.fault_trace = _recorder(self, folder)
        self.add_callback(self.fault_trace)

    def training_step(self, model, inputs, *arguments, **keywords):
        self.fault_trace.note_batch(inputs)
        loss = step(self, model, inputs, *arguments, **keywords)
        self.fault_trace.losses.append(float(loss))
        return loss

    SuiteTrainer.__init__, SuiteTrainer.training_step = init, training_step


def _recorder(trainer, folder):
    from transformers import TrainerCallback

    class Recorder(TrainerCallback):
        """Collects the micro-batches of an update and writes its line."""

        def __init__(self):
            self.rank, self.world_size = trainer.args.process_index, trainer.args.world_size
            self.path = Path(folder) / file_name(self.rank)
            self.batches, self.rows, self.losses = [], [], []

        def note_batch(self, inputs) -> None:
            self.batches.append(
                tensors_hash({name: inputs[name] for name in ("input_ids", "labels") if name in inputs})
            )
            self.rows += row_hashes(inputs)

        def on_step_end(self, args, state, control, model=None, optimizer=None, lr_scheduler=None, **kwargs):
            line = {
                "step": state.global_step,
                "time": time.time(),
                "rank": self.rank,
                "world_size": self.world_size,
                "batch": _sha(" ".join(self.batches).encode()),
                "rows": self.rows,
                "loss": sum(self.losses).hex(),
                "learning_rate": " ".join(float(rate).hex() for rate in lr_scheduler.get_last_lr()),
                "weights": tensors_hash(trainer.accelerator.unwrap_model(trainer.model).state_dict()),
                "optimizer": tensors_hash(optimizer.state_dict()),
            }
            self.batches, self.rows, self.losses = [], [], []
            append_line(self.path, line)

    return Recorder()


def append_line(path, line: dict) -> None:
    """One write of one whole line: a process that is killed the moment after has written it."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


def tensors_hash(values) -> str:
    """SHA-256 of everything in nested dicts and lists: tensors by type, shape and bytes, other values as text."""
    digest = hashlib.sha256()
    _feed(digest, values)
    return digest.hexdigest()


def _feed(digest, value) -> None:
    import torch

    if isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            digest.update(str(key).encode())
            _feed(digest, value[key])
    elif isinstance(value, (list, tuple)):
        for item in value:
            _feed(digest, item)
    else:
        digest.update((value.hex() if isinstance(value, float) else str(value)).encode())


def row_hashes(inputs) -> list[str]:
    """A hash for each example of a batch: its tokens and targets, without what padding adds."""
    if "labels" not in inputs or not len(inputs["labels"]):
        return []
    mask = inputs.get("attention_mask")
    hashes = []
    for i, labels in enumerate(inputs["labels"]):
        tokens = inputs["input_ids"][i]
        if mask is not None and mask.ndim == 2:
            tokens = tokens[mask[i].bool()]
        hashes.append(tensors_hash([tokens.tolist(), labels[labels >= 0].tolist()])[:16])
    return hashes


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
