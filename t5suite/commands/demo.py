"""`t5suite demo`: the bundled tiny T5, trained on the three bundled tasks; no network.

t5suite demo --output_dir runs/demo
"""

import collections
import contextlib
import io
import os
import sys
from argparse import Namespace

from t5suite.commands.report import report
from t5suite.training.processes.signals import catching_signals

# Eight heads learn sentiment and entailment whatever the seed and the processor's rounding; four heads end at 84 to 100
# and at 75 to 88 (docs/log.md).
EIGHT_HEADS = ["--config_overrides", "num_heads=8"]
# The demo's tasks, each with its changes to recipes/mini.yaml.
DEMO = {
    "sentiment": ["--max_steps", "1700", "--eval_steps", "425", *EIGHT_HEADS],
    "entailment": ["--max_steps", "1000", "--eval_steps", "250", "--learning_rate", "1.2e-2", *EIGHT_HEADS],
    "similarity": ["--max_steps", "1000", "--eval_steps", "250", "--learning_rate", "1e-2"],
}
# All matrices of the tiny T5 are small. Factored, as transformers' Adafactor does it, it learns sentiment in fewer
# updates: 99.5 after 2000, and 89.2 without.
DEMO_OPTIMIZER = ["--optim_args", "min_dim_size_to_factor=0"]
INTRO = (
    "demo: a tiny T5 with random weights learns three small tasks, in three to five minutes. "
    "Ctrl-C saves a checkpoint and stops; the same command goes on from it."
)
COLUMNS = ("task", "metric", "this model", "most frequent answer", "bag of words")


def demo_flags(parser) -> None:
    """Flags of `t5suite demo`."""
    parser.add_argument("--output_dir", default="runs/demo", help="DIR: DIR/<task> and DIR/report (default: runs/demo)")


def demo(arguments) -> None:
    """Trains the bundled tiny T5 from random weights on the three bundled tasks, and shows what it has learned."""
    print(INTRO, file=sys.stderr, flush=True)  # before the imports, which take seconds
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # more threads slow this small model down
    import fine_tune_t5
    from t5suite.base.terminal import Terminal

    run_directories = [f"{arguments.output_dir}/{name}" for name in DEMO]
    for (name, flags), directory in zip(DEMO.items(), run_directories):
        words = ["mini.yaml", "--dataset_name", name, *DEMO_OPTIMIZER, *flags, "--output_dir", directory]
        with catching_signals():
            fine_tune_t5.main(words)
    report_folder = f"{arguments.output_dir}/report"
    _write_report(run_directories, report_folder)
    Terminal().print(score_table(arguments.output_dir))
    print(f"every answer, curve and mistake: {report_folder}/report.html")


def score_table(folder: str):
    """The scores of the demo's runs in a folder, beside those of simple baselines."""
    from t5suite.reports.formatting import points
    from t5suite.reports.tables import new_table
    from t5suite.runs.directory import read_results
    from t5suite.tasks.registry import load_task

    table = new_table(None, COLUMNS, right=COLUMNS[2:])
    for name in DEMO:
        model_scores = read_results(f"{folder}/{name}")["tasks"][name]
        columns_of_scores = [model_scores, *baselines(load_task("mini", name))]
        for metric in model_scores:
            if metric != "invalid_rate":
                table.add_row(f"mini/{name}", metric, *[points(scores[metric]) for scores in columns_of_scores])
    return table


def _write_report(run_directories: list[str], report_folder: str) -> None:
    """The report of the runs; what it prints is part of the demo's own table."""
    flags = Namespace(
        directories=run_directories,
        output=report_folder,
        format="html,md,json",
        size=None,
        max_examples=1500,
        data_dir=None,
        json=False,
    )
    with contextlib.redirect_stdout(io.StringIO()):
        report(flags)


def baselines(task) -> list[dict[str, float]]:
    """Points on the validation rows: of their most frequent label, as in a report, and of a bag of words.

    The bag of words is a logistic regression over the words of the training rows.
    """
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    from t5suite.data.rows.sources import DataOptions, load_split

    training_rows = load_split(task, "train", "train", DataOptions()).rows
    validation_rows = load_split(task, "validation", "validation", DataOptions()).rows
    inputs, targets = zip(*(task.examples(row)[0] for row in training_rows))
    classifier = make_pipeline(CountVectorizer(binary=True), LogisticRegression(C=0.1, max_iter=300))
    classifier.fit(inputs, targets)
    validation_inputs, labels = zip(*(task.examples(row)[0] for row in validation_rows))
    [(most_frequent_label, _)] = collections.Counter(labels).most_common(1)
    return [
        task.score(validation_rows, [most_frequent_label] * len(labels)),
        task.score(validation_rows, list(classifier.predict(validation_inputs))),
    ]
