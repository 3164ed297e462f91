"""`t5suite demo`, `mirror`, `report` and `compare`: a first run, data for machines without a network, tables and pages.

t5suite mirror --benchmark glue --dataset_name all --output_dir data
"""

import collections
import contextlib
import io
import os
import sys
from argparse import Namespace
from pathlib import Path

from t5suite.base.lookup import find
from t5suite.commands.shared import add_data_dir_flag, add_json_flag, check_at_least, note, print_json

# The demo's tasks, each with its changes to recipes/mini.yaml.
DEMO = {
    "sentiment": ["--max_steps", "2000", "--eval_steps", "500"],
    "entailment": ["--max_steps", "800", "--eval_steps", "200", "--learning_rate", "1.2e-2"],
    "similarity": ["--max_steps", "800", "--eval_steps", "200", "--learning_rate", "1e-2"],
}

# All matrices of the tiny T5 are small. Factored, as transformers' Adafactor does it, it learns sentiment in fewer
# updates: 99.5 after 2000, and 89.2 without.
DEMO_OPTIMIZER = ["--optim_args", "min_dim_size_to_factor=0"]


def demo_flags(parser) -> None:
    """Flags of `t5suite demo`."""
    parser.add_argument("--output_dir", default="runs/demo", help="DIR: DIR/<task> and DIR/report (default: runs/demo)")


def demo(arguments) -> None:
    """Trains the bundled tiny T5 from random weights on the three bundled tasks, and shows what it has learned."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # more threads slow this small model down
    import fine_tune_t5
    from t5suite.base.terminal import Terminal
    from t5suite.reports.formatting import points
    from t5suite.reports.tables import new_table
    from t5suite.tasks.registry import load_task

    columns = ("task", "metric", "this model", "most frequent answer", "bag of words")
    table, runs = new_table(None, columns, right=columns[2:]), [f"{arguments.output_dir}/{name}" for name in DEMO]
    for (name, flags), run in zip(DEMO.items(), runs):
        words = ["mini.yaml", "--dataset_name", name, *DEMO_OPTIMIZER, *flags, "--output_dir", run]
        model_scores = fine_tune_t5.main(words)["tasks"][name]
        baseline_scores = baselines(load_task("mini", name))
        for metric in [metric for metric in model_scores if metric != "invalid_rate"]:
            cells = [points(scores[metric]) for scores in (model_scores, *baseline_scores)]
            table.add_row(f"mini/{name}", metric, *cells)
    asked = {"output": f"{arguments.output_dir}/report", "format": "html,md,json", "size": None, "max_examples": 1500}
    with contextlib.redirect_stdout(io.StringIO()):  # its table is part of this one
        report(Namespace(directories=runs, data_dir=None, json=False, **asked))
    Terminal().print(table)
    print(f"every answer, curve and mistake: {asked['output']}/report.html")


def baselines(task) -> list[dict[str, float]]:
    """Points of the most frequent answer and of a bag of words (logistic regression), on the validation rows."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    from t5suite.data.rows.sources import DataOptions, load_split

    rows = {role: load_split(task, role, role, DataOptions()).rows for role in ("train", "validation")}
    inputs, targets = zip(*(task.examples(row)[0] for row in rows["train"]))
    words = make_pipeline(CountVectorizer(binary=True), LogisticRegression(C=0.1, max_iter=300)).fit(inputs, targets)
    ((frequent, _),) = collections.Counter(targets).most_common(1)
    asked = [task.examples(row)[0].inputs for row in rows["validation"]]
    return [
        task.score(rows["validation"], answers) for answers in ([frequent] * len(asked), list(words.predict(asked)))
    ]


def mirror_flags(parser) -> None:
    """Flags of `t5suite mirror`."""
    add = parser.add_argument
    add("--benchmark", required=True, help="glue, super_glue, or one of your --task_file")
    add("--dataset_name", default="all", help="a task, several with commas, or all (default)")
    add("--task_file", help="YAML or Python file with tasks of your own")
    add("--output_dir", required=True, help="DIR: files are DIR/<benchmark>/<task>/<split>.jsonl")
    add(
        "--data_revision",
        help="branch, tag or commit of the hub's data set, or NAME=REVISION,... of several (default: main)",
    )
    add("--gzip", action="store_true", help="write .jsonl.gz")
    add("--force", action="store_true", help="write existing files again")
    add_json_flag(parser)


def run_mirror(arguments) -> None:
    """Downloads a benchmark for machines without a network."""
    from t5suite.data.rows.sources import mirror
    from t5suite.tasks.entries import load_registry
    from t5suite.tasks.registry import load_task, resolve_names

    benchmark, dataset_name, registry = arguments.benchmark, arguments.dataset_name, load_registry(arguments.task_file)
    entries = find(benchmark, registry, "benchmark", where="--benchmark")
    names = entries if dataset_name == "all" else resolve_names(benchmark, dataset_name, registry, {})[0]
    tasks = [load_task(benchmark, name, registry=registry) for name in names]
    if dataset_name == "all":
        tasks = [task for task in tasks if task.entry.get("hub_path")] or tasks
    # Each once: `wnli_simple` reads `wnli`'s rows.
    wanted = dict.fromkeys(task.rows_of if task.rows_of in entries else task.name for task in tasks)
    tasks = [load_task(benchmark, name, registry=registry) for name in wanted]
    for copy in mirror(tasks, arguments.output_dir, arguments.data_revision, arguments.gzip, arguments.force):
        if arguments.json:
            facts = {"benchmark": copy.task.benchmark, "dataset_name": copy.task.name, "split": copy.split}
            facts |= {"path": str(copy.path), "status": copy.status, "rows": copy.rows, "official": copy.official}
            print_json(facts)
        else:
            said = f"{copy.rows} rows" if copy.status == "written" else "exists already (--force writes it again)"
            print(f"{copy.path}: {said}", flush=True)
        if copy.differs:
            note(f"{copy.path} has {copy.rows} rows, but the official number is {copy.official}")


def report_flags(parser) -> None:
    """Flags of `t5suite report`."""
    add = parser.add_argument
    add("directories", nargs="+", metavar="RUN", help="directories of runs and of sweeps")
    where = "a new folder, or an earlier report's, which is replaced (default: report; with --json: nowhere)"
    add("--output", metavar="DIR", help=where)
    formats = "of html, md, json, with commas (default: all); none: only tables"
    add("--format", default="html,md,json", help=formats)
    add("--size", help="published T5 to compare scores with: small, base, large, 3B, 11B")
    add("--max_examples", type=int, default=1500, help="answers shown in the page (default: 1500)")
    add_data_dir_flag(parser)
    add_json_flag(parser)


def report(arguments) -> None:
    """Shows the results of runs in one table, with a benchmark's average where they cover it, and those of sweeps; then
    writes the report: a page, Markdown, the data and every plot.

    Raises:
      ConfigError: an unknown format or size, an --output that holds other files.
      DataError: a directory without a run, or (with no file to write) no run that is finished.
    """
    from t5suite.reports.page import PLOTS_FOLDER, files_of_report, parse_formats, write_report
    from t5suite.reports.results import SIZES, is_run
    from t5suite.reports.sweeps import is_sweep, print_sweep, read_sweep_record, rows_of_sweep, trial_directories

    output, out = arguments.output or "report", sys.stderr if arguments.json else sys.stdout
    formats, size = parse_formats(arguments.format), arguments.size
    formats = [] if arguments.json and arguments.output is None else formats
    check_at_least(arguments, max_examples=0)
    if size is not None:
        find(size, dict.fromkeys(SIZES), "size", where="--size")
    if formats:
        files_of_report(output)
    sweeps = [read_sweep_record(directory) for directory in arguments.directories if is_sweep(directory)]
    runs = [directory for directory in arguments.directories if not is_sweep(directory)]
    for sweep in sweeps:
        if arguments.json:
            for row in rows_of_sweep(sweep):
                print_json(row)
        else:
            print_sweep(sweep)
    if runs:
        report_runs(runs, arguments.json, need_finished=not formats)
    if not formats:
        return
    from t5suite.reports.plots import figures_of
    from t5suite.reports.results import report_data

    trials = [path for sweep in sweeps for path in trial_directories(sweep).values() if is_run(path)]
    directories = list({Path(path).resolve(): path for path in [*runs, *trials]}.values())
    data = report_data(directories, arguments.data_dir, size, arguments.max_examples, sweeps)
    for part in data["examples"]:
        if part["note"]:
            note(f"{part['run']}: the report shows the answers without their texts: {part['note']}")
    plots = figures_of(data)
    written = write_report(data, plots, output, formats)
    named = ", ".join(str(path) for path in written if path.parent.name != PLOTS_FOLDER)
    drawn = f" and {2 * len(plots)} plots in {written[-1].parent}" if plots else ""
    print(f"report: {named}{drawn}", file=out)


def report_runs(directories, as_json: bool, need_finished: bool = True) -> None:
    """The table of runs, or JSON lines; unfinished runs are listed in notes."""
    from t5suite.reports.finished_runs import rows_of_runs, suite_averages
    from t5suite.reports.results import is_run
    from t5suite.reports.tables import print_run_table
    from t5suite.runs.directory import RESULTS

    unfinished = [d for d in directories if is_run(d) and not (Path(d) / RESULTS).is_file()]
    finished = [d for d in directories if d not in unfinished]
    rows = rows_of_runs(finished if finished or not need_finished else directories)
    for directory in unfinished:
        note(f"{directory}: not finished, so it is not in the table")
    if rows and not as_json:
        print_run_table(rows)
    elif rows:
        for row in rows:
            print_json(row)
        for benchmark, value in suite_averages(rows).items():
            print_json({"benchmark": benchmark, "average": value})


def compare_flags(parser) -> None:
    """Flags of `t5suite compare`."""
    parser.add_argument("a", metavar="A", help="a run's directory")
    parser.add_argument("b", metavar="B", help="the directory of the run to compare it with")
    parser.add_argument("--max_flips", type=int, default=5, help="flipped examples shown each way (default: 5)")
    add_data_dir_flag(parser)
    add_json_flag(parser)


def compare(arguments) -> None:
    """Shows how two runs differ on the same rows: scores with p-values, and the examples that flipped.

    Raises:
      ConfigError: a negative --max_flips.
      DataError: directories without predictions, or of different rows.
    """
    from t5suite.reports.compare import compare_runs, json_lines, print_comparison

    check_at_least(arguments, max_flips=0)
    found = compare_runs(arguments.a, arguments.b, arguments.data_dir)
    if arguments.json:
        for line in json_lines(found):
            print_json(line)
    else:
        print_comparison(found, arguments.max_flips)
