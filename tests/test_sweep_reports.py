"""`t5suite report SWEEP_DIR`: the order of trials, what counts as best, a grid's means, and plots of each kind."""

import contextlib
import json
import math
import random
import re
import tempfile
from pathlib import Path

import pytest
from absl.testing import parameterized
from matplotlib.image import imread
from report_runs import Reported, make_pre_training_run, make_run, reported
from shown_tables import boxed_tables

from t5suite.testing import cli_output, exits_with, run_cli


def trial(number, value, state="complete", **parameters):
    curve = [] if value is None else [[10, value - 1], [20, value]]
    return {
        "number": number, "state": state, "parameters": parameters, "value": value, "last_step": 20, "curve": curve,
        "seconds": 12.3, "exit_code": {"complete": 0, "failed": 78}.get(state), "run_dir": f"runs/sweeps/rte/trials/{number:04d}",
        "command": f"python fine_tune_t5.py --number '{number}'",
    }  # fmt: skip


def sweep_dir(trials, goal="maximize", best=None, groups=None, metric="eval/accuracy", name="rte", folder=None):
    folder = Path(folder or tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    content = {"name": name, "method": "bayes", "metric": {"name": metric, "goal": goal}, "trials": trials}
    (folder / "sweep.json").write_text(json.dumps({**content, "best": best, "groups": groups}))
    return folder


def report_of(trials, **options) -> Reported:
    return reported(sweep_dir(trials, **options))


def axes_of(report: Reported, plot: str) -> list:
    """The panels of a plot of the only sweep."""
    return [axes for axes in report.figures[f"sweep-rte-{plot}"].axes if axes.get_visible()]


def decided_by_the_rate(count=24):
    """Trials whose value follows the learning rate alone, up to a little noise."""
    drawn, trials = random.Random(0), []
    for number in range(count):
        rate, batch = 10 ** drawn.uniform(-5, -2), drawn.choice([8, 16, 32])
        value = 70 - 8 * (math.log10(rate) + 3.3) ** 2 + drawn.gauss(0, 0.5)
        words = drawn.choice(["linear", "cosine", "constant_with_warmup"])
        trials.append(trial(number, value, learning_rate=rate, per_device_train_batch_size=batch, schedule=words))
    return trials


MIXED = [
    trial(0, 61.0, learning_rate=1e-3, seed=1),
    {**trial(1, None, "failed", learning_rate=1e-1, seed=1), "why": "out of memory"},
    trial(2, 64.0, "pruned", learning_rate=3e-4, seed=1),
    trial(3, 63.5, learning_rate=1e-4, seed=1),
    trial(4, 50.0, "running", learning_rate=1e-5, seed=1),
    trial(5, 55.0, "preempted", learning_rate=2e-5, seed=1),
]


def grid(*figures):
    """Up to three rates by two tasks, three seeds each; `(mean, std)` of the groups, which are four or six."""
    trials, groups = [], []
    figures = iter(figures or [(62.0, 2.0)] * 4)
    for rate in (1e-3, 1e-4, 1e-5):
        for task, (mean, std) in zip(("rte", "cola"), figures):
            more = {"learning_rate": rate, "dataset_name": task}
            trials += [trial(len(trials) + n, 60.0 + 2 * n, **more, seed=n) for n in range(3)]
            groups.append({"parameters": {"learning_rate": rate}, "task": task, "n": 3, "mean": mean, "std": std})
    return trials, groups


def table(trials, **options):
    return cli_output("report", sweep_dir(trials, **options), "--format", "none")


def json_lines(trials, **options) -> list[dict]:
    lines = cli_output("report", sweep_dir(trials, **options), "--json").splitlines()
    return list(map(json.loads, lines))


class RecordsTest(parameterized.TestCase):
    def test_trials_are_ranked_by_the_goal_and_the_best_so_far_never_gets_worse(self):
        cases = (
            ("maximize", [3, 0, 2, 5, 4, 1], [61, 64, 64, 64, 64]),
            ("minimize", [0, 3, 4, 5, 2, 1], [61, 61, 61, 50, 50]),
        )
        for goal, order, best in cases:
            report = report_of(MIXED, goal=goal)
            (rows,) = boxed_tables(report.printed)
            self.assertEqual([int(row["trial"]) for row in rows], order)
            self.assertIn("learning_rate", rows[0])
            self.assertNotIn("seed", rows[0], "it is the same in all")
            (axes,) = axes_of(report, "objective")
            (line,) = axes.lines
            self.assertEqual(line.get_ydata().tolist(), best)

    @parameterized.parameters(
        ({"eval/f1": 60.0, "eval/accuracy": 70.0}, ["f1", "accuracy"]),
        ({"eval/f1": 60.0, "eval/invalid_rate": 0.0}, ["f1"]),
        ({"eval/accuracy": 65.0}, []),  # the sweep's own value
        ({f"eval/{task}/accuracy": 1.0 for task in "abcde"}, []),  # more than fit
    )
    def test_columns_are_metrics_that_say_more_than_the_value(self, scores, columns):
        trials = [{**trial(number, 65.0, seed=number), "scores": scores} for number in (1, 2)]
        (rows,) = boxed_tables(table([*trials, trial(3, None, "failed")], metric="eval/average"))
        before, after = list(rows[0]).index("eval/average"), list(rows[0]).index("step")
        self.assertEqual(list(rows[0])[before + 1 : after], columns)

    def test_nested_parameters_have_their_whole_names_and_those_that_are_the_same_in_all_no_column(self):
        rates = [{"peak": 0.1, "end": {"rate": 0.0}}, {"peak": 0.1, "end": {"rate": 0.01}}]
        out = table([trial(number, 60.0, schedule=rate, seed=1) for number, rate in enumerate(rates)])
        (rows,) = boxed_tables(out)
        self.assertEqual([row["schedule.end.rate"] for row in rows], ["0", "0.01"])
        self.assertNotIn("schedule.peak", rows[0])
        self.assertIn("in all trials: schedule.peak=0.1, seed=1\n", out)
        (rows,) = boxed_tables(table([trial(0, 60.0, schedule=rates[1], seed=1)]))
        self.assertEqual(
            [rows[0][name] for name in ("schedule.peak", "schedule.end.rate", "seed")], ["0.1", "0.01", "1"]
        )

    @parameterized.parameters(
        (None, {"min_lr": 1e-5}, {"schedule": ["-", ""], "schedule.min_lr": ["", "1e-05"]}),
        ({"min_lr": 0}, {"num_cycles": 2}, {"schedule.min_lr": ["0", ""], "schedule.num_cycles": ["", "2"]}),
        ({}, {"min_lr": 0}, {"schedule.min_lr": ["", "0"]}),
    )
    def test_a_value_that_only_some_trials_have_is_no_value_of_all(self, first, second, columns):
        out = table([trial(0, 90.0, schedule=first, seed=1), trial(1, 80.0, schedule=second, seed=1)])
        (rows,) = boxed_tables(out)
        self.assertEqual({name: [row.get(name) for row in rows] for name in columns}, columns)
        self.assertEqual([name for name in rows[0] if name.startswith("schedule")], list(columns))
        self.assertIn("in all trials: seed=1\n", out)

    def test_a_trial_without_a_value_is_ranked_last_whatever_its_state(self):
        lines = json_lines([trial(0, None), trial(1, 40.0, "pruned"), trial(2, 30.0)])
        self.assertEqual([line["number"] for line in lines[:-1]], [2, 1, 0])

    def test_axes_are_logarithmic_where_values_are_far_apart(self):
        for values, scale in (
            ([0.0001, 0.001, 0.01, 0.1, 0.15, 0.2], "log"), ([0.1, 0.11, 0.12, 0.13, 0.15, 0.2], "linear"),
            ([0, 1, 10, 100, 1000, 10000], "linear"), (list("abcdef"), "linear"),
        ):  # fmt: skip
            trials = [trial(n, 60.0 + n, x=value) for n, value in enumerate(values)]
            (axes,) = axes_of(report_of(trials), "parameters")
            self.assertEqual(axes.get_xscale(), scale, str(values))

    def test_a_broken_record_is_named_and_so_is_one_without_a_trial(self):
        folder = sweep_dir([])
        for text, reason in (("{", "not JSON"), ("[]", "TypeError"), ('{"name": "a", "method": "grid"}', "KeyError")):
            (folder / "sweep.json").write_text(text)
            with exits_with(65, f"sweep.json: not a sweep's record.*{reason}"):
                run_cli("report", folder)
        (folder / "sweep.json").rename(folder / "sweep.yaml")
        with exits_with(65, "no trial"):
            run_cli("report", folder)


class TablesTest(parameterized.TestCase):
    def test_the_table_has_each_trial_the_best_and_its_command(self):
        out = table(MIXED, best=2)
        for text in ("pruned", "failed", "preempted", "running", "in all trials: seed=1", "trial 1: out of memory"):
            self.assertIn(text, out)
        self.assertIn(
            "best: trial 2, eval/accuracy 64 (runs/sweeps/rte/trials/0002)\npython fine_tune_t5.py --number '2'\n", out
        )

    def test_the_page_s_table_has_all_that_a_sweep_knows_of_a_trial(self):
        page = report_of(MIXED, best=2).page
        rows, explanations = page.values["Trials, the best first"], page.explanations["Trials, the best first"]
        by_number = {entry["number"]: entry for entry in MIXED}
        self.assertEqual([row["Trial"] for row in rows], ["3", "0", "2 ★", "5", "4", "1"])
        for row, explained in zip(rows, explanations, strict=True):
            entry = by_number[int(row["Trial"].removesuffix(" ★"))]
            value = entry["value"]
            self.assertEqual(row["eval/accuracy"], "" if value is None else str(value))
            self.assertEqual(row["learning_rate"], str(entry["parameters"]["learning_rate"]))
            self.assertEqual(row["State"], entry["state"])
            self.assertEqual(explained["State"], entry.get("why", ""))
            self.assertEqual((row["Step"], row["Seconds"]), ("20", "12.3"))

    def test_the_page_s_cells_of_parameters_are_numbers_where_the_values_are(self):
        """So that the page sorts them as numbers, and shows all digits of a rate."""
        rates = {0: 1e-3 / 3, 1: 2e-3 / 3}
        trials = [trial(n, 60.0 + n, learning_rate=rate, lr_scheduler_type="ab"[n]) for n, rate in rates.items()]
        page = report_of(trials, best=1).page
        title = "Trials, the best first"
        for row, kinds in zip(page.values[title], page.kinds[title], strict=True):
            self.assertEqual((kinds["learning_rate"], kinds["lr_scheduler_type"]), ("number", "text"))
            number = int(row["Trial"].removesuffix(" ★"))
            self.assertEqual(float(row["learning_rate"]), rates[number])
            self.assertEqual(row["lr_scheduler_type"], "ab"[number])

    def test_json_lines_have_every_trial_in_order_and_nothing_else(self):
        lines = json_lines(MIXED, best=2)
        self.assertEqual([line["number"] for line in lines[:-1]], [3, 0, 2, 5, 4, 1])
        self.assertEqual(lines[-1], {"sweep": "rte", "metric": "eval/accuracy", "best": 2})

    def test_a_sweep_without_a_best_trial_has_no_command_to_repeat(self):
        for best, command in ((None, ""), (7, "python fine_tune_t5.py --number '7'")):
            (sweep,) = report_of([trial(7, 61.0)], best=best).data["sweeps"]
            self.assertEqual((sweep["best"], sweep["command"]), (best, command))

    def test_a_grid_has_means_with_deviations_and_an_average_unless_a_task_is_missing(self):
        trials, groups = grid()
        out = table(trials, best=2, groups=groups)
        self.assertIn("62.00 ± 2.00 (3)", out)
        self.assertIn("average", out)
        self.assertLen([line for line in json_lines(trials, best=2, groups=groups) if "mean" in line], 4)
        groups[0]["mean"] = None
        out = table(trials, best=2, groups=groups)
        row = next(line for line in out.splitlines() if line.strip().startswith("learning_rate 0.001"))
        self.assertEqual(row.split()[-1], "-")

    def test_settings_within_a_standard_deviation_of_the_best_are_equal(self):
        """The third one for rte is as near to the second as the second may be to the best."""
        trials, groups = grid((51.67, 4.16), (50.0, 1.0), (50.0, 3.53), (52.0, 1.0), (47.0, 1.0), (40.0, 1.0))
        out = table(trials, groups=groups)
        first = "learning_rate 0.001, mean 51.67, standard deviation 4.16, n 3"
        second = "learning_rate 0.0001, mean 50.00, standard deviation 3.53, n 3"
        self.assertIn(f"equal settings for rte (within one standard deviation of the best): {first}; {second}\n", out)
        self.assertIn("best setting for cola, by the mean of its trials: learning_rate 0.0001, mean 52.00", out)
        self.assertNotIn("no trial", out)

    def test_where_less_is_better_the_least_mean_is_the_best_and_one_trial_has_no_equals(self):
        trials, groups = grid((1.5, 0.2), (1.9, 0.1), (1.4, 0.05), (1.8, 0.2))
        out = table(trials, groups=groups, goal="minimize", metric="eval/loss")
        self.assertIn(
            "best setting for rte, by the mean of its trials: learning_rate 0.0001, mean 1.40, standard deviation 0.05, n 3\n",
            out,
        )
        first = "learning_rate 0.0001, mean 1.80, standard deviation 0.20, n 3"
        second = "learning_rate 0.001, mean 1.90, standard deviation 0.10, n 3"
        self.assertIn(f"equal settings for cola (within one standard deviation of the best): {first}; {second}\n", out)
        alone = [{**group, "n": 1, "std": None} for group in groups]
        out = table(trials, groups=alone, goal="minimize", metric="eval/loss")
        self.assertIn("best setting for cola, by the mean of its trials: learning_rate 0.0001, mean 1.80, n 1\n", out)
        self.assertIn(" 1.40 (1) ", out)

    def test_the_best_setting_and_the_best_single_trial_are_told_apart(self):
        """By hand: two seeds of 0.1 have the better mean, one of 0.2 the best value."""
        values = (((0.1, 1), 80.0), ((0.1, 2), 82.0), ((0.2, 1), 90.0), ((0.2, 2), 60.0))
        trials = [trial(n, value, learning_rate=rate, seed=seed) for n, ((rate, seed), value) in enumerate(values)]
        groups = [
            {"parameters": {"learning_rate": rate}, "task": None, "n": 2, "mean": mean, "std": std}
            for rate, mean, std in ((0.1, 81.0, 1.41), (0.2, 75.0, 21.2))
        ]
        self.assertEndsWith(
            table(trials, groups=groups, best=2),
            "best setting of sweep rte, by the mean of its trials: learning_rate 0.1, mean 81.00, "
            "standard deviation 1.41, n 2\n"
            "best single trial: 2, learning_rate 0.2, seed 1, eval/accuracy 90 (runs/sweeps/rte/trials/0002); its "
            "command:\npython fine_tune_t5.py --number '2'\n",
        )

    def test_text_of_the_user_is_no_markup(self):
        self.assertIn("[/red]", table([trial(0, 1.0, text="[bold]x[/bold]"), trial(1, 2.0, text="[/red]")], best=1))

    def test_text_of_the_user_steers_no_terminal_and_shows_no_secret(self):
        hostile = trial(0, 1.0, text="\x1b[2J", where="hf_abcdefghijklmnopqrstuvwxyz")
        shown = table([hostile, trial(1, 2.0, text="a", where="b")], best=1)
        self.assertIn("\\u001b[2J", shown)
        self.assertIn("***", shown)
        self.assertNotIn("\x1b", shown)
        self.assertNotIn("hf_", shown)

    def test_runs_and_sweeps_stand_in_one_report(self):
        place = Path(tempfile.mkdtemp())
        alone, tried = (make_run(place / name, "sentiment", seed=seed) for seed, name in enumerate(("alone", "tried")))
        sweep = sweep_dir([{**trial(0, 50.0, learning_rate=1e-3), "run_dir": str(tried)}], best=0)
        report = reported(alone, sweep, tried)
        for words in ("rte: 1 complete", f"best: trial 0, eval/accuracy 50 ({tried})", "mini/sentiment"):
            self.assertIn(words, report.printed)
        data = report.data
        self.assertEqual(data["title"], "sweep rte, mini/sentiment")
        names = [run["name"] for run in data["runs"]]
        self.assertEqual(names, ["alone", f"{sweep.name} trial 0"], "a trial that is named is there once")
        self.assertEqual([part["name"] for part in data["sweeps"]], ["rte"])
        self.assertIn("sweep-rte-objective", report.figures)

    def test_the_trials_of_a_sweep_are_those_in_its_folder(self):
        """Another project has a sweep of the same default name, in the folder from which the report is made."""
        place, sweep = Path(tempfile.mkdtemp()), "runs/sweeps/rte"
        for project, seed in (("ours", 1), ("theirs", 2)):
            sweep_dir([trial(0, 50.0, learning_rate=1e-3)], folder=place / project / sweep)
            make_run(place / project / sweep / "trials/0000", "sentiment", seed=seed)
        (place / "moved").mkdir()
        for folder, directory, seed in (
            ("ours", f"../theirs/{sweep}", 2), ("theirs/runs", "sweeps/rte", 2), ("ours", sweep, 1), ("moved", "../ours/" + sweep, 1),
        ):  # fmt: skip
            with contextlib.chdir(place / folder):
                runs = reported(directory).data["runs"]
            self.assertEqual([(run["name"], run["seed"]) for run in runs], [("rte trial 0", seed)], directory)

    def test_sweeps_of_one_name_have_each_its_own_plots_and_directory(self):
        place = Path(tempfile.mkdtemp())
        sweeps = [
            sweep_dir([trial(0, 50.0, learning_rate=1e-3)], name=name, folder=place / folder)
            for name, folder in (("rte", "small"), ("rte", "base"), ("cola", "c"), ("cola: again", "d"))
        ]
        report = reported(*sweeps)
        pictures = {}
        for section in report.markdown.split("\n## ")[1:]:
            title, _, content = section.partition("\n")
            pictures[title] = re.findall(r"!\[(.*?)\]", content)
        titles = ("rte (small)", "rte (base)", "cola", "cola: again")
        expected = {f"Sweep {title}": [f"{title}: Every trial and the best so far"] for title in titles}
        self.assertEqual({title: pictures[title] for title in expected}, expected)
        self.assertEqual(report.data["title"], ", ".join(f"sweep {title}" for title in titles))
        self.assertLen(report.figures, 4)


class PlotsTest(parameterized.TestCase):
    def test_seeds_are_replicates_and_no_axis(self):
        trials = [trial(n, 60.0 + 9 * (n % 3), learning_rate=1 / (1 + n // 3), seed=n % 3) for n in range(6)]
        group = {"parameters": {"learning_rate": 1.0}, "task": None, "n": 3, "mean": 69.0, "std": 9.0}
        report = report_of(trials, best=2, groups=[group])
        self.assertEmpty(report.figures, "one rate is no axis, and seeds are none")
        (rows,) = [rows for caption, rows in report.page.tables.items() if caption == "eval/accuracy over the seeds"]
        self.assertLen(rows, 1)
        self.assertNotIn("★", report.html)
        self.assertIn("seed", boxed_tables(report.printed)[0][0])

    def test_panels_name_their_values_and_how_many_are_not_shown(self):
        names = [f"p{n:02}" for n in range(10)]
        trials = [trial(n, 60.0 + n, learning_rate=rate, **dict.fromkeys(names, n))
                  for n, rate in enumerate((3e-4, 1e-3))]  # fmt: skip
        report = report_of(trials)
        panels = axes_of(report, "parameters")
        self.assertEqual([axes.get_xlabel() for axes in panels], ["learning_rate", *names[:8]])
        self.assertEqual([text.get_text() for text in panels[0].get_xticklabels()], ["0.0003", "0.001"])
        self.assertIn("(2 more are not shown)", report.figures["sweep-rte-parameters"].get_suptitle())

    def test_a_parameter_of_failed_trials_alone_has_no_panel(self):
        trials = [trial(n, 60.0 + n, schedule={"min_lr": rate}) for n, rate in enumerate((1e-5, 1e-4))]
        trials += [trial(2 + n, None, "failed", schedule={"num_cycles": n}) for n in (1, 2)]
        panels = axes_of(report_of(trials), "parameters")
        self.assertEqual([axes.get_xlabel() for axes in panels], ["schedule.min_lr"])

    def test_every_picture_has_its_size(self):
        """Letters can be read on a phone, and pictures of a kind are alike. A sweep's panels are in rows of two.

        The curve of one of two settings has a legend, which says of which.
        """
        place = Path(tempfile.mkdtemp())
        run = make_run(place / "run", "sentiment", metrics_file=False)
        sweep = sweep_dir([trial(number, 60.0 + number, a=number) for number in range(2)])
        output = place / "report"
        cli_output("report", run, make_pre_training_run(place / "text"), sweep, "--output", output, "--format", "json")
        inches = {
            "scores": (5, 1.76), "curve-pre-training-held-out-NLL": (5.625, 2.7), "sweep-rte-objective": (5, 3.6),
            "sweep-rte-parameters": (5, 3.2),
        }  # fmt: skip
        self.assertEqual({path.stem for path in output.glob("plots/*")}, set(inches))
        for name, (width, height) in inches.items():
            pixels = imread(output / "plots" / f"{name}.png").shape[:2]
            self.assertEqual(pixels, (int(160 * height), int(160 * width)), name)
            points = re.search(
                r'<svg [^>]*width="(.*?)pt" height="(.*?)pt"', (output / f"plots/{name}.svg").read_text()
            )
            self.assertEqual([float(length) for length in points.groups()], [72 * width, 72 * height], name)

    @pytest.mark.slow
    def test_every_plot_has_something_on_it(self):
        output = Path(tempfile.mkdtemp()) / "report"
        cli_output("report", sweep_dir(decided_by_the_rate(8), best=2), "--output", output)
        pictures = list(output.glob("plots/*.png"))
        self.assertEqual({path.stem for path in pictures}, {"sweep-rte-objective", "sweep-rte-parameters"})
        for path in pictures:
            self.assertGreater(imread(path)[..., :3].std(), 0.05, path.stem)
