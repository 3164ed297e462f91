"""Whether one answer is right, as far as that can be said of a single one.

>>> is_right(load_task("glue", "rte"), {"label": 0, ...}, "entailment", "entailment")
True

Metrics see more (F1 of words, correlations): this is for tables of examples.
"""

from t5suite.tasks.metrics import wsc_verdict
from t5suite.tasks.targets import is_number, label_of
from t5suite.tasks.text_metrics import normalize_answer

# How far a number may be off and still be called right: half of the grid's step of T5's STS-B.
CLOSE = 0.1


def is_right(task, row, target: str, prediction: str) -> bool | None:
    """Whether `prediction` is right for an example of the row; None for a row without a label.

    As `verdict` has it, with all of the row's references. WSC: whether the referent that was written means the
    candidate, as the label says that it should.
    """
    if not task.is_labelled(row):
        return None
    if task.entry.get("postprocess") == "wsc_verdict":
        return wsc_verdict(prediction, target) == int(label_of(row, task.entry))
    return verdict(task, prediction, [target, *task.references(row)]) == "right"


def verdict(task, prediction: str, references: list[str]) -> str:
    """'right', 'wrong', or 'invalid': a text that is no label, or no number where one is asked for.

    Classes: by the label. Numbers: within CLOSE. Texts: equal to one of the references once articles, punctuation and
    case are gone, as SQuAD has it.
    """
    if task.value_kind == "class":
        answer = task.parse(prediction)
        return "invalid" if answer == -1 else "right" if answer == task.parse(references[0]) else "wrong"
    if task.value_kind == "number":
        if not is_number(prediction):
            return "invalid"
        return "right" if abs(float(prediction) - float(references[0])) <= CLOSE + 1e-9 else "wrong"
    return "right" if normalize_answer(prediction) in map(normalize_answer, references) else "wrong"
