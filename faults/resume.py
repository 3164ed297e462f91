"""R: a run that is killed and started again equals the one that was not, bit by bit; what else `--resume` meets.

    >>> RESUME["R1"].function(context)
    Outcome(passed=True, observed='9 of 9 exact')

"Exact": batches, losses, rates, weights and optimizer of every update, and the final files. The runs are eight steps
long, three a pass over the data, with a checkpoint every second step and dropout.
"""

import json
import re
import shutil
from functools import partial
from pathlib import Path

from faults import patches, traces
from faults.harness import Check, Context, Outcome, all_hold, difference, outcome
from faults.interruptions import AT_BOUNDARY, IN_PASS_1, IN_PASS_2, Attempt, Case, Kill, exactly, go_through
from faults.leftovers import changed_files, files, history_difference, metrics, results_difference, training

SCRIPTS = ("fine_tune_t5", "pre_train_t5")
STREAMED = {"streaming": True, "num_virtual_streams": 4, "shuffle_buffer_size": 16}
TWO_RANKS = {"per_device_train_batch_size": 4}
ACCUMULATED = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
WITHIN_A_WINDOW = Kill(3, 2, "on_substep_end")


def r1_map_data(context: Context) -> Outcome:
    """Rows of a task in random order, with padding."""
    bfloat16 = {"bf16": True, "optimizer": "adafactor"}
    evaluated = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": False}
    cases = {
        "pass 1": Case((IN_PASS_1,)),
        "pass 2": Case((IN_PASS_2,)),
        "boundary": Case((AT_BOUNDARY,)),
        "pass 1, 2 workers": Case((IN_PASS_1,), workers=2, quick=True),
        "pass 2, 2 workers": Case((IN_PASS_2,), workers=2),
        "boundary, 2 workers": Case((AT_BOUNDARY,), workers=2),
        "within an accumulation window": Case((WITHIN_A_WINDOW,), ACCUMULATED),
        "bf16, Adafactor": Case((IN_PASS_2,), bfloat16),
        "evaluations between": Case((IN_PASS_2,), evaluated),
        "2 ranks": Case((IN_PASS_2,), TWO_RANKS, ranks=2),
        "fresh interpreters": Case((IN_PASS_1,), cold=True),
    }
    found = exactly(context, "fine_tune_t5", cases)
    blind = None if context.quick else _is_blind(context)
    return outcome(found.passed and not blind, "; ".join(filter(None, [found.observed, blind])))


def _is_blind(context: Context) -> str | None:
    """A resumed run whose random numbers are not restored must be told from an exact one."""
    flags = context.flags("fine_tune_t5")
    forget = partial(patches.skip_calls, "t5suite.training.checkpoints.restoring:restore_random_state")
    course = go_through(context, "fine_tune_t5", [Attempt(flags, IN_PASS_1), Attempt(flags, patch=forget)])
    noticed = difference(course.directory, context.reference("fine_tune_t5", flags))
    return course.problem or (None if noticed else "dropout that is not restored goes unnoticed")


def r2_span_corruption(context: Context) -> Outcome:
    """Blocks of a tokenized text, corrupted while training."""
    cases = {
        "pass 1": Case((IN_PASS_1,)),
        "pass 2": Case((IN_PASS_2,)),
        "boundary": Case((AT_BOUNDARY,)),
        "pass 1, 2 workers": Case((IN_PASS_1,), workers=2),
        "pass 2, 2 workers": Case((IN_PASS_2,), workers=2, quick=True),
        "boundary, 2 workers": Case((AT_BOUNDARY,), workers=2),
        "within an accumulation window": Case((WITHIN_A_WINDOW,), ACCUMULATED),
        "UL2": Case((IN_PASS_2,), {"objective": "ul2"}),
        "2 ranks": Case((IN_PASS_2,), TWO_RANKS, ranks=2),
    }
    return exactly(context, "pre_train_t5", cases)


def r3_stream(context: Context) -> Outcome:
    """A stream in its first pass."""
    from t5suite.data.corpora.documents import bundled_text

    cases = {
        "no workers": Case((IN_PASS_1,), quick=True),
        "no workers, later": Case((IN_PASS_2,)),
        "2 workers": Case((IN_PASS_1,), workers=2),
        "within an accumulation window": Case((WITHIN_A_WINDOW,), ACCUMULATED),
        "2 ranks": Case((IN_PASS_2,), TWO_RANKS, ranks=2),
    }
    text = bundled_text("train")
    return exactly(context, "pre_train_t5", cases, partial(_stands_in_pass, 1), **STREAMED, train_file=text)


def r4_stream_again(context: Context) -> Outcome:
    """A stream in its second pass and later."""
    cases = {
        "pass 2": Case((IN_PASS_2,), quick=True),
        "pass 3": Case((AT_BOUNDARY,)),
        "killed twice": Case((Kill(5, 4), IN_PASS_2)),
        "2 workers": Case((IN_PASS_2,), workers=2),
        "2 ranks": Case((IN_PASS_2,), TWO_RANKS, ranks=2),
    }
    return exactly(context, "pre_train_t5", cases, partial(_stands_in_pass, 2), **STREAMED)


def _stands_in_pass(number: int, directory: Path, reference: Path) -> str | None:
    """Whether the streams of the checkpoint after step 4 stand in the pass that a check is about."""
    found = set()
    for path in (directory / "checkpoint-4").rglob("stream-rank-*.json"):
        streams = json.loads(path.read_text())["streams"].values()
        found |= {position["epoch"] + 1 for positions in streams for position in positions}
    wrong = found != {1} if number == 1 else max(found, default=0) < number
    return f"the checkpoint's streams stand in the passes {sorted(found)}" if wrong else None


def r5_length_grouped(context: Context) -> Outcome:
    """Examples of about the same length in an update."""
    mixture = {"dataset_name": "sentiment,entailment"}
    cases = {
        "pass 2": Case((IN_PASS_2,), quick=True),
        "boundary": Case((AT_BOUNDARY,)),
        "pass 2, 2 workers": Case((IN_PASS_2,), workers=2),
        "a mixture of tasks": Case((IN_PASS_2,), mixture),
        "2 ranks": Case((IN_PASS_2,), TWO_RANKS, ranks=2),
    }
    return exactly(context, "fine_tune_t5", cases, train_sampling_strategy="group_by_length")


def r6_between_logs(context: Context) -> Outcome:
    """Logged every three steps, saved every two: a checkpoint falls between two logs."""
    cases = {
        "fine_tune_t5": {"fine-tuning": Case((IN_PASS_1, IN_PASS_2), quick=True)},
        "pre_train_t5": {
            "corpus": Case((IN_PASS_1, IN_PASS_2)),
            "stream": Case((IN_PASS_1, IN_PASS_2), STREAMED),
            "2 ranks": Case((IN_PASS_1, IN_PASS_2), TWO_RANKS, ranks=2),
        },
    }
    return _merged([exactly(context, s, part, history_difference, logging_steps=3) for s, part in cases.items()])


EVERY_STEP = {"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "logging_steps": 1}
PATIENCE = 3


def r7_killed_twice(context: Context) -> Outcome:
    """Early stopping and the best checkpoint survive two kills, the second one while patience is running out."""
    stopped = {**EVERY_STEP, "early_stopping_patience": PATIENCE, "max_steps": 30, "max_eval_samples": 16}
    by_accuracy = {**stopped, "seed": 3}  # whose accuracy rises after the first evaluation
    by_loss = {**stopped, "metric_for_best_model": "loss", "learning_rate": 0.1}
    kept = {**EVERY_STEP, "load_best_model_at_end": True}
    twice = (Kill(3, 2), Kill(6, 5, "on_evaluate"))
    cases = {
        "fine_tune_t5": {
            "early stopping": Case(_kills_before_the_end(context, by_accuracy), by_accuracy, quick=True),
            "the loss selects": Case(_kills_before_the_end(context, by_loss), by_loss),
        },
        "pre_train_t5": {"corpus": Case(twice, kept), "stream": Case(twice, {**kept, **STREAMED})},
    }
    return _merged([exactly(context, script, part, _same_best) for script, part in cases.items()])


def _kills_before_the_end(context, changes: dict) -> tuple[Kill, ...]:
    """One after an evaluation whose checkpoint is lost, one when a single evaluation of the patience is left."""
    if context.quick and "metric_for_best_model" in changes:
        return ()
    reference = context.reference("fine_tune_t5", context.flags("fine_tune_t5", **changes))
    end = training(reference)["steps"]
    assert PATIENCE + 2 < end < changes["max_steps"], f"stops at {end}: no early stop, so nothing would be shown"
    return Kill(end - 3, end - 4, "on_evaluate"), Kill(end - 1, end - 2)


def _same_best(directory: Path, reference: Path) -> str | None:
    here, there = (json.loads((folder / "manifest.json").read_text()) for folder in (directory, reference))
    if here.get("best_per_task") != there.get("best_per_task"):
        return f"the best step is {here.get('best_per_task')}, not {there.get('best_per_task')}"
    return history_difference(directory, reference)


def r8_finished(context: Context) -> Outcome:
    """A finished run is not trained or touched; one that was killed after its last checkpoint only ends."""
    found = {}
    for script, changes in _configurations(context):
        name, flags = _name(script, changes), context.flags(script, **changes)
        reference = context.reference(script, flags)
        found[f"{name}, finished"] = _again(context, script, flags, reference)
        course = go_through(context, script, [Attempt(flags, Kill(8, 8, "on_train_end")), Attempt(flags)])
        found[f"{name}, killed after its last step"] = course.problem or results_difference(course.directory, reference)
    if not context.quick:
        target = "t5suite.run_steps:evaluate_finally"
        found["killed in its last evaluation"] = _killed_at_call(context, "fine_tune_t5", target)
        found["killed in its results"] = _killed_at_call(
            context, "fine_tune_t5", "t5suite.reports.finishing:finish_run"
        )
        found["pre-training killed in its results"] = _killed_at_call(
            context, "pre_train_t5", "t5suite.reports.finishing:finish_pre_training"
        )
    return all_hold(found, "without a step")


def _again(context, script, flags, reference) -> str | None:
    directory = shutil.copytree(reference, context.folder("finished"))
    before = files(directory)
    victim = context.run(script, flags, directory=directory)
    steps = traces.read(directory).order
    if victim.code or steps:
        return f"exit {victim.code}, steps {steps}: {victim.tail()}"
    return changed_files(before, files(directory))


def _killed_at_call(context, script, target) -> str | None:
    flags = context.flags(script)
    killed = context.run(script, flags, patch=partial(patches.kill_at_call, target))
    resumed = context.run(script, flags, directory=killed.directory)
    if killed.codes != [-9] or resumed.code:
        return f"exit {killed.codes}, then {resumed.codes}: {resumed.tail()}"
    order = traces.read(killed.directory).order
    if order != list(range(1, 9)):
        return f"did the steps {order}"
    return results_difference(killed.directory, context.reference(script, flags))


def r9_no_checkpoint(context: Context) -> Outcome:
    """`--resume auto` finds nothing to go on from."""
    found = {}
    for script, changes in _configurations(context):
        flags = context.flags(script, resume="auto", **changes)
        reference = context.reference(script, context.flags(script, **changes))
        for name, attempts in {
            "no directory": [Attempt(flags)],
            "killed before its first checkpoint": [Attempt(flags, Kill(1, 0)), Attempt(flags)],
        }.items():
            course = go_through(context, script, attempts)
            found[f"{_name(script, changes)}, {name}"] = (
                course.problem
                or traces.compare(traces.read(course.directory), traces.read(reference))
                or results_difference(course.directory, reference)
            )
    return all_hold(found, "fresh starts")


def r10_another_run(context: Context) -> Outcome:
    """A directory that belongs to another run is left alone."""
    found = {}
    finished = context.reference("fine_tune_t5", context.flags("fine_tune_t5"))
    killed = go_through(context, "fine_tune_t5", [Attempt(context.flags("fine_tune_t5"), IN_PASS_1)]).directory
    for name, there in {"finished": finished, "killed": killed}.items():
        for what, script, changes in (
            ("another task", "fine_tune_t5", {"dataset_name": "entailment"}),
            ("another rate", "fine_tune_t5", {"learning_rate": 1e-3}),
            ("the other script", "pre_train_t5", {}),
        ):
            directory = shutil.copytree(there, context.folder("other"))
            found[f"{name}, {what}"] = _refused(context, script, context.flags(script, **changes), directory)
    return all_hold(found, "refused, both runs named")


def _refused(context, script, flags, directory, words=(), ids=2) -> str | None:
    """None if a command ends with 78, names runs and words, and touches nothing."""
    before = files(directory)
    victim = context.run(script, flags, directory=directory)
    run_id = json.loads((directory / "manifest.json").read_text())["run_id"]
    named = set(re.findall(r"\b[0-9a-f]{8}\b", victim.output))
    if victim.code != 78:
        return f"exit {victim.code}: {victim.tail()}"
    if ids and (run_id not in named or len(named) < ids):
        return f"run {run_id} and this one are not both named: {victim.tail()}"
    missing = [word for word in words if word not in victim.output]
    if missing:
        return f"does not name {missing}: {victim.tail()}"
    # The data are known only when the run is open: it may note that it was and why it was refused, and which files of
    # its corpus are whole, but not what it is trained on.
    noted = (".lock", "manifest.json", "logs/rank-0.log", "corpus/train/.checked.json") if "data" in words else ()
    return changed_files(before, files(directory), but=noted)


CHANGED = {
    "seed": {"seed": 2},
    "lr_scheduler_type": {"lr_scheduler_type": "constant"},
    # The examples of an update; how they are laid out over ranks and micro-batches may change.
    "update_size": {"per_device_train_batch_size": 4},
    "learning_rate": {"learning_rate": 1e-3},
}


def r11_changed(context: Context) -> Outcome:
    """A run goes on with the settings and the data that it began with, unless a change is allowed by name."""
    found = {}
    for script, changes in _configurations(context, own_text=True):
        flags = context.flags(script, **changes)
        course = go_through(context, script, [Attempt(flags, IN_PASS_1)])
        name = _name(script, changes)
        if course.problem:
            found[name] = course.problem
            continue
        for setting, change in {} if "streaming" in changes else CHANGED.items():
            other = context.flags(script, **{**changes, **change})
            found[f"{name}, {setting}"] = _refused_then_allowed(context, script, other, course.directory, setting)
        path = Path(changes["train_file"])
        kept = path.read_text()
        first, *others = kept.splitlines(keepends=True)
        path.write_text("".join([*others, first]))  # as long as before
        found[f"{name}, data"] = _refused_then_allowed(context, script, flags, course.directory, "data")
        path.write_text(kept)
    return all_hold(found, "refused, and done when allowed")


def _refused_then_allowed(context, script, flags, killed, name) -> str | None:
    directory = shutil.copytree(killed, context.folder("changed"))
    # A refusal must not be what makes the change that of the run: so it comes twice.
    for _ in range(2 if name == "data" else 1):
        refused = _refused(context, script, flags, directory, [name], ids=0)
        if refused:
            return refused
    victim = context.run(script, [*flags, "--allow_changed", name], directory=directory)
    steps = traces.read(directory).order
    if victim.code or steps != list(range(3, 9)):
        return f"allowed: exit {victim.code}, steps {steps}: {victim.tail()}"
    return None


def r12_ranks_and_workers(context: Context) -> Outcome:
    """Another number of processes, with as many examples an update: the same examples, the same losses."""
    found = {}
    for script, changes in _configurations(context):
        name = _name(script, changes)
        changes = {**changes, "dropout_rate": 0.0}
        one = context.flags(script, **changes)
        two = context.flags(script, **changes, **TWO_RANKS)
        attempts = [Attempt(two, IN_PASS_1, 2), Attempt(one, IN_PASS_2), Attempt(two, None, 2)]
        course = go_through(context, script, attempts)
        reference = context.reference(script, two, 2)
        found[f"{name}, 2 ranks, 1, 2"] = course.problem or _same_course(course.directory, reference)
        if not context.quick:
            flags = [context.flags(script, **changes, dataloader_num_workers=workers) for workers in (0, 2)]
            course = go_through(context, script, [Attempt(flags[0], IN_PASS_2), Attempt(flags[1])])
            reference = context.reference(script, one)
            found[f"{name}, workers 0, 2"] = course.problem or _same_course(course.directory, reference, 0)
    return all_hold(found, "same examples and losses")


def _same_course(directory, reference, relative: float = 1e-5) -> str | None:
    """The same examples in every step, and losses that differ by no more than a share of themselves."""
    ours, theirs = traces.read(directory), traces.read(reference)
    for step in theirs.steps:
        if ours.rows(step) != theirs.rows(step):
            return f"other examples in step {step}"
    for here, there in zip(_losses(directory), _losses(reference), strict=True):
        if abs(here - there) > relative * abs(there):
            return f"loss {there} there, {here} here"
    return None


def _losses(directory) -> list[float]:
    return [line["train/loss"] for line in metrics(directory) if "train/loss" in line]


def _configurations(context: Context, own_text: bool = False) -> list[tuple[str, dict]]:
    """Fine-tuning, pre-training from a tokenized text, and from a stream; fine-tuning alone in the quick form.

    Args:
      own_text: training data in a file of the check's own, to be changed.
    """
    found = [("fine_tune_t5", {}), ("pre_train_t5", {}), ("pre_train_t5", STREAMED)]
    if own_text:
        rows = context.folder("rows")
        rows.mkdir()
        lines = [json.dumps({"sentence": f"It was a day of {i} rains.", "label": i % 2}) for i in range(24)]
        (rows / "rows.jsonl").write_text("".join(line + "\n" for line in lines))
        text = shutil.copy(context.text(), rows / "text.txt")
        found = [(script, {**changes, "train_file": text}) for script, changes in found]
        found[0] = ("fine_tune_t5", {"train_file": rows / "rows.jsonl"})
    return found[:1] if context.quick else found


def _name(script: str, changes: dict) -> str:
    return "fine-tuning" if script == "fine_tune_t5" else "stream" if "streaming" in changes else "corpus"


def _merged(outcomes: list[Outcome]) -> Outcome:
    """Several outcomes as one; those without a case (a quick form leaves some out) say nothing."""
    told = [outcome for outcome in outcomes if not outcome.observed.startswith("0 of 0")]
    return Outcome(all(outcome.passed for outcome in told), "; ".join(outcome.observed for outcome in told))


RESUME = {
    "R1": Check(
        r1_map_data, injected="SIGKILL; map data, dropout, workers 0/2; mid pass 1, 2, boundary", expected="exact"
    ),
    "R2": Check(r2_span_corruption, injected="the same with span corruption", expected="exact"),
    "R3": Check(r3_stream, injected="SIGKILL; stream, pass 1, workers 0/2, span corruption", expected="exact"),
    "R4": Check(
        r4_stream_again, injected="SIGKILL; stream in pass 2 or later", expected="exact; no example replayed or lost"
    ),
    "R5": Check(r5_length_grouped, injected="SIGKILL; length-grouped sampling, pass 2", expected="exact"),
    "R6": Check(
        r6_between_logs,
        injected="two SIGKILLs; checkpoints off the logging boundary",
        expected="exact; logged history and train_loss equal too",
    ),
    "R7": Check(
        r7_killed_twice, injected="two SIGKILLs; early stopping, best metric", expected="same stop step, same best"
    ),
    "R8": Check(
        r8_finished,
        injected="the command again after the end, or after a kill behind the last checkpoint",
        expected="0 steps, exit 0, files unchanged",
    ),
    "R9": Check(r9_no_checkpoint, injected="--resume auto, no checkpoint", expected="fresh start"),
    "R10": Check(
        r10_another_run,
        injected="--output_dir of another run, finished or killed",
        expected="78, both run ids named, nothing touched",
    ),
    "R11": Check(
        r11_changed, injected="other data, seed, schedule, rate, batch", expected="78, named; done with --allow_changed"
    ),
    "R12": Check(
        r12_ranks_and_workers,
        injected="SIGKILL; 2 ranks, then 1, then 2; workers 0, then 2; same global batch",
        expected="same examples per step; loss rel <= 1e-5",
    ),
}
