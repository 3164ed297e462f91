"""`t5suite sweep`: W&B sweep files without a server, grids from the command line, and what is wrong in a sweep file.

t5suite sweep sweeps/glue_rte_sweep.yaml --count 20 --workers 2
t5suite sweep --sweep_dir runs/sweeps/glue_rte --resume --count 30
t5suite sweep --grid learning_rate=1e-3,3e-4 --seeds 1,2,3 --tasks rte,cola -- python fine_tune_t5.py
t5suite sweep lint sweeps/*.yaml
"""

import os
import re
import shlex
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.files import own_or_shipped
from t5suite.base.lookup import MAX_NAME_BYTES
from t5suite.base.programs import output_may_end_early
from t5suite.base.redaction import MASK
from t5suite.commands.shared import add_json_flag, check_at_least, note, print_json
from t5suite.constants import DATASET_VALS
from t5suite.launch.sweep_checks import check_sweep
from t5suite.launch.sweep_files import SweepFile, read_sweep
from t5suite.launch.sweep_scripts import script_of

# Flags that say where rows are from.
FLAGS_OF_ROWS = {"benchmark", "task_file", "data_format", "data_class"}


def sweep_flags(parser) -> None:
    """Flags of `t5suite sweep`; words after `--` belong to the trials' command."""
    parser.set_defaults(takes_words=True)
    add = parser.add_argument
    add("files", nargs="*", metavar="FILE", help="a sweep file; or lint and files to check")
    add("--count", type=int, help="trials of the whole sweep, over all its processes")
    add("--workers", type=int, default=1, help="trials at a time, of this process (default: 1)")
    add("--resume", action="store_true", help="resume an existing sweep, or join it while it runs")
    add("--sweep_dir", help="the sweep's directory (default: runs/sweeps/<name>)")
    add = parser.add_argument_group("search").add_argument
    add("--sampler", choices=("tpe", "gp"), default="tpe", help="sampler of method bayes (default: tpe)")
    add("--seed", type=int, default=0, help="of the search (default: 0)")
    add = parser.add_argument_group("a grid without a file, over the command after --").add_argument
    add("--grid", nargs="+", action="extend", default=[], metavar="FLAG=VALUE,VALUE", help="settings")
    add("--seeds", metavar="N,N", help="seeds")
    add("--tasks", metavar="TASK,TASK", help="values of --dataset_name")
    add("--metric", help="its name in the runs' metrics (default: eval/average, each task's own metric)")
    add = parser.add_argument_group("trials").add_argument
    add("--gpus_per_trial", type=int, help="GPUs of a trial (default: all, divided among the workers)")
    add("--grace", type=float, help="seconds for a trial's last checkpoint (default: 60)")
    add_json_flag(parser)


def run_sweep(arguments) -> None:
    """Runs or checks what the flags say.

    Raises:
      ConfigError: the sweep cannot run here.
    """
    if arguments.files[:1] == ["lint"]:
        lint(arguments.files[1:], arguments.json)
        return
    check_at_least(arguments, count=1, workers=1, gpus_per_trial=0, grace=0, seed=0)
    sweep, words = _sweep_by_flags(arguments)
    errors = []
    warnings = []
    for finding in check_sweep(sweep):
        message = str(finding) if sweep.lines else f"{sweep.path}: {finding.message}"
        prevents_running = finding.level == "error" or finding.needs_server
        (errors if prevents_running else warnings).append(message)
    if errors:
        raise ConfigError("\n".join(errors))
    _check_program(sweep)
    for message in warnings:
        note(message)
    _run(sweep, words, arguments)


def _check_program(sweep: SweepFile) -> None:
    """Checks that a Python script of the user's own exists, which every trial would miss."""
    program = sweep.content.get("program")
    is_own_script = script_of(sweep) is None and isinstance(program, str) and program.endswith(".py")
    if is_own_script and "${program}" in sweep.command() and not os.path.isfile(program):
        raise ConfigError(f"{sweep.path}: program: no file {program!r}; a path is relative to the current directory")


def lint(files: list[str], as_json: bool) -> None:
    """Shows every finding in these files.

    Raises:
      ConfigError: some of them are errors.
    """
    if not files:
        raise ConfigError("t5suite sweep lint: give the sweep files")
    error_count = sum(_lint_file(file, as_json) for file in files)
    if error_count:
        raise ConfigError(f"{error_count} finding{'s' if error_count > 1 else ''}")


def _lint_file(file: str, as_json: bool) -> int:
    """Shows a file's findings; returns how many of them are errors."""
    findings = []
    unreadable = None
    try:
        findings = check_sweep(read_sweep(own_or_shipped(file, "sweeps", "no sweep file")))
    except ConfigError as error:
        unreadable = str(error)
    with output_may_end_early():
        if as_json:
            rows = [{"line": finding.line, "level": finding.level, "message": finding.message} for finding in findings]
            print_json({"file": file, "findings": rows, "unreadable": unreadable})
        else:
            print(*(findings or [unreadable or f"{file}: fine"]), sep="\n")
    if unreadable:
        return 1
    return sum(finding.level == "error" for finding in findings)


def _sweep_by_flags(arguments) -> tuple[SweepFile, list[str]]:
    """The sweep of the flags, and words for its trials' command.

    Raises:
      ConfigError: neither a file nor a grid, or both; the file of a grid whose trials need a secret.
    """
    files = arguments.files
    is_grid = bool(arguments.grid or arguments.seeds is not None or arguments.tasks is not None)
    if arguments.resume and arguments.sweep_dir and not is_grid and not files:
        files = [str(Path(arguments.sweep_dir) / "sweep.yaml")]
    if is_grid == bool(files) or len(files) > 1:
        raise ConfigError("t5suite sweep: give a sweep file, or --grid, --seeds or --tasks; not both, and one file")
    if is_grid:
        return _grid_by_flags(arguments), []
    if arguments.metric:
        raise ConfigError("--metric is for grids; a sweep file has its own `metric:`")
    sweep = read_sweep(own_or_shipped(files[0], "sweeps", "no sweep file"))
    if any(MASK in word for word in sweep.command()):
        raise ConfigError(
            f"{sweep.path}: the command of its trials has a secret, which the file does not hold ({MASK}); give the "
            "same --grid, --seeds, --tasks and command again"
        )
    return sweep, arguments.words


def _grid_by_flags(arguments) -> SweepFile:
    """The sweep of `--grid`, `--seeds` and `--tasks` over the command after `--`."""
    from t5suite.launch.grids import grid_content

    words = list(arguments.words)
    benchmark = _benchmark_of_tasks(words, arguments.grid, arguments.tasks)
    if benchmark is not None:
        words.append(f"--benchmark={benchmark}")
    content = grid_content(arguments.grid, arguments.seeds, arguments.tasks, words, arguments.metric)
    return SweepFile("--grid", content, {})


def _benchmark_of_tasks(words: list[str], grid: list[str], tasks: str | None) -> str | None:
    """The benchmark that has all of `--tasks`; None if it is the default one, or the command says where rows are.

    Raises:
      ConfigError: several benchmarks have them.
    """
    script = script_of(SweepFile("--grid", {"command": words}, {}))
    if script is None or script.name != "fine_tune_t5":
        return None
    flags = {*script.flags, *(setting.partition("=")[0] for setting in grid)}
    if flags & FLAGS_OF_ROWS:
        return None
    names = [name.strip() for name in (tasks or "").split(",")]
    benchmarks = [benchmark for benchmark, entries in DATASET_VALS.items() if entries.keys() >= set(names)]
    if not benchmarks or "mini" in benchmarks:
        return None
    if len(benchmarks) > 1:
        raise ConfigError(
            f"--tasks {tasks}: tasks of {', '.join(benchmarks)}; add --benchmark {benchmarks[0]} after --"
        )
    return benchmarks[0]


def _run(sweep: SweepFile, words: list[str], arguments) -> None:
    """Runs the sweep and shows its results.

    Raises:
      ConfigError: the flags do not fit, or no trial finished.
      Preempted: it was asked to stop.
    """
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise ConfigError("t5suite sweep needs Optuna: pip install 't5suite[sweeps]'") from None
    from t5suite.launch.sweep_plans import plan_of
    from t5suite.launch.sweep_summaries import summary_of
    from t5suite.launch.sweeps import Sweep
    from t5suite.launch.trial_environments import devices_of_workers, visible_devices
    from t5suite.launch.trials import GRACE
    from t5suite.reports.sweeps import print_sweep, read_sweep_record

    plan = plan_of(sweep, arguments.count, words, arguments.sampler, arguments.seed)
    folder = re.sub(r"[^A-Za-z0-9_.-]+", "-", plan.name).strip("-.")[:MAX_NAME_BYTES] or "sweep"
    directory = arguments.sweep_dir or str(Path("runs") / "sweeps" / folder)
    visible = visible_devices()
    devices = devices_of_workers(arguments.workers, visible, arguments.gpus_per_trial)
    note_unused_devices(devices, visible)
    grace = GRACE if arguments.grace is None else arguments.grace
    running_sweep = Sweep(plan, directory, arguments.workers, arguments.resume, devices, grace)
    records = running_sweep.run()
    with output_may_end_early():
        if arguments.json:
            print_json(summary_of(running_sweep.plan, records))
        else:
            print_sweep(read_sweep_record(directory))
    note(f"for a page with all of it: t5suite report {shlex.quote(directory)}")
    if not any(record["state"] in ("complete", "running", "preempted") for record in records):
        raise ConfigError(nothing_finished(records, directory))


def note_unused_devices(devices: list[list[str] | None], visible: list[str]) -> None:
    """Names the GPUs that no worker has, such as the fifth of five for two workers."""
    used = {name for names_of_worker in devices for name in names_of_worker or visible}
    unused = [name for name in visible if name not in used]
    if unused:
        note(f"not used: GPU {', '.join(unused)}; each of {len(devices)} workers has {len(devices[0])}")


def nothing_finished(records: list[dict], directory: str) -> str:
    """That no trial finished, with the reason of the last one and the end of what it printed."""
    from t5suite.launch.trials import end_of_log

    failed = [record for record in records if record.get("why")]
    if not failed:
        return f"none of the {len(records)} trials finished; see {directory}"
    last = failed[-1]
    log = Path(f"{last['run_dir']}.log")
    message = f"none of the {len(records)} trials finished. Trial {last['number']}: {last['why']}; {log} says:"
    for line in end_of_log(log):
        message += f"\n  {line}"
    return message
