"""The card of a fine-tuned model.

>>> write_fine_tuned_card(run.directory, title, run.manifest, results, eval_sets, report)
PosixPath('runs/glue-rte-t5-small/README.md')
"""

import json
from pathlib import Path

from t5suite.data.encodings import PromptEncoding, SegmentEncoding
from t5suite.model_cards.facts import CardFacts, Scored
from t5suite.model_cards.usage import own_class_lines, pipeline_tag, usage_lines
from t5suite.model_cards.writing import write_card
from t5suite.training.eval_results import Report
from t5suite.training.eval_sets import EvalSet

LONGEST_ROW = 1000  # characters of a row that the command answers
ROWS_LOOKED_AT = 100


def write_fine_tuned_card(
    directory, title: str, manifest: dict, results: dict, eval_sets: list[EvalSet], report: Report
) -> Path:
    """Writes `README.md` into a run's directory.

    Args:
      eval_sets: what was scored, whose first rows are the examples.
      report: the scores, for what must be said of them.
    """
    example = next((eval_set for eval_set in eval_sets if eval_set.examples), None)
    encoding, settings = example.encoding if example else None, manifest["settings"]
    own = settings.get("model_class")
    adapted = "adapter" in manifest.get("model", {})
    facts = CardFacts(
        title=title,
        results=results,
        manifest=manifest,
        pipeline_tag=pipeline_tag(encoding),
        usage=own_class_lines(own) if own else usage_lines(example, adapted),
        predict=predict_lines(eval_sets, manifest),
        scored={eval_set.name: _scored(eval_set, report) for eval_set in eval_sets},
        base_model=base_of(manifest),
        family=next((family for kind, family in FAMILIES.items() if isinstance(encoding, kind)), "seq2seq"),
    )
    return write_card(directory, facts)


def base_of(manifest: dict) -> str | None:
    """What a model began with; None for random weights."""
    settings = manifest["settings"]
    began = None if settings.get("from_scratch") else settings.get("model_name_or_path")
    return manifest.get("model", {}).get("base") or began


def predict_lines(eval_sets: list[EvalSet], manifest: dict) -> list[str]:
    """The command that answers a row, in lines; none where no row is short, or the model answers nothing."""
    answering = [eval_set for eval_set in eval_sets if eval_set.method != "loss"]
    found = next(((eval_set, row) for eval_set in answering if (row := short_row(eval_set))), None)
    if found is None:
        return []
    eval_set, row = found
    flags = ["--model_name_or_path", "."]
    if len(manifest.get("tasks", {})) > 1:
        flags += ["--dataset_name", eval_set.task.name]
    if manifest["settings"].get("model_class"):
        flags += ["--model_class", manifest["settings"]["model_class"]]
    return [f"t5suite predict {' '.join(flags)} --input - <<'ROWS'", row, "ROWS"]


def short_row(eval_set: EvalSet) -> str | None:
    """The first row that is not long, as a line of JSON without its label."""
    label = eval_set.task.entry.get("label_column_name")
    for row in eval_set.rows[:ROWS_LOOKED_AT]:
        line = json.dumps(
            {name: value for name, value in row.items() if name != label}, ensure_ascii=False, default=str
        )
        if len(line) <= LONGEST_ROW:
            return line
    return None


def _scored(eval_set: EvalSet, report: Report) -> Scored:
    result = report.results[eval_set.name]
    first = eval_set.examples[0] if eval_set.examples else None
    return Scored(
        task=eval_set.task.name,
        split=eval_set.split,
        rows=result.num_rows,
        method=result.method,
        marks=tuple(result.marks),
        example=(first.inputs, first.targets if eval_set.labelled else "") if first else None,
    )


FAMILIES = {PromptEncoding: "causal", SegmentEncoding: "masked"}
