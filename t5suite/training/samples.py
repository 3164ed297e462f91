"""Samples: an evaluation's own answers to rows spread evenly over the split, the same rows every time.

>>> trainer.add_callback(SampleCallback(run_dir, 8, trainer.eval_sets, lambda: trainer.last_report))
>>> read_jsonl(run_dir / "samples.jsonl")[0]
{'step': 20, 'task': 'rte', 'row': 0, 'input': 'rte sentence1: ...', 'target': 'entailment',
 'prediction': 'entailment', 'right': True}
"""

from t5suite.tasks.cut_marks import CUT_MARK
from t5suite.tasks.postprocessors import is_right
from t5suite.tracking.metric_lines import SAMPLES
from t5suite.training.step_lines import StepLines

# Longer texts are cut, to keep tables readable.
LONGEST_TEXT = 2000


class SampleCallback(StepLines):
    """Writes some rows' answers after each evaluation to `samples.jsonl`, for trackers; a resumed run repeats none.

    Args:
      num_samples: rows of each split; 0: none.
      sets: what is evaluated during training, in the order of the report.
      report_of: returns the report of the latest evaluation.
    """

    def __init__(self, directory, num_samples: int, sets, report_of):
        super().__init__(directory, SAMPLES)
        self.num_samples = num_samples
        self.sets = sets
        self.report_of = report_of

    def on_evaluate(self, args, state, control, **kwargs):
        """Writes the samples of an evaluation during training."""
        self.write(self.report_of(), self.sets, state)

    def on_final(self, args, state, control, *, report, eval_sets, **kwargs) -> None:
        """Writes the samples of the last evaluation, which has the final weights."""
        if state.is_world_process_zero:
            self.trim_final()
        self.write(report, eval_sets, state, final=True)

    def write(self, report, eval_sets, state, **further_fields) -> None:
        """Writes a line for every sample of every set."""
        if not (self.num_samples and report is not None and state.is_world_process_zero):
            return
        for eval_set in eval_sets:
            for sample in sampled_answers(eval_set, report.results[eval_set.name], self.num_samples):
                self.add({"step": state.global_step, "task": eval_set.name, **further_fields, **sample})


def sampled_answers(eval_set, result, num_samples: int) -> list[dict]:
    """The answers to some examples of a split, as plain values."""
    samples = [dict(sample) for sample in result.samples]
    if not samples:
        indices = evenly_spread_indices(len(result.predictions), num_samples)
        samples = [sampled_answer(eval_set, index, result.predictions[index]) for index in indices]
    return [{name: cut_long_text(value) for name, value in sample.items()} for sample in samples]


def sampled_answer(eval_set, index: int, prediction: str) -> dict:
    """The answer to one example, with what was asked and expected."""
    row = eval_set.row_of_example[index]
    targets = eval_set.examples[index].targets
    return {
        "row": row,
        "input": eval_set.shown_inputs(index),
        "target": targets if eval_set.labelled else None,
        "prediction": prediction,
        "right": is_right(eval_set.task, eval_set.rows[row], targets, prediction),
    }


def cut_long_text(value):
    """A long text without its end; all other values as they are."""
    return without_end(value) if isinstance(value, str) and len(value) > LONGEST_TEXT else value


def without_end(text: str) -> str:
    """A long text without its end; a mark in it that says where the model stops reading is kept, and is never torn."""
    mark = CUT_MARK.search(text)
    end = LONGEST_TEXT
    if mark and mark.start() < end < mark.end():
        end = mark.start()
    num_hidden = len(text) - end
    ending = ""
    if mark and mark.start() >= end:
        num_hidden -= len(mark[0])
        ending = mark[0].rstrip()
    return f"{text[:end]} ... ({num_hidden} more characters){ending}"


def evenly_spread_indices(num_examples: int, num_samples: int) -> list[int]:
    """Indices of evenly spread examples.

    >>> evenly_spread_indices(100, 4), evenly_spread_indices(2, 4)
    ([0, 25, 50, 75], [0, 1])
    """
    count = min(num_examples, num_samples)
    return [i * num_examples // count for i in range(count)]
