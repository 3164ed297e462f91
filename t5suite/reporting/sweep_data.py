"""A sweep as plain data, and its plots.

>>> data, plots = sweep_report("runs/sweeps/glue_rte")
>>> data["best"], data["importances"]
(7, {'learning_rate': 0.83, 'warmup_steps': 0.17})

The plots are those of `t5suite.tracking.sweeps.plots`: each trial's objective, learning curves, parameters, parallel
coordinates, importance and a grid's means.
"""

from pathlib import Path

from matplotlib.figure import Figure

from t5suite.reporting.figures import Plot
from t5suite.tracking.sweeps.importance import importances
from t5suite.tracking.sweeps.plots import INCHES, PLOTS
from t5suite.tracking.sweeps.records import Sweep, read_sweep

TITLES = {
    "objective": "Every trial and the best so far",
    "learning_curves": "Learning curves of the trials",
    "parameters": "Score over each parameter",
    "parallel_coordinates": "Parallel coordinates",
    "importance": "Parameter importance",
    "groups": "Means over seeds",
}


def sweep_report(directory) -> tuple[dict, list[Plot]]:
    """`(the sweep's part of the report data, its plots)`.

    Raises:
      DataError: no sweep there, or no trial of it yet.
    """
    sweep = read_sweep(directory)
    try:
        shares, lack = importances(sweep), ""
    except ImportError:
        shares, lack = {}, "parameter importance needs Optuna: python -m pip install 't5suite[sweeps]'"
    return sweep_data(sweep, shares, lack), sweep_plots(sweep, shares)


def sweep_data(sweep: Sweep, shares: dict[str, float], lack: str) -> dict:
    """What the tables show; trials, the best first."""
    best = sweep.best_trial()
    return {
        "name": sweep.name,
        "directory": str(sweep.directory),
        "method": sweep.method,
        "metric": sweep.metric,
        "goal": sweep.goal,
        "best": sweep.best,
        "command": best.command if best else "",
        "varied": sweep.varied(),
        "constant": sweep.constant(),
        "groups": sweep.groups,
        "importances": shares,
        "trials": [{**trial._asdict(), "curve": [list(point) for point in trial.curve]} for trial in sweep.ranked()],
        "notes": [lack] if lack else [],
    }


def trial_directories(sweep: dict) -> list[Path]:
    """Where the runs of a sweep's trials are, in the order of their numbers; a relative path may be the sweep's own."""
    trials = sorted(sweep["trials"], key=lambda trial: trial["number"])
    paths = [Path(trial["run_dir"]) for trial in trials if trial["run_dir"]]
    beside = Path(sweep["directory"])
    return [path if path.is_dir() else beside / path for path in paths]


def sweep_plots(sweep: Sweep, shares: dict[str, float]) -> list[Plot]:
    """The plots that the sweep has data for."""
    plots = []
    for name, draw in PLOTS.items():
        if draw(Figure(figsize=(INCHES, 5.5), layout="constrained"), sweep, shares) is False:
            continue
        drawn = lambda figure, legend, draw=draw: draw(figure, sweep, shares)
        title = f"{sweep.name}: {TITLES.get(name, name)}"
        safe = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in sweep.name)
        plots.append(Plot(f"sweep-{safe}-{name}", title, drawn, (INCHES, 5.5), "sweeps", ink=False))
    return plots
