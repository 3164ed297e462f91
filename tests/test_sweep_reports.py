"""`t5suite report SWEEP_DIR`: the order of trials, what counts as best, a grid's means, and pictures of each kind."""

import contextlib
import io
import json
import math
import random
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from absl.testing import absltest, parameterized
from matplotlib.image import imread
from report_runs import make_run

from t5suite import cli
from t5suite.base.errors import DataError
from t5suite.reports.plots import PLOTS, draw_sweep, panel_names, running_best
from t5suite.reports.results import trial_names
from t5suite.reports.sweeps import importances, print_sweep, read_sweep, rows_of_sweep


def trial(number, value, state="complete", **parameters):
    curve = [] if value is None else [[10, value - 1], [20, value]]
    return {
        "number": number, "state": state, "parameters": parameters, "value": value, "last_step": 20, "curve": curve,
        "seconds": 12.3, "exit_code": {"complete": 0, "failed": 78}.get(state), "run_dir": f"trials/{number:04d}",
        "command": f"python fine_tune_t5.py --number '{number}'",
    }  # fmt: skip


def sweep_dir(trials, goal="maximize", best=None, groups=None, metric="eval/accuracy"):
    folder = Path(tempfile.mkdtemp())
    content = {"name": "rte", "method": "bayes", "metric": {"name": metric, "goal": goal}, "trials": trials}
    (folder / "sweep.json").write_text(json.dumps({**content, "best": best, "groups": groups}))
    return folder


def decided_by_the_rate(count=24):
    """Trials whose value follows the learning rate alone, up to a little noise."""
    drawn, trials = random.Random(0), []
    for number in range(count):
        rate, batch = 10 ** drawn.uniform(-5, -2), drawn.choice([8, 16, 32])
        value = 70 - 8 * (math.log10(rate) + 3.3) ** 2 + drawn.gauss(0, 0.5)
        words = drawn.choice(["linear", "cosine", "constant_with_warmup"])
        trials.append(trial(number, value, learning_rate=rate, per_device_train_batch_size=batch, schedule=words))
    return trials


def mixed():
    """Every state, with and without values."""
    return [
        trial(0, 61.0, learning_rate=1e-3, seed=1),
        {**trial(1, None, "failed", learning_rate=1e-1, seed=1), "why": "out of memory"},
        trial(2, 64.0, "pruned", learning_rate=3e-4, seed=1),
        trial(3, 63.5, learning_rate=1e-4, seed=1),
        trial(4, 50.0, "running", learning_rate=1e-5, seed=1),
        trial(5, 55.0, "preempted", learning_rate=2e-5, seed=1),
    ]


def grid():
    trials, groups = [], []
    for rate in (1e-3, 1e-4):
        for task in ("rte", "cola"):
            values = [60.0, 62.0, 64.0]
            trials += [
                trial(len(trials) + n, value, learning_rate=rate, dataset_name=task, seed=n)
                for n, value in enumerate(values)
            ]
            groups.append({"parameters": {"learning_rate": rate}, "task": task, "n": 3, "mean": 62.0, "std": 2.0})
    return trials, groups


def report(*argv):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        cli.main(["report", *map(str, argv), "--format", "none"])
    return out.getvalue(), err.getvalue()


def table(*argv):
    """What is printed, without the pictures."""
    with mock.patch("t5suite.reports.plots.draw_sweep", lambda sweep: ([], None)):
        return report(*argv)[0]


class RecordsTest(parameterized.TestCase):
    def test_trials_are_ranked_by_the_goal_and_the_best_so_far_never_gets_worse(self):
        cases = (
            ("maximize", [3, 0, 2, 5, 4, 1], [61, 64, 64, 64, 64]),
            ("minimize", [0, 3, 4, 5, 2, 1], [61, 61, 61, 50, 50]),
        )
        for goal, order, best in cases:
            sweep = read_sweep(sweep_dir(mixed(), goal))
            self.assertEqual([trial.number for trial in sweep.trials], order)
            self.assertEqual([value for _, value in running_best(sweep)], best)

    def test_parameters_that_never_change_are_told_apart(self):
        sweep = read_sweep(sweep_dir(mixed()))
        self.assertEqual((sweep.varied, sweep.constant), (["learning_rate"], {"seed": 1}))

    def test_axes_are_logarithmic_where_values_are_far_apart(self):
        for values, expected in (([0.0001, 0.2], True), ([0.1, 0.2], False), ([0, 10000], False), (["a", "b"], False)):
            trials = [trial(n, 60.0 + n, x=value) for n, value in enumerate(values)]
            self.assertEqual(read_sweep(sweep_dir(trials)).is_logarithmic("x"), expected)

    def test_a_broken_record_is_named(self):
        folder = sweep_dir([])
        start = '{"name": "a", "method": "grid", "metric": {"name": "m", "goal": '
        for text, said in (
            ("{", "not JSON"),
            ("[]", "TypeError"),
            (start + '"higher"}, "trials": []}', "higher"),
            (start + '"maximize"}, "trials": [{}]}', "state"),
            (start + '"maximize"}, "trials": [{"number": 0, "state": "lost", "parameters": {}}]}', "lost"),
        ):
            (folder / "sweep.json").write_text(text)
            with self.assertRaisesRegex(DataError, f"sweep.json: not a sweep's record.*{said}"):
                read_sweep(folder)

    def test_a_sweep_without_a_trial_says_so(self):
        folder = Path(tempfile.mkdtemp())
        (folder / "sweep.yaml").write_text("method: grid\n")
        with self.assertRaisesRegex(DataError, "no trial"):
            report(folder)


class TablesTest(parameterized.TestCase):
    def test_the_table_has_each_trial_the_best_and_its_command(self):
        out = table(sweep_dir(mixed(), best=2))
        for text in (
            "64",
            "pruned",
            "failed",
            "preempted",
            "running",
            "in all trials: seed=1",
            "trial 1: out of memory",
        ):
            self.assertIn(text, out)
        self.assertIn("best: trial 2, eval/accuracy 64 (trials/0002)\npython fine_tune_t5.py --number '2'\n", out)

    def test_json_lines_have_every_trial_in_order_and_nothing_else(self):
        with not_drawn():
            out, err = report(sweep_dir(mixed(), best=2), "--json")
        lines = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([line["number"] for line in lines[:-1]], [3, 0, 2, 5, 4, 1])
        self.assertEqual(lines[-1], {"sweep": "rte", "metric": "eval/accuracy", "best": 2})
        self.assertIn("objective.png", err)

    def test_a_grid_has_means_with_deviations_and_an_average(self):
        trials, groups = grid()
        out = table(sweep_dir(trials, best=2, groups=groups))
        self.assertIn("62.00 ± 2.00 (3)", out)
        self.assertIn("average", out)
        rows = rows_of_sweep(read_sweep(sweep_dir(trials, groups=groups)))
        self.assertLen([row for row in rows if "mean" in row], 4)

    def test_a_grid_with_a_missing_task_has_no_average_of_the_others(self):
        trials, groups = grid()
        groups[0]["mean"] = None
        out = table(sweep_dir(trials, best=2, groups=groups))
        row = next(line for line in out.splitlines() if line.strip().startswith("learning_rate 0.001"))
        self.assertEqual(row.split()[-1], "-")

    def test_settings_within_a_standard_deviation_of_the_best_are_equal(self):
        trials, groups = grid()
        for group, (mean, std) in zip(groups, [(51.67, 4.16), (50.0, 1.0), (51.56, 3.53), (52.0, 1.0)], strict=True):
            group.update(mean=mean, std=std)
        out = table(sweep_dir(trials, groups=groups))
        first = "learning_rate 0.001, mean 51.67, standard deviation 4.16, n 3"
        second = "learning_rate 0.0001, mean 51.56, standard deviation 3.53, n 3"
        self.assertIn(f"equal for rte (within one standard deviation of the best): {first}; {second}\n", out)
        self.assertIn("best for cola: learning_rate 0.0001, mean 52.00", out)
        self.assertNotIn("no trial", out)

    def test_no_best_is_said_of_sweeps_of_which_no_trial_has_ended(self):
        for values, none in (([None], True), ([64.0], True), ([64.0, 63.0], False)):
            trials = [trial(n, value, ("running", "complete")[n], learning_rate=1e-3) for n, value in enumerate(values)]
            out = table(sweep_dir(trials, best=None if none else 1))
            self.assertEqual("no trial has come to its end with a value of eval/accuracy" in out, none)

    def test_text_of_the_user_is_no_markup(self):
        out = table(sweep_dir([trial(0, 1.0, text="[bold]x[/bold]"), trial(1, 2.0, text="[/red]")], best=1))
        self.assertIn("[/red]", out)

    def test_runs_and_sweeps_stand_in_one_report(self):
        self.enter_context(not_drawn())
        self.enter_context(mock.patch("t5suite.reports.page.render", lambda plot: {"png": b"", "svg": b""}))
        place, out = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp()) / "out"
        alone, tried = (make_run(place / name, "sentiment", seed=seed) for seed, name in enumerate(("alone", "tried")))
        sweep = sweep_dir([{**trial(0, 50.0, learning_rate=1e-3), "run_dir": str(tried)}], best=0)
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            cli.main(["report", str(alone), str(sweep), str(tried), "--output", str(out), "--format", "json"])
        for words in ("rte: 1 complete", f"best: trial 0, eval/accuracy 50 ({tried})", "mini/sentiment"):
            self.assertIn(words, said.getvalue())
        data = json.loads((out / "report.json").read_text())
        self.assertEqual(data["title"], "Sweep rte; mini: sentiment")
        names = [run["name"] for run in data["runs"]]
        self.assertEqual(names, ["alone", "rte trial 0"], "a trial that is named is there once")
        self.assertEqual([part["name"] for part in data["sweeps"]], ["rte"])

    def test_trials_of_two_sweeps_of_one_name_are_told_apart(self):
        places = [f"/{place}/rates" for place in "ab"]
        trials = [[{"number": 0, "run_dir": f"{place}/0"}] for place in places]
        sweeps = [{"name": "rates", "directory": place, "trials": of} for place, of in zip(places, trials)]
        self.assertEqual(list(trial_names(sweeps).values()), ["a/rates trial 0", "b/rates trial 0"])


def not_drawn():
    """Figures are laid out, and not painted, which takes most of the time."""
    return mock.patch(
        "matplotlib.backends.backend_agg.FigureCanvasAgg.print_png", lambda canvas, path: Path(path).touch()
    )


class PlotsTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_every_plot_is_drawn_at_1280_pixels(self):
        trials, groups = grid()
        paths, _ = draw_sweep(read_sweep(sweep_dir(trials, best=2, groups=groups)))
        found = {path.stem: imread(path) for path in paths}
        self.assertEqual(set(found), set(PLOTS))
        for name, picture in found.items():
            self.assertEqual(picture.shape[1], 1280, name)
            self.assertGreater(picture[..., :3].std(), 0.05, name)  # not an empty page

    def test_odd_sweeps_have_plots_as_far_as_they_go(self):
        self.enter_context(not_drawn())
        for trials in (
            [],
            [trial(0, None, "failed", x=1)],
            [trial(0, 1.0, x=1)],
            [trial(n, 1.0, x=n) for n in range(5)],
            [trial(0, 1.0, x=1), trial(1, 2.0, y="b"), trial(2, 2.0, x=3, y="a")],
            [trial(0, 1.0, x=[1]), trial(1, 2.0, x=None), trial(2, 3.0, x=True)],
        ):
            self.check_drawn(trials)

    @parameterized.named_parameters(
        ("thirty parameters", [trial(n, n * 1.0, **{f"parameter_{i}": n * i for i in range(30)}) for n in range(6)]),
        ("dollars", [trial(0, 1.0, x="$x_1$", **{"a$b_$": 1}), trial(1, 2.0, x="$y^$", **{"a$b_$": 2})]),
        ("long words", [trial(n, n * 1.0, x="one_very_long_word_" * 9 + str(n)) for n in range(9)]),
    )
    @pytest.mark.slow
    def test_large_and_odd_sweeps_are_drawn_as_far_as_they_go(self, trials):
        self.check_drawn(trials)

    def check_drawn(self, trials):
        with contextlib.redirect_stdout(io.StringIO()):
            sweep = read_sweep(sweep_dir(trials, best=trials[0]["number"] if trials else None))
            print_sweep(sweep)
        paths, _ = draw_sweep(sweep)
        self.assertEqual(bool(paths), any(t["value"] is not None for t in trials))

    def test_a_plot_that_has_lost_its_data_goes(self):
        trials, groups = grid()
        folder = sweep_dir(trials, groups=groups)
        self.enter_context(not_drawn())
        draw_sweep(read_sweep(folder))
        content = json.loads((folder / "sweep.json").read_text())
        (folder / "sweep.json").write_text(json.dumps({**content, "groups": None}))
        names = [path.name for path in draw_sweep(read_sweep(folder))[0]]
        self.assertNotIn("groups.png", names)
        self.assertEqual(sorted(names), sorted(path.name for path in (folder / "plots").iterdir()))


class ImportanceTest(parameterized.TestCase):
    def test_the_parameter_that_decides_comes_first(self):
        found = importances(read_sweep(sweep_dir(decided_by_the_rate())))
        self.assertEqual(next(iter(found)), "learning_rate")
        self.assertGreater(found["learning_rate"], 0.5)
        self.assertAlmostEqual(sum(found.values()), 1.0, places=6)

    def test_where_not_all_parameters_can_be_shown_the_most_important_are(self):
        sweep = read_sweep(sweep_dir([trial(n, 60.0 + n, a=n, b=n, c=n, d=n) for n in range(4)]))
        self.assertEqual(panel_names(sweep, {"c": 0.9, "a": 0.1}, 3), ["c", "a", "b"])
        self.assertEqual(panel_names(sweep, {}, 2), ["a", "b"])

    def test_where_nothing_can_be_told_nothing_is(self):
        stopped = [{**t, "state": "pruned"} for t in decided_by_the_rate(8)]
        equal = [{**t, "value": 60.0} for t in decided_by_the_rate(8)]
        for trials in (decided_by_the_rate(3), stopped, equal, [trial(n, 60.0 + n, seed=1) for n in range(6)]):
            self.assertEqual(importances(read_sweep(sweep_dir(trials))), {})

    def test_without_optuna_the_other_plots_come(self):
        folder = sweep_dir(decided_by_the_rate(6), best=0)
        with mock.patch.dict("sys.modules", optuna=None), not_drawn():
            out, err = report(folder)
        self.assertIn("pip install 't5suite[sweeps]'", err)
        self.assertIn("objective.png", out)
        self.assertFalse((folder / "plots" / "importance.png").exists())


if __name__ == "__main__":
    absltest.main()
