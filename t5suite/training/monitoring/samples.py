"""Some rows' answers at each evaluation: `samples.jsonl`, and a table in every tracker that has one.

    >>> trainer.add_callback(SampleCallback(run_dir, trackers, num_samples=8, report_of=lambda: trainer.last_report))
    >>> read_jsonl(run_dir / "samples.jsonl")[0]
    {'step': 20, 'task': 'rte', 'row': 0, 'input': 'rte sentence1: ...', 'target': 'entailment',
     'prediction': 'entailment', 'right': True}

They are answers of the evaluation itself: nothing is generated twice. The rows are spread evenly over the split and
the same at every evaluation, so that one sees how their answers change.
"""

import logging

from t5suite.tasks.postprocessors import is_right
from t5suite.tracking.metric_lines import SAMPLES
from t5suite.training.callbacks import LinesCallback

logger = logging.getLogger(__name__)

# Longer texts are cut: a table is to be read.
LONGEST_TEXT = 2000


class SampleCallback(LinesCallback):
    """Writes samples after each evaluation; a resumed run has each step's once.

    Args:
      num_samples: rows of each split; 0: none.
      sets: what is evaluated during training, in the order of the report.
      report_of: gives the report of the evaluation that just was.
    """

    def __init__(self, directory, trackers, num_samples: int, sets, report_of):
        super().__init__(directory, SAMPLES)
        self.trackers, self.num_samples, self.sets, self.report_of = trackers, num_samples, sets, report_of
        self.begun = False

    def on_train_begin(self, args, state, control, **kwargs):
        """Keeps what an interrupted run wrote up to the checkpoint that it goes on from."""
        self.begun = True
        if state.is_world_process_zero:
            self.lines.trim(state.global_step)

    def on_evaluate(self, args, state, control, **kwargs):
        """The evaluation's samples."""
        self.write(self.report_of(), self.sets, state)

    def on_final(self, report, eval_sets, state) -> None:
        """The samples of the last evaluation, with the weights that the run ends with."""
        if not self.begun and state.is_world_process_zero:
            self.lines.trim(-1)
        self.write(report, eval_sets, state, final=True)

    def write(self, report, eval_sets, state, **also) -> None:
        """Adds the lines of one evaluation."""
        if not (self.num_samples and report is not None and state.is_world_process_zero):
            return
        lines = [
            {"step": state.global_step, "task": eval_set.name, **also, **line}
            for eval_set in eval_sets
            for line in samples_of(eval_set, report.results[eval_set.name], self.num_samples)
        ]
        for line in lines:
            self.lines.add(line)
        if lines:
            self.trackers.samples(lines, state.global_step)


def samples_of(eval_set, result, num_samples: int) -> list[dict]:
    """The answers of some examples of a split, as plain values."""
    if result.samples:
        return [{name: _short(value) for name, value in sample.items()} for sample in result.samples]
    found = []
    for i in chosen(len(result.predictions), num_samples):
        row, example = eval_set.rows[eval_set.row_of_example[i]], eval_set.examples[i]
        line = {
            "row": eval_set.row_of_example[i],
            "input": example.inputs,
            "target": example.targets if eval_set.labelled else None,
            "prediction": result.predictions[i],
            "right": is_right(eval_set.task, row, example.targets, result.predictions[i]),
        }
        found.append({name: _short(value) for name, value in line.items()})
    return found


def chosen(num_examples: int, num_samples: int) -> list[int]:
    """Examples spread evenly.

    >>> chosen(100, 4), chosen(2, 4)
    ([0, 25, 50, 75], [0, 1])
    """
    count = min(num_examples, num_samples)
    return [i * num_examples // count for i in range(count)]


def _short(value):
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        return f"{value[:LONGEST_TEXT]} ... ({len(value) - LONGEST_TEXT} more characters)"
    return value
