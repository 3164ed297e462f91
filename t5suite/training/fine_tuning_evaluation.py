"""The last evaluation of a fine-tuning run: every split, with the final weights or each task's best ones.

>>> report = evaluate_finally(trainer, data, best, trained=True)
>>> report.results["rte"].metrics, report.results["rte"].marks
({'accuracy': 71.5, 'invalid_rate': 0.0}, ['chosen on these rows'])
>>> choices_of_weights(trainer, data, best)
[{'task': None, 'step': 20, 'by': 'accuracy', 'equal_steps': [40, 60]}]
"""

import torch

from t5suite.models.adapters import is_adapted
from t5suite.models.weights import load_weights
from t5suite.tasks.entry_metrics import optimised_metrics
from t5suite.training.best_per_task import BestPerTaskCallback
from t5suite.training.callback import call_on_final
from t5suite.training.checkpoints.folders import checkpoint_step
from t5suite.training.checkpoints.selection import selected_a_checkpoint
from t5suite.training.chosen_rows import CHOSEN_MARK
from t5suite.training.eval_sets import EvalSet
from t5suite.training.evaluation_report import Report, make_report
from t5suite.training.fine_tuning_data import Data
from t5suite.training.trainer import SuiteTrainer

# In points, and of an error; a loss counts as minus the loss.
PERFECT_SCORES = (100.0, 0.0)


def evaluate_finally(
    trainer: SuiteTrainer, data: Data, best: BestPerTaskCallback | None = None, trained: bool = False
) -> Report:
    """Scores everything with the weights as they are, or each task with those of its own best step (`best` has them).

    Args:
      trained: the weights were trained in this run, and selected if `--load_best_model_at_end` is on.
    """
    if trained and trainer.args.load_best_model_at_end:
        mark_selection(trainer, data, best)
    train_subsets = {part.task.name for part in data.training_sets if part.is_subset}
    for eval_set in data.scored:
        if eval_set.task.name in train_subsets:
            eval_set.marks.append("train subset")
    if best is not None and best.save_weights:
        report = evaluate_each_at_its_best(trainer, data.scored, best)
    else:
        report = trainer.score(data.scored)
    call_on_final(trainer, report, data.scored)
    return report


def mark_selection(trainer: SuiteTrainer, data: Data, best: BestPerTaskCallback | None) -> None:
    """Marks the sets on whose rows the weights were chosen: their scores are not those of unseen rows."""
    for eval_set in data.scored:
        may_select = eval_set.counts_in_average or has_own_best(best, eval_set.task.name)
        if eval_set.is_validation and may_select and eval_set in data.selecting:
            has_selected = is_selected(trainer, eval_set.task.name, best)
            eval_set.marks.append(CHOSEN_MARK if has_selected else "nothing selected")


def is_selected(trainer: SuiteTrainer, task: str, best: BestPerTaskCallback | None) -> bool:
    """Whether an evaluation has chosen the weights with which a task is scored; a NaN chooses none."""
    return has_own_best(best, task) or selected_a_checkpoint(trainer.state)


def has_own_best(best: BestPerTaskCallback | None, task: str) -> bool:
    """Whether a task is scored with the weights of its own best step."""
    return best is not None and bool(best.save_weights) and task in best.best


def evaluate_each_at_its_best(trainer: SuiteTrainer, eval_sets: list[EvalSet], best: BestPerTaskCallback) -> Report:
    """`--select per_task`: every task's splits are scored with the weights of that task's own best step."""
    results = {}
    final_weights = copied_weights(trainer.model)
    for name in dict.fromkeys(eval_set.task.name for eval_set in eval_sets):
        task_sets = [eval_set for eval_set in eval_sets if eval_set.task.name == name]
        if name in best.best:
            load_best_weights(trainer, name, best)
            for eval_set in task_sets:
                eval_set.marks.append(f"step {best.best[name]['step']}")
        else:
            trainer.model.load_state_dict(final_weights, strict=False)
        results.update(trainer.score(task_sets).results)
    trainer.model.load_state_dict(final_weights, strict=False)
    return make_report(eval_sets, results)


def copied_weights(model) -> dict[str, torch.Tensor]:
    """A copy of the weights that differ from step to step: of an adapter over a frozen base its own alone.

    A base in 4 bits could not load what it saves.
    """
    if is_adapted(model):
        weights = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    else:
        weights = model.state_dict()
    return {name: tensor.detach().clone() for name, tensor in weights.items()}


def choices_of_weights(trainer: SuiteTrainer, data: Data, best: BestPerTaskCallback) -> list[dict]:
    """The evaluations that have chosen the weights which a run keeps; empty where none has.

    `{"task", "step", "by": what was compared, "equal_steps": those of other evaluations with the same number}`; `task`
    is None where one checkpoint is kept for all tasks. What `tie_of_all` and `best_at_the_end` say, and
    `invalid_answers` of one task's, is added.
    """
    if not trainer.args.load_best_model_at_end:
        return []
    if best.save_weights:
        return [choice_of_task(trainer, data, task, entry) for task, entry in best.best.items()]
    if not selected_a_checkpoint(trainer.state):
        return []
    step = checkpoint_step(trainer.state.best_model_checkpoint)
    steps = equal_steps(trainer, step)
    choice = {"task": None, "step": step, "by": compared(trainer, data), "equal_steps": steps}
    choice |= tie_of_all(trainer, [step, *steps])
    if data.made_by_flags:  # recipes of benchmarks have settled lengths
        choice |= best_at_the_end(trainer, step)
    return [{**choice, **invalid_answers(trainer, "eval/invalid_rate", step)}]


def choice_of_task(trainer: SuiteTrainer, data: Data, task: str, best: dict) -> dict:
    """Which weights a task of `--select per_task` keeps."""
    steps = best.get("equal_steps", [])
    return {
        "task": task,
        "step": best["step"],
        "by": compared_of_task(trainer, data, task),
        "equal_steps": steps,
        **tie_of_all(trainer, [best["step"], *steps]),
        **invalid_answers(trainer, f"eval/{task}/invalid_rate", best["step"]),
    }


def invalid_answers(trainer: SuiteTrainer, name: str, step: int) -> dict:
    """How many answers of the evaluation that chose were invalid, in percent, and which evaluation had the fewest.

    A metric that counts such an answer as a value of its own, as a correlation does, may be best where hardly any is
    valid. Empty where all of them were.

    Args:
      name: of the share of invalid answers among the logged metrics.
    """
    rates = {line["step"]: line[name] for line in trainer.state.log_history if name in line}
    if not rates.get(step):
        return {}
    fewest = min(rates, key=rates.get)
    entries = {"invalid_rate": rates[step]}
    if rates[fewest] < rates[step]:
        entries["fewest_invalid"] = {"step": fewest, "invalid_rate": rates[fewest]}
    return entries


def equal_steps(trainer: SuiteTrainer, step: int) -> list[int]:
    """The steps whose evaluation gave the number of `step`; `eval/average` selects: by loss it is minus the loss.

    All are later ones: of equal steps the earliest is the best. An earlier evaluation with that number selects nothing:
    it came before the first update (`--eval_on_start`), or scored other data.
    """
    numbers = {line["step"]: line["eval/average"] for line in trainer.state.log_history if "eval/average" in line}
    if step not in numbers:
        return []
    return [equal_step for equal_step, number in numbers.items() if equal_step > step and number == numbers[step]]


def tie_of_all(trainer: SuiteTrainer, steps: list[int]) -> dict:
    """`{"all_equal": True}` where every evaluation gave the same number; else empty.

    Args:
      steps: the one that is kept, and those with its number.
    """
    log = trainer.state.log_history
    evaluated_steps = {line["step"] for line in log if "eval/average" in line and line["step"] > 0}
    if len(steps) > 1 and set(steps) == evaluated_steps:
        return {"all_equal": True}
    return {}


def best_at_the_end(trainer: SuiteTrainer, step: int) -> dict:
    """`{"best_at_the_end": True}` where the last of several evaluations was the best, and could be better; else empty.

    Args:
      step: the one that is kept.
    """
    log = trainer.state.log_history
    numbers = {line["step"]: line["eval/average"] for line in log if "eval/average" in line and line["step"] > 0}
    if len(numbers) > 1 and step == max(numbers) and numbers[step] not in PERFECT_SCORES:
        return {"best_at_the_end": True}
    return {}


def compared(trainer: SuiteTrainer, data: Data) -> str:
    """What chose one checkpoint for all tasks: 'accuracy', 'average of 3 tasks', 'loss'."""
    names = list(dict.fromkeys(part.task.name for part in data.selecting if part.counts_in_average))
    if len(names) == 1:
        return compared_of_task(trainer, data, names[0])
    if trainer.selection_metric == "loss":
        return "loss"
    return f"average of {len(names)} tasks"


def compared_of_task(trainer: SuiteTrainer, data: Data, task: str) -> str:
    """What chose a task's weights: one of its metrics, the mean of several, or the loss."""
    if trainer.selection_metric == "loss":
        return "loss"
    eval_set = next(part for part in data.selecting if part.task.name == task)
    if eval_set.selected_by is not None:
        return eval_set.selected_by
    names = optimised_metrics(eval_set.task.entry)
    if not names:  # running text beside tasks with metrics
        return "loss"
    if len(names) == 1:
        return names[0]
    return f"mean of {', '.join(names[:-1])} and {names[-1]}"


def load_best_weights(trainer: SuiteTrainer, task: str, best: BestPerTaskCallback) -> None:
    """Loads the weights of a task's best step, once they are known to be those."""
    best.check_weights(task)
    load_weights(trainer.accelerator.unwrap_model(trainer.model), best.folder(task), "--select per_task")
