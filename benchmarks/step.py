"""A step of pre-training (H1) and of fine-tuning (H4) against what people use; judged on a GPU, tried on a CPU.

    python -m benchmarks.step --device cuda         # T5 v1.1 base: 128 x 512/114, batches of 128 of MNLI's lengths
    python -m benchmarks.step                       # the same code on a tiny model: checks, figures of no account

H1: ours is `SuiteTrainer` with `--bf16 --torch_compile --optimizer adamw_rms`; the peer is a loop as nanoT5 has it:
transformers' T5 with eager attention and an untied head, bf16 autocast, compiled, an optimizer that goes from tensor to
tensor, the loss read in every step. Checked first: equal losses from the same weights on the same rows. H4: the
trainers of `benchmarks.fine_tuning`, ours compiled. Both tell the ceilings of the device and what share of its measured
matrix product a step reaches (FLOPs counted exactly, 3 x forward).
"""

import itertools
import logging

import datasets
import torch
from transformers import AutoModelForSeq2SeqLM
from transformers.utils import logging as transformers_logging

from benchmarks.ceilings import ceilings
from benchmarks.fine_tuning import our_trainer, their_trainer
from benchmarks.harness import OURS, Goal, Work, run
from benchmarks.host_cost import CHECKED, TOLERANCE, Turns, arguments, turns_of
from benchmarks.optimizers import PlainLoop
from benchmarks.plain_rows import mnli_like_rows
from t5suite.data.batches.features import RaggedColumn, TokenArrays
from t5suite.models.configs import load_config
from t5suite.models.t5.output_layer import random_model
from t5suite.training.checkpoints.data_positions import ExampleOrder
from t5suite.training.fine_tuning_trainer import make_collator
from t5suite.training.flags.fine_tuning import SuiteTrainingArguments
from t5suite.training.monitoring.flops import forward_flops
from t5suite.training.trainer import SuiteTrainer

BASE = {"rows": 128, "inputs": 512, "targets": 114, "steps": 10, "overrides": None}
SMALL = "d_model=32,d_kv=8,d_ff=64,num_heads=4,num_layers=2,num_decoder_layers=2,vocab_size=512"
TINY = {"rows": 4, "inputs": 64, "targets": 16, "steps": 2, "overrides": SMALL}
RATE = 2e-3


def base_model(sizes: dict, implementation: str):
    """T5 v1.1 base without dropout, from random weights, its head untied: the same weights whatever the attention."""
    torch.manual_seed(0)
    config = load_config("t5-v1_1-base", sizes["overrides"], dropout_rate=0.0, from_scratch=True)
    config.decoder_start_token_id, config._attn_implementation = 0, implementation
    return random_model(AutoModelForSeq2SeqLM, config)


def rows_of_text(sizes: dict, vocabulary: int) -> TokenArrays:
    """Rows of one length, of random tokens."""
    generator = torch.Generator().manual_seed(0)
    count = sizes["rows"] * 4
    ids, labels = (
        torch.randint(3, vocabulary, (count, sizes[side]), generator=generator, dtype=torch.int32).numpy()
        for side in ("inputs", "targets")
    )
    return TokenArrays(RaggedColumn.from_rows(ids), RaggedColumn.from_rows(labels))


def ours(sizes: dict, rows: TokenArrays, device: str, compiled: bool, **settings) -> Turns:
    """`SuiteTrainer` over the rows in their order, again and again."""
    model = base_model(sizes, "sdpa")
    settings |= {"per_device_train_batch_size": sizes["rows"], "optimizer": "adamw_rms", "learning_rate": RATE}
    trainer = SuiteTrainer(
        model=model,
        args=arguments(SuiteTrainingArguments, device, torch_compile=compiled, schedule="constant", **settings),
        train_dataset=rows,
        data=ExampleOrder(lambda epoch: list(range(len(rows)))),
        collator=make_collator(model),
    )
    return turns_of(trainer)


class NanoLoop:
    """The peer of pre-training, stepped by hand."""

    def __init__(self, sizes: dict, rows: TokenArrays, device: str, compiled: bool):
        model = base_model(sizes, "eager").to(device).train()
        collator, count = make_collator(model), sizes["rows"]
        starts = range(0, len(rows), count)
        batches = [collator(rows.__getitems__(list(range(start, start + count)))) for start in starts]
        for batch in batches:
            del batch["decoder_input_ids"]
        self.batches = itertools.cycle([{name: value.to(device) for name, value in b.items()} for b in batches])
        self.parameters, self.device = list(model.parameters()), device
        self.model = torch.compile(model) if compiled else model
        self.optimizer = PlainLoop(self.parameters, rate=RATE)

    def step(self) -> float:
        """One update; its loss."""
        with torch.autocast(self.device, torch.bfloat16):
            loss = self.model(**next(self.batches)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        for parameter in self.parameters:
            parameter.grad = None
        return loss.item()


def pre_training(device: str) -> Work:
    """H1."""
    quiet()
    sizes, compiled = (BASE, True) if device == "cuda" else (TINY, False)
    model = base_model(sizes, "sdpa")
    rows = rows_of_text(sizes, model.config.vocab_size)
    our_turns, nano = ours(sizes, rows, device, compiled), NanoLoop(sizes, rows, device, compiled)
    our_turns.advance(CHECKED + 1)
    our_turns.trainer.state.logging_steps = 10**9
    their_losses = [nano.step() for _ in range(CHECKED)]
    pairs = zip(our_turns.losses[:CHECKED], their_losses, strict=True)
    difference = max(abs(a - b) / b for a, b in pairs)
    assert difference < TOLERANCE, f"other losses: {our_turns.losses[:CHECKED]}, {their_losses}"
    shapes = {"input_ids": (1, sizes["inputs"]), "decoder_input_ids": (1, sizes["targets"])}
    return Work(
        f"pre-training, {sizes['rows']} x {sizes['inputs']}/{sizes['targets']}",
        {
            OURS: lambda: our_turns.advance(sizes["steps"]),
            "nanoT5's way": lambda: [nano.step() for _ in range(sizes["steps"])],
        },
        {"nanoT5's way": Goal(0.55)} if device == "cuda" else {},
        f"equal losses over {CHECKED} steps, to {difference:.1e}",
        calls=sizes["steps"],
        figures={"TFLOP a step": 3 * sizes["rows"] * forward_flops(model, shapes) / 1e12, "ceilings": ceilings(device)},
    )


def fine_tuning(device: str) -> Work:
    """H4."""
    quiet()
    sizes, batch, steps = (BASE, 128, 20) if device == "cuda" else (TINY, 4, 2)
    model = base_model(sizes, "sdpa").to(device)
    listed = mnli_like_rows(8192 if device == "cuda" else 64, model.config.vocab_size, seed=0)
    arrays = TokenArrays.from_dataset(datasets.Dataset.from_list(listed))
    shared = {"bf16": True, "max_steps": 100_000, "logging_steps": 1}
    makers = {
        "Seq2SeqTrainer, bf16": lambda: their_trainer(model, listed, batch, device, **shared),
        OURS: lambda: our_trainer(model, arrays, batch, device, torch_compile=device == "cuda", **shared),
    }
    turns = {}
    for name, make in makers.items():  # who compiles comes last: see `host_cost.started`
        turns[name] = turns_of(make())
        turns[name].advance()  # other rows in a batch than theirs: losses are compared by `benchmarks.fine_tuning`
        turns[name].trainer.state.logging_steps = 10**9
    return Work(
        f"fine-tuning at MNLI's lengths, {batch} at a time",
        {name: lambda each=each: each.advance(steps) for name, each in turns.items()},
        {"Seq2SeqTrainer, bf16": Goal(0.25)} if device == "cuda" else {},
        "equal losses of every row: see C5",
        calls=steps,
        figures={"ceilings": ceilings(device)},
    )


def quiet() -> None:
    """Only the table speaks."""
    transformers_logging.set_verbosity_error()
    logging.getLogger("t5suite").setLevel(logging.ERROR)


WORKS = {"H1": pre_training, "H4": fine_tuning}

if __name__ == "__main__":
    run(__doc__, WORKS)
