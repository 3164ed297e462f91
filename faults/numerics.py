"""N: numbers that are none, spikes, memory that runs out, ranks that differ; and that cutting a batch changes nothing.

    >>> NUMERICS["N7"].function(context)
    Outcome(passed=True, observed='2 of 2 stopped')

Losses, gradients and weights are spoiled inside running victims (`on_update` and what follows it); lack of memory is a
forward pass that raises what torch's allocators raise, and a process with a limited address space.
"""

import json
import math
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path

from faults import traces
from faults.harness import TINY_MODEL, Check, Context, Outcome, all_hold
from faults.leftovers import metrics
from faults.victims import Victim

SCRIPTS = ("fine_tune_t5", "pre_train_t5")
WITHOUT_DROPOUT = f"{TINY_MODEL},dropout_rate=0"
NUMERICS_EXIT = 70


# ---------------------------------------------------------------------------------------------------------------------
# N1 to N3: cutting changes nothing


def n1_the_same_update_however_it_is_cut(context: Context) -> Outcome:
    """Eight updates at the same weights (the rate is all but nothing), of 8 rows each, cut in several ways."""
    cuts = {"4x2": (4, 2, 1), "2x4": (2, 4, 1), "4x1, 2 ranks": (4, 1, 2), "2x2, 2 ranks": (2, 2, 2)}
    cases = {}
    for script in SCRIPTS:
        still = {"config_overrides": WITHOUT_DROPOUT, "learning_rate": 1e-12, "optim": "sgd", "eval_strategy": "no"}
        still |= {"save_strategy": "no", "save_steps": None, "max_steps": 3 if context.quick else 8}
        expected = _updates(context.run(script, context.flags(script, **still)))
        for name, (rows, accumulation, ranks) in list(cuts.items())[3 if context.quick else 0 :]:
            cut = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": accumulation}
            found = _updates(context.run(script, context.flags(script, **still, **cut), ranks=ranks))
            cases[f"{script} {name}"] = _relative_difference(found, expected, 1e-6)
    return all_hold(cases, "within 1e-6")


def n2_every_row_is_scored_once(context: Context) -> Outcome:
    """n rows on one and two ranks: as many rows, and the same bytes in predictions and results."""
    cases = {}
    for rows in (3, 13) if context.quick else (1, 3, 8, 13, 17):
        flags = context.flags("fine_tune_t5", eval_only=True, max_eval_samples=rows, **NO_TRAINING)
        here, there = (context.run("fine_tune_t5", flags, ranks=ranks) for ranks in (1, 2))
        cases[f"{rows} rows"] = _scored(here, there, rows)
    for name, flags in _held_out(context).items():
        here, there = (context.run("pre_train_t5", flags, ranks=ranks) for ranks in (1, 2))
        cases[name] = _same_results(here, there)
    return all_hold(cases, "exact")


# Flags of the common runs that an evaluation has no use for.
NO_TRAINING = dict.fromkeys(
    "max_steps save_steps save_strategy save_total_limit eval_strategy logging_steps per_device_train_batch_size "
    "learning_rate train_sampling_strategy max_train_samples warmup_steps".split()
)


def _held_out(context: Context) -> dict[str, list[str]]:
    """Evaluations of pre-training: of a text held out, and of one beside a stream."""
    sizes, kinds = ((3,), (False,)) if context.quick else ((1, 3, 13), (False, True))
    return {
        f"{rows} blocks{' of a stream' * streaming}": context.flags(
            "pre_train_t5", **{**NO_TRAINING, "eval_only": True, "max_eval_samples": rows, "streaming": streaming}
        )
        for rows in sizes
        for streaming in kinds
    }


def _scored(here: Victim, there: Victim, rows: int) -> str | None:
    for victim in (here, there):
        if victim.code != 0:
            return f"exit {victim.codes}: {victim.tail()}"
        for path in sorted((victim.directory / "predictions").glob("*.jsonl")):
            found = len(path.read_text(encoding="utf-8").splitlines())
            if found != rows:
                return f"{found} predictions in {path.name}"
    return _same_results(here, there)


def _same_results(here: Victim, there: Victim) -> str | None:
    for victim in (here, there):
        if victim.code != 0:
            return f"exit {victim.codes}: {victim.tail()}"
    names = sorted({p.relative_to(v.directory) for v in (here, there) for p in v.directory.glob("predictions/*")})
    for name in ["results.json", *names]:
        ours, theirs = (victim.directory / name for victim in (here, there))
        if not (ours.is_file() and theirs.is_file() and ours.read_bytes() == theirs.read_bytes()):
            return f"{name} differs between 1 and 2 ranks"
    return None


def n3_the_loss_of_an_evaluation_counts_tokens(context: Context) -> Outcome:
    """Evaluations of 13 rows after one update, in batches of 3 and of 4, of targets of different lengths."""
    once = {"max_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "save_steps": 1}
    cases = {}
    for script in SCRIPTS[: 1 if context.quick else None]:
        changes = {**once, "max_eval_samples": 13, "dataset_name": "similarity" if script == "fine_tune_t5" else None}
        found = []
        for size in (3, 4):
            flags = context.flags(script, **changes, per_device_eval_batch_size=size)
            found.append(_evaluated(context.run(script, flags)))
        cases[script] = _relative_difference(found[0], found[1], 1e-6)
    return all_hold(cases, "within 1e-6")


def _evaluated(victim: Victim) -> list[float] | str:
    """The numbers of an evaluation, by the order of their names."""
    if victim.code != 0:
        return f"exit {victim.codes}: {victim.tail()}"
    lines = [line for line in metrics(victim.directory) if any(name.startswith("eval/") for name in line)]
    names = [name for name in ("eval/loss", "eval/nll") if lines and name in lines[-1]]
    return [lines[-1][name] for name in names] or "no loss in metrics.jsonl"


# ---------------------------------------------------------------------------------------------------------------------
# N4 and N5: updates that must not be made


def n4_numbers_that_are_none(context: Context) -> Outcome:
    """One spoiled update is skipped and the run ends well; three in a row end it with 70 and sound weights."""
    kinds = {
        "nan loss": partial(spoil_loss, math.nan),
        "inf loss": partial(spoil_loss, math.inf),
        "inf gradient": partial(spoil_gradient, math.inf),
        "no labels": mask_labels,
    }
    if context.quick:
        once = _survives(context, "fine_tune_t5", kinds["inf gradient"])
        return all_hold({"once": once, "3 in a row": _gives_up(context, "pre_train_t5", kinds["nan loss"])}, "held")
    cases = {}
    for script in SCRIPTS:
        for name, patch in kinds.items():
            cases[f"{script} {name}"] = _survives(context, script, patch)
            cases[f"{script} {name}, 3 in a row"] = _gives_up(context, script, patch)
    patch = partial(spoil_loss, math.nan, rank=1)
    cases["nan loss on rank 1 of 2"] = _survives(context, "fine_tune_t5", patch, ranks=2)
    return all_hold(cases, "held")


def _survives(context: Context, script: str, patch: partial | Callable, ranks: int = 1) -> str | None:
    flags = context.flags(script, **({"per_device_train_batch_size": 4} if ranks > 1 else {}))
    victim = context.run(script, flags, patch=partial(patch, steps=[4]), ranks=ranks)
    if victim.code != 0:
        return f"exit {victim.codes}: {victim.tail()}"
    trace = traces.read(victim.directory)
    weights, rates = ({step: trace.steps[step][0][key] for step in trace.steps} for key in ("weights", "learning_rate"))
    if len(trace.steps) != 8 or rates[4] == rates[3]:
        return f"{len(trace.steps)} steps; rates {rates[3]} and {rates[4]}"
    if weights[4] != weights[3]:
        return "the spoiled update changed the weights"
    if weights[5] == weights[4]:
        return "the update after it changed nothing"
    return _incident(victim, 4, "non_finite", "update skipped") or _not_finite(victim)


def _gives_up(context: Context, script: str, patch: partial | Callable) -> str | None:
    victim = context.run(script, context.flags(script), patch=partial(patch, steps=[3, 4, 5, 6]))
    if victim.code != NUMERICS_EXIT or "Traceback" in victim.output:
        return f"exit {victim.codes}: {victim.tail()}"
    if len(traces.read(victim.directory).steps) != 4:
        return f"stopped after {len(traces.read(victim.directory).steps)} updates, not in the fifth"
    if "step 5:" not in victim.tail() or "Likely fix" not in victim.tail():
        return f"said: {victim.tail()}"
    return _incident(victim, 5, "non_finite", "update skipped; the run stops") or _not_finite(victim)


def n5_spikes(context: Context) -> Outcome:
    """The loss of update 20 is ten times what it is; all but nothing is learnt, so that it was flat before."""
    flat = {"max_steps": 22, "learning_rate": 1e-6, "save_steps": 9, "logging_steps": 11}
    patch = partial(spoil_loss, 10.0, steps=[20])
    actions = {"log": "none", "skip": "update skipped", "off": None}
    cases = {}
    for script in SCRIPTS[: 1 if context.quick else None]:
        for policy, action in actions.items():
            if not context.quick or policy in ("log", "skip"):
                flags = context.flags(script, **flat, loss_spikes=policy)
                cases[f"{script} {policy}"] = _spike(context.run(script, flags, patch=patch), policy, action)
    return all_hold(cases, "held")


def _spike(victim: Victim, policy: str, action: str | None) -> str | None:
    if victim.code != 0:
        return f"exit {victim.codes}: {victim.tail()}"
    trace = traces.read(victim.directory)
    weights = {step: trace.steps[step][0]["weights"] for step in trace.steps}
    was_skipped = weights[20] == weights[19]
    if was_skipped != (policy == "skip"):
        return f"the update was {'skipped' if was_skipped else 'made'}"
    if action is None:
        return f"incidents {_incidents(victim)}" if _incidents(victim) else None
    return _incident(victim, 20, "spike", action)


# ---------------------------------------------------------------------------------------------------------------------
# N6 and N7: memory, and ranks that differ


def n6_memory_runs_out(context: Context) -> Outcome:
    """From step 6 on no more than four rows fit; or, really, not more than the address space has."""
    cases = {}
    for script in SCRIPTS[: 1 if context.quick else None]:
        flags = context.flags(script, config_overrides=WITHOUT_DROPOUT)
        reference = context.reference(script, flags)
        for where in ("loss",) if context.quick else ("model", "loss"):
            victim = context.run(script, flags, patch=partial(limit_rows, 4, from_step=6, where=where))
            cases[f"{script} {where}"] = _same_course(victim, reference)
    if not context.quick:
        flags = context.flags("fine_tune_t5", config_overrides=WITHOUT_DROPOUT)
        longer = partial(lengthen_targets, 1024)
        reference = context.run("fine_tune_t5", flags, patch=longer)
        victim = context.run("fine_tune_t5", flags, patch=[longer, partial(limit_memory, 150, from_step=6)])
        # The address space fragments: what is left for later updates may ask for smaller pieces still.
        cases["fine_tune_t5 limited address space"] = _same_course(victim, reference.directory, may_grow=True)
    return all_hold(cases, "within 1e-5")


def _same_course(victim: Victim, reference: Path, may_grow: bool = False) -> str | None:
    if victim.code != 0:
        return f"exit {victim.codes}: {victim.tail()}"
    ours, theirs = traces.read(victim.directory), traces.read(reference)
    if ours.order != theirs.order:
        return f"steps {ours.order}, without the fault {theirs.order}"
    for step, ranks in ours.steps.items():
        here, there = ranks[0], theirs.steps[step][0]
        if here["batch"] != there["batch"] or here["learning_rate"] != there["learning_rate"]:
            return f"step {step}: another batch or rate"
    found, expected = (_losses(trace) for trace in (ours, theirs))
    lines = [line for line in _incidents(victim) if line["kind"] == "out_of_memory"]
    steps = [line["step"] for line in lines]
    if (steps[:1] if may_grow else steps) != [6] or not lines[0]["examples"]:
        return f"incidents {lines}"
    return _relative_difference(found, expected, 1e-5)


def n7_ranks_that_differ(context: Context) -> Outcome:
    """A bit of one weight is flipped on rank 1 after the third update; weights are compared at logs and saves."""
    cases = {}
    for script in SCRIPTS[: 1 if context.quick else None]:
        flags = context.flags(script, per_device_train_batch_size=4)
        victim = context.run(script, flags, ranks=2, patch=partial(flip_bit, 3, rank=1))
        cases[script] = _all_stopped(victim)
    return all_hold(cases, "stopped")


def _all_stopped(victim: Victim) -> str | None:
    if victim.codes != [NUMERICS_EXIT] * 2:
        return f"exit {victim.codes}: {victim.tail()} | {victim.tail(1)}"
    for rank in range(2):
        if "step 3: the weights of ranks 0 and 1 differ" not in victim.output_of(rank):
            return f"rank {rank} said: {victim.tail(rank)}"
    kept = sorted(path.name for path in victim.directory.glob("checkpoint-*"))
    return None if kept == ["checkpoint-2"] else f"kept {kept}"


# ---------------------------------------------------------------------------------------------------------------------
# What is compared


def _updates(victim: Victim) -> list[float] | str:
    """Loss and gradient norm of every update."""
    if victim.code != 0:
        return f"exit {victim.codes}: {victim.tail()}"
    lines = [line for line in metrics(victim.directory) if "train/grad_norm" in line]
    return [line[name] for line in lines for name in ("train/loss", "train/grad_norm")]


def _losses(trace: traces.Trace) -> list[float]:
    return [float.fromhex(trace.steps[step][0]["loss"]) for step in sorted(trace.steps)]


def _relative_difference(found, expected, limit: float) -> str | None:
    for numbers in (found, expected):
        if isinstance(numbers, str):
            return numbers
    if len(found) != len(expected) or not found:
        return f"{len(found)} numbers instead of {len(expected)}"
    worst = max(abs(a - b) / max(abs(b), 1e-30) for a, b in zip(found, expected))
    return f"{worst:.1e} apart" if not worst <= limit else None


def _incidents(victim: Victim) -> list[dict]:
    path = victim.directory / "incidents.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _incident(victim: Victim, step: int, kind: str, action: str) -> str | None:
    """Whether the run has noted this, with the examples of the update."""
    for line in _incidents(victim):
        if (line["step"], line["kind"], line["action"]) == (step, kind, action):
            return None if len(line["examples"]) == 8 else f"the incident names {len(line['examples'])} of 8 examples"
    return f"no such incident: {_incidents(victim)}"


def _not_finite(victim: Victim) -> str | None:
    """The first file with weights that are not finite."""
    import torch
    from safetensors.torch import load_file

    for path in sorted(victim.directory.rglob("*.safetensors")):
        for name, tensor in load_file(path).items():
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                return f"{path.relative_to(victim.directory)}: {name} is not finite"
    return None


# ---------------------------------------------------------------------------------------------------------------------
# What is done inside a victim


def _wrap(name: str, wrapper: Callable) -> None:
    """`wrapper(original, trainer, *args, **kwargs)` in place of a method of every `SuiteTrainer`."""
    from t5suite.training.trainer import SuiteTrainer

    original = getattr(SuiteTrainer, name)
    setattr(SuiteTrainer, name, lambda trainer, *args, **kwargs: wrapper(original, trainer, *args, **kwargs))


def _is_due(trainer, steps, rank: int | None = None) -> bool:
    """Whether the update that is being computed is one of these."""
    return trainer.state.global_step + 1 in steps and rank in (None, trainer.args.process_index)


def spoil_loss(factor: float, steps, rank: int | None = None) -> None:
    """Multiplies the loss of these updates, and so their gradients."""

    def compute_loss(original, trainer, *args, **kwargs):
        loss = original(trainer, *args, **kwargs)
        return loss * factor if _is_due(trainer, steps, rank) else loss

    _wrap("compute_loss", compute_loss)


def spoil_gradient(value: float, steps, rank: int | None = None) -> None:
    """Adds a value to a gradient of these updates; the loss stays what it is."""

    def training_step(original, trainer, *args, **kwargs):
        loss = original(trainer, *args, **kwargs)
        if _is_due(trainer, steps, rank):
            next(p for p in trainer.model.parameters() if p.grad is not None).grad.view(-1)[0] += value
        return loss

    _wrap("training_step", training_step)


def mask_labels(steps) -> None:
    """Takes all targets out of these updates."""
    import torch

    def get_batch_samples(original, trainer, iterator, *args, **kwargs):
        def masked():
            for batch in iterator:
                yield {**batch, "labels": torch.full_like(batch["labels"], -100)} if _is_due(trainer, steps) else batch

        return original(trainer, masked(), *args, **kwargs)

    _wrap("get_batch_samples", get_batch_samples)


def limit_rows(rows: int, from_step: int, where: str = "loss") -> None:
    """From an update on, memory runs out with more rows than that: in the `model`, or in the `loss`."""
    import torch

    def compute_loss(original, trainer, model, inputs, *args, **kwargs):
        due = trainer.state.global_step + 1 >= from_step and len(inputs["input_ids"]) > rows
        if due and where == "model":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        loss = original(trainer, model, inputs, *args, **kwargs)
        if due:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 2147483648 bytes")
        return loss

    _wrap("compute_loss", compute_loss)


def limit_memory(megabytes: int, from_step: int) -> None:
    """From an update on, while one is computed, the process may take only so much more address space than it has."""

    def training_step(original, trainer, *args, **kwargs):
        if trainer.state.global_step + 1 >= from_step:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + (megabytes << 20), resource.RLIM_INFINITY))
        try:
            return original(trainer, *args, **kwargs)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    _wrap("training_step", training_step)


def lengthen_targets(length: int) -> None:
    """Pads targets, so that logits take most of the memory."""
    import torch

    def get_batch_samples(original, trainer, iterator, *args, **kwargs):
        def longer():
            for batch in iterator:
                for name, value in (("labels", -100), ("decoder_input_ids", 0)):
                    rows, width = batch[name].shape
                    batch[name] = torch.cat([batch[name], batch[name].new_full((rows, length - width), value)], dim=1)
                yield batch

        return original(trainer, longer(), *args, **kwargs)

    _wrap("get_batch_samples", get_batch_samples)


def flip_bit(step: int, rank: int) -> None:
    """Flips the lowest bit of a weight when so many updates have been made, on one rank."""
    import torch

    from faults.patches import on_event

    def flip(trainer, state):
        if state.global_step == step and trainer.args.process_index == rank:
            next(trainer.model.parameters()).data.view(-1).view(torch.int32)[5] ^= 1

    on_event("on_step_end", flip)


NUMERICS = {
    "N1": Check(
        n1_the_same_update_however_it_is_cut,
        injected="8 rows as 8x1, 4x2, 2x4; 1 and 2 ranks",
        expected="loss and gradient norm within 1e-6",
        limit=120,
    ),
    "N2": Check(
        n2_every_row_is_scored_once, injected="n = 1, 3, 8, 13, 17; 1 and 2 ranks", expected="n rows, same bytes"
    ),
    "N3": Check(
        n3_the_loss_of_an_evaluation_counts_tokens,
        injected="evaluation batches of 3 and 4",
        expected="loss within 1e-6",
    ),
    "N4": Check(
        n4_numbers_that_are_none,
        injected="nan or inf in loss or gradient; no labels",
        expected="update skipped; 70 after 3 in a row; sound weights; examples named",
        limit=180,
    ),
    "N5": Check(n5_spikes, injected="loss x10 at step 20", expected="flagged with examples; log, skip"),
    "N6": Check(
        n6_memory_runs_out,
        injected="more than 4 rows do not fit from step 6 on",
        expected="same trajectory within 1e-5, no step redone",
        limit=120,
    ),
    "N7": Check(n7_ranks_that_differ, injected="a bit flipped on one rank", expected="all ranks stop with 70"),
}
