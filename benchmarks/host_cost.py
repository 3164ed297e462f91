"""What a step costs beside its arithmetic: a deep and narrow T5, whose step is all calls, ours against Hugging Face's.

    python -m benchmarks.host_cost [--device cuda] [--profile]

12 + 12 layers of width 32 over 8 rows of 32 inputs and 8 targets: on one thread of a CPU nearly all of a step goes into
Python, dispatch and launches, which is what a GPU waits for. Both train under bf16 autocast with AdamW, without logs:
`Seq2SeqTrainer` as its examples use it (eager, `DataCollatorForSeq2Seq`), and ours with `--torch_compile`. Checked
first: both come to the same losses from the same weights on the same rows. Either trainer runs in a thread of its own
and makes so many steps when it is its turn.
"""

import atexit
import copy
import queue
import tempfile
import threading

import torch
from transformers import (
    DataCollatorForSeq2Seq,
    PrinterCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    TrainerCallback,
)

from benchmarks.harness import Goal, Work, run
from t5suite.data.batches.features import RaggedColumn, TokenArrays
from t5suite.models.loading import load_tokenizer
from t5suite.training.checkpoints.data_positions import ExampleOrder
from t5suite.training.fine_tuning_trainer import make_collator
from t5suite.training.flags.fine_tuning import SuiteTrainingArguments
from t5suite.training.monitoring.terminal import Progress
from t5suite.training.trainer import SuiteTrainer

STEPS, CHECKED = 8, 6
ROWS, BATCH, INPUTS, TARGETS = 4096, 8, 32, 8
TOLERANCE = 2e-2  # bf16 autocast: eager and compiled round differently


class Turns(TrainerCallback):
    """Lets a trainer, running in a thread of its own, make a few steps at a time.

    Args:
      train: what trains, until the process ends.
    """

    def __init__(self, train):
        self.left = 0
        self.losses = []
        self.turns, self.done = queue.SimpleQueue(), threading.Semaphore(0)
        self.failure = None
        self.thread = threading.Thread(target=self._run, args=(train,), daemon=True)

    def _run(self, train):
        torch.set_num_threads(1)
        try:
            train()
        except BaseException as error:  # the thread that waits must hear of it
            self.failure = error
        self.done.release()

    def on_step_begin(self, args, state, control, **kwargs):
        """Waits for its turn."""
        if not self.left:
            if state.global_step:
                self.done.release()
            self.left = self.turns.get()
            if not self.left:
                raise SystemExit
        self.left -= 1

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Keeps the losses."""
        if "loss" in logs:
            self.losses.append(logs["loss"])

    def advance(self, steps: int = STEPS):
        """So many steps."""
        if not self.thread.ident:
            self.thread.start()
            atexit.register(self.end)
        self.turns.put(steps)
        self.done.acquire()
        if self.failure is not None:
            raise self.failure

    def end(self):
        """No more steps: a thread that still runs when Python goes would take the process down with an error."""
        self.turns.put(0)
        self.thread.join(timeout=60)


def arguments(kind, device: str, **more):
    """Training arguments of either trainer."""
    settings = {
        "output_dir": tempfile.mkdtemp(),
        "per_device_train_batch_size": BATCH,
        "max_steps": 100_000,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "bf16": True,
        "use_cpu": device == "cpu",
        "save_strategy": "no",
        "eval_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "logging_steps": 1,
    }
    return kind(**{**settings, **more})


def features(device: str) -> TokenArrays:
    """Rows of one length, whose targets repeat their inputs."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 200, (ROWS, INPUTS), generator=generator, dtype=torch.int32).numpy()
    return TokenArrays.concatenate([TokenArrays(RaggedColumn.from_rows(ids), RaggedColumn.from_rows(ids[:, :TARGETS]))])


def theirs(model, rows: TokenArrays, tokenizer, device: str, **more) -> Turns:
    """`Seq2SeqTrainer` as Hugging Face's examples use it; rows in their order, as ours sees them."""
    listed = [{name: value.tolist() for name, value in rows[i].items()} for i in range(len(rows))]
    trainer = Seq2SeqTrainer(
        model=model,
        args=arguments(Seq2SeqTrainingArguments, device, train_sampling_strategy="sequential", **more),
        train_dataset=listed,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    )
    return turns_of(trainer)


def ours(model, rows: TokenArrays, device: str, **more) -> Turns:
    """`SuiteTrainer` over the same rows."""
    trainer = SuiteTrainer(
        model=model,
        args=arguments(SuiteTrainingArguments, device, **more),
        train_dataset=rows,
        data=ExampleOrder(lambda epoch: list(range(len(rows)))),
        collator=make_collator(model, True),
    )
    return turns_of(trainer)


def turns_of(trainer) -> Turns:
    """A trainer that waits for its turns."""
    turns = Turns(trainer.train)
    for printing in (PrinterCallback, Progress):
        trainer.remove_callback(printing)
    trainer.add_callback(turns)
    turns.trainer = trainer
    return turns


def started(makers: dict) -> tuple[dict[str, Turns], float]:
    """All trainers after their first steps, made one after the other, and the largest relative difference between the
    losses of these steps, which alone are logged; AssertionError above what rounding does.

    Accelerate keeps in one place for all trainers, and in the environment, whether models are compiled: whoever
    compiles comes last, and each has begun before the next is made.
    """
    turns = {}
    for name, make in makers.items():
        turns[name] = make()
        turns[name].advance(CHECKED + 1)
        turns[name].trainer.state.logging_steps = 10**9
    first, *others = (each.losses[:CHECKED] for each in turns.values())
    difference = max(abs(a - b) / b for other in others for a, b in zip(other, first, strict=True))
    assert difference < TOLERANCE, f"they come to other losses: {[each.losses for each in turns.values()]}"
    return turns, difference


def host_cost(device: str, layers: int = 12, compiled: bool = True) -> Work:
    """C8."""
    torch.manual_seed(0)
    tokenizer = load_tokenizer(None)
    config = T5Config(
        vocab_size=len(tokenizer), d_model=32, d_kv=8, d_ff=64, num_heads=4, num_layers=layers, dropout_rate=0.0,
        feed_forward_proj="gated-gelu", decoder_start_token_id=0, attn_implementation="sdpa",
    )  # fmt: skip
    model, rows = T5ForConditionalGeneration(config), features(device)
    makers = {
        "theirs": lambda: theirs(copy.deepcopy(model), rows, tokenizer, device),
        "ours, eager": lambda: ours(copy.deepcopy(model), rows, device),
        "ours": lambda: ours(copy.deepcopy(model), rows, device, torch_compile=compiled),
    }
    turns, difference = started(makers)
    return Work(
        f"host cost of a step, {layers} + {layers} layers",
        {
            "ours": turns["ours"].advance,
            "Seq2SeqTrainer, bf16": turns["theirs"].advance,
            "ours, eager": turns["ours, eager"].advance,
        },
        {"Seq2SeqTrainer, bf16": Goal(0.25)},
        f"equal losses over {CHECKED} steps, to {difference:.1e}",
        calls=STEPS,
        figures={"compiled": compiled, "parameters": sum(p.numel() for p in model.parameters())},
    )


WORKS = {"C8": host_cost}

if __name__ == "__main__":
    run(__doc__, WORKS)
