"""What each fast path of `--reference_code` gains a step or an evaluation: ours against ours without it.

    python -m benchmarks.fast_paths --device cuda         # T5 v1.1 base, at the sizes of H1, H4 and H5
    python -m benchmarks.fast_paths                       # the same code on a tiny model

P1: a step of pre-training, 128 x 512/114. P2: a step of fine-tuning at MNLI's lengths, 128 rows. P3: greedy answers to
as many rows as MNLI's validation split has; P3s: scores of its labels. A path that gains less than a tenth in all of
them, and in every whole job (`benchmarks.jobs`), goes.
"""

import datasets

from benchmarks import evaluation, step
from benchmarks.fine_tuning import our_trainer
from benchmarks.harness import OURS, Goal, Work, run
from benchmarks.host_cost import turns_of
from benchmarks.plain_rows import mnli_like_rows
from t5suite.base.reference_code import FAST_PATHS
from t5suite.data.batches.features import TokenArrays
from t5suite.training.process_setup import leave_out_cudnn_attention

PAYS = Goal(0.9)
IN_STEPS = ("loss_chunks",)
IN_ANSWERS = {"generate": ("quick_decoding", "quick_attention"), "score": ("candidate_trees", "quick_attention")}


def without_each(work: str, paths: tuple, make, calls: int = 1) -> Work:
    """`make(NAME or None)` returns the work without this fast path; each that is still there is left out once."""
    contenders = {f"without {name}": make(name) for name in FAST_PATHS if name in paths}
    checked = "equal results: tests/test_reference_code.py"
    return Work(work, {OURS: make(None), **contenders}, dict.fromkeys(contenders, PAYS), checked, calls=calls)


def pre_training(device: str) -> Work:
    """P1."""
    step.quiet()
    sizes, compiled = (step.BASE, True) if device == "cuda" else (step.TINY, False)
    rows = step.rows_of_text(sizes, step.base_model(sizes, "sdpa").config.vocab_size)

    def make(reference):
        turns = step.ours(sizes, rows, device, compiled, bf16=compiled, reference_code=reference)
        return lambda: turns.advance(sizes["steps"])

    return without_each("a step of pre-training", IN_STEPS, make, sizes["steps"])


def fine_tuning(device: str) -> Work:
    """P2."""
    step.quiet()
    cuda = device == "cuda"
    sizes, batch, steps = (step.BASE, 128, 10) if cuda else (step.TINY, 4, 2)
    model = step.base_model(sizes, "sdpa").to(device)
    listed = mnli_like_rows(8192 if cuda else 64, model.config.vocab_size, seed=0)
    arrays = TokenArrays.from_dataset(datasets.Dataset.from_list(listed))
    settings = {"bf16": cuda, "max_steps": 100_000, "logging_steps": 10**9, "torch_compile": cuda}

    def make(reference):
        turns = turns_of(our_trainer(model, arrays, batch, device, reference_code=reference, **settings))
        return lambda: turns.advance(steps)

    return without_each(f"a step of fine-tuning, {batch} rows of MNLI's lengths", IN_STEPS, make, steps)


def answers(device: str, method: str = "generate") -> Work:
    """P3, and by `score` P3s."""
    num_rows, sizes, steps, rate = evaluation.H5[device]
    leave_out_cudnn_attention()
    of = evaluation.make_trained(device, num_rows, sizes, steps, rate)

    def make(reference):
        return evaluation.ours(device, of, method, reference=frozenset([reference] if reference else []))

    return without_each(f"evaluate {num_rows} rows by {method}", IN_ANSWERS[method], make)


WORKS = {"P1": pre_training, "P2": fine_tuning, "P3": answers, "P3s": lambda device: answers(device, "score")}

if __name__ == "__main__":
    run(__doc__, WORKS)
