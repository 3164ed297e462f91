"""`t5suite compare`: the same rows side by side, flips, refusals by name; rows of your own are read again."""

import functools
import json
import math
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from absl.testing import parameterized
from report_runs import answers_again, make_run, reported, written
from support import folder

from t5suite import load_task
from t5suite.testing import cli_output, exits_with, make_task, read_rows, run_cli, tiny_rows, tiny_run, write_rows

WORDS = "soup stew bread cake pie".split()
PREDICTIONS = "predictions/sentiment.validation.jsonl"
REVIEWS = "predictions/reviews.validation.jsonl"


def two_runs() -> tuple[Path, Path]:
    place = folder()
    return make_run(place / "a", "sentiment", wrong=0.4), make_run(place / "b", "sentiment", wrong=0.1)


class Comparison:
    """What `t5suite compare --json` prints of two runs."""

    def __init__(self, first, second):
        lines = [json.loads(line) for line in cli_output("compare", first, second, "--json").splitlines()]
        self.settings, self.notes = lines[0]["settings"], lines[0]["notes"]
        self.scores = [line for line in lines[1:] if "metric" in line]
        self.flips = [line for line in lines[1:] if "flip" in line]


def right_answers(run, name=PREDICTIONS) -> list[bool]:
    return [line["prediction"] == line["target"] for line in read_rows(run / name)]


def change_manifest(run, part: str, name: str, **changes) -> None:
    """Changes values of an entry of the manifest; `name` is empty for those of the part itself."""
    manifest = json.loads((run / "manifest.json").read_text())
    (manifest[part][name] if name else manifest[part]).update(changes)
    (run / "manifest.json").write_text(json.dumps(manifest))


def keep_rows(run, numbers) -> None:
    """Makes a run one that was scored on some of its rows, which are all in its folder of data."""
    data_dir = folder()
    rows = tiny_rows("sentiment", count=40)
    write_rows(data_dir / "mini/sentiment/validation.jsonl", [rows[number] for number in numbers])
    change_manifest(run, "settings", "", data_dir=str(data_dir))
    lines = read_rows(run / PREDICTIONS)
    write_rows(run / PREDICTIONS, [{**lines[number], "row": row} for row, number in enumerate(numbers)])
    answers_again(run, "sentiment")


class CompareTest(parameterized.TestCase):
    def test_scores_and_counts_are_those_of_the_predictions(self):
        first, second = two_runs()
        comparison = Comparison(first, second)
        (entry,) = comparison.scores
        right = [right_answers(run) for run in (first, second)]
        self.assertAlmostEqual(entry["a"], 100 * np.mean(right[0]))
        self.assertAlmostEqual(entry["b"], 100 * np.mean(right[1]))
        only_first = sum(a and not b for a, b in zip(*right, strict=True))
        only_second = sum(b and not a for a, b in zip(*right, strict=True))
        self.assertEqual((entry["mcnemar"]["only_a"], entry["mcnemar"]["only_b"]), (only_first, only_second))
        directions = [flip["flip"] for flip in comparison.flips]
        self.assertEqual((directions.count("lost"), directions.count("gained")), (only_first, only_second))
        self.assertGreater(only_first * only_second, 0)
        for flip in comparison.flips:
            self.assertStartsWith(flip["inputs"], "sentiment")
            self.assertIn(flip["target"], {flip["a"], flip["b"]})
            self.assertNotEqual(flip["a"], flip["b"])

    def test_rows_are_paired_by_what_they_are_and_not_by_their_place(self):
        first, second = two_runs()
        shuffled = Path(shutil.copytree(second, folder() / "b"))
        lines = read_rows(shuffled / PREDICTIONS)
        random.Random(1).shuffle(lines)
        write_rows(shuffled / PREDICTIONS, lines)
        (in_order,), (out_of_order,) = Comparison(first, second).scores, Comparison(first, shuffled).scores
        for key in ("a", "b", "mcnemar"):
            self.assertEqual(in_order[key], out_of_order[key])

    @parameterized.parameters(
        (range(40), range(10, 20)), (range(10, 20), range(40)), (range(30), range(20, 40)), (range(40), range(40)),
    )  # fmt: skip
    def test_a_part_of_the_rows_is_said_to_be_one_and_all_of_both_are_not(self, rows_a, rows_b):
        """Whether A's rows, B's or some of each have no partner in the other run."""
        runs = two_runs()
        for run, rows in zip(runs, (rows_a, rows_b), strict=True):
            keep_rows(run, rows)
        num_common = len({*rows_a} & {*rows_b})
        note = f"{num_common} rows in common, of {len(rows_a)} in A and {len(rows_b)} in B"
        self.assertEqual(note in cli_output("compare", *runs), num_common < 40)
        (entry,) = Comparison(*runs).scores
        self.assertEqual((entry["rows"], entry["rows_a"], entry["rows_b"]), (num_common, len(rows_a), len(rows_b)))

    def test_other_rows_are_refused_by_name(self):
        first, second = two_runs()
        lines = read_rows(second / PREDICTIONS)
        lines[3]["target"] = "positive" if lines[3]["target"] == "negative" else "negative"
        (second / PREDICTIONS).write_text("".join(json.dumps(line) + "\n" for line in lines))
        with exits_with(65, "sentiment: a and b were scored on different rows: row .* has target"):
            run_cli("compare", first, second)

    @parameterized.parameters({"prefix": "review: "}, {"prefix": ""}, {"input_format": "Is it good? __input__ !"})
    def test_rows_that_were_read_with_other_texts_around_them_are_the_same_rows(self, **form):
        runs = two_runs()
        as_before = Comparison(*runs)
        change_manifest(runs[1], "tasks", "sentiment", **form)
        for words, expected in ((runs, as_before), (runs[::-1], Comparison(*runs[::-1]))):
            comparison = Comparison(*words)
            self.assertEqual(comparison.scores, expected.scores)
            self.assertEqual([flip["key"] for flip in comparison.flips], [flip["key"] for flip in expected.flips])
            (note,) = comparison.notes
            self.assertIn(repr(*form.values()), note)

    def test_other_texts_of_rows_that_were_read_in_another_form_are_refused_whole_with_a_way_on(self):
        """The texts differ at the end of a long one, of which each is shown as far as it differs."""
        runs = two_runs()
        rows = tiny_rows("sentiment", count=40)
        for run, ending in zip(runs, ("tables.", "chairs."), strict=True):
            place = folder()
            changed = {**rows[0], "sentence": f"It is {'very ' * 50}good, like {ending}"}
            write_rows(place / "mini/sentiment/validation.jsonl", [changed, *rows[1:]])
            change_manifest(run, "settings", "", data_dir=str(place))
        change_manifest(runs[1], "tasks", "sentiment", prefix="review: ")
        message = r"a and b were scored on different rows, or with other texts around them \(prefix .* and 'review: '\)"
        with exits_with(65, message) as failure:
            run_cli("compare", *runs)
        self.assertRegex(failure.message, "'…[^']*like tables.' and '…[^']*like chairs.'")
        self.assertIn(f"t5suite report {runs[0]} {runs[1]}", failure.message)

    def test_without_texts_the_fingerprints_must_agree(self):
        first, second = two_runs()
        for run, fingerprint in ((first, "sha256:one"), (second, "sha256:two")):
            change_manifest(run, "data", "sentiment.validation", fingerprint=fingerprint)
        with exits_with(65, "different rows: fingerprints sha256:one and sha256:two"):
            run_cli("compare", first, second)

    def test_a_table_of_labels_is_read_as_a_list_of_them(self):
        """JSON has its numbers, of which -1 is that of hidden rows, as texts."""
        runs = two_runs()
        from_list = Comparison(*runs).scores
        for run in runs:
            labels = {"0": "negative", "1": "positive", "-1": "other"}
            change_manifest(run, "tasks", "sentiment", labels=labels)
        self.assertEqual(Comparison(*runs).scores, from_list)
        data = reported(*runs).data
        self.assertEqual([matrix["labels"] for matrix in data["confusions"]], [["negative", "positive"]] * 2)
        self.assertEqual([part["total"] for part in data["examples"]], [40, 40])
        for run in data["runs"]:
            self.assertIn("accuracy", run["intervals"]["sentiment"])
            self.assertIn(run["baselines"]["sentiment"]["label"], ("negative", "positive"))

    def test_settings_that_differ_are_named_the_decisive_ones_first(self):
        place = folder()
        first = make_run(place / "a", "sentiment", per_device_train_batch_size=8, run_name="one", new=None)
        second = make_run(place / "b", "sentiment", per_device_train_batch_size=4, run_name="two", learning_rate=0.01)
        expected = {"learning_rate": [0.001, 0.01], "per_device_train_batch_size": [8, 4]}
        self.assertEqual(list(Comparison(first, second).settings.items()), list(expected.items()))
        lines = cli_output("compare", first, second).splitlines()
        at = lines.index("  learning_rate 0.001 / 0.01")
        self.assertEqual(lines[at + 1], "  per_device_train_batch_size 8 / 4")
        self.assertNotIn("run_name", "".join(lines))

    @parameterized.parameters(
        ((-1, 15.0), (150, 3.0), {"max_steps": [None, 150], "num_train_epochs": [15.0, None]}),
        ((-1, 15.0), (-1, 3.0), {"num_train_epochs": [15.0, 3.0]}),
        ((150, 15.0), (150, 3.0), {}),
    )
    def test_a_length_that_another_one_replaces_is_no_setting(self, first, second, expected):
        """`--max_steps` replaces `--num_train_epochs`."""
        runs = [
            make_run(folder() / name, "sentiment", max_steps=max_steps, num_train_epochs=epochs)
            for name, (max_steps, epochs) in (("a", first), ("b", second))
        ]
        self.assertEqual(Comparison(*runs).settings, expected)

    @parameterized.parameters((False, {}), (None, {}), (0.0, {}), (0.5, {"odd": [None, 0.5]}))
    def test_a_flag_that_one_version_does_not_have_is_off_there(self, value, expected):
        place = folder()
        older, newer = make_run(place / "a", "sentiment"), make_run(place / "b", "sentiment", seed=1, odd=value)
        self.assertEqual(Comparison(older, newer).settings, expected)
        swapped = {name: values[::-1] for name, values in expected.items()}
        self.assertEqual(Comparison(newer, older).settings, swapped)

    def test_at_most_ten_settings_are_shown_and_all_are_in_json(self):
        runs = [
            make_run(folder() / name, "sentiment", **{f"odd_{i}": f"{name}{i}\n" for i in range(13)}) for name in "ab"
        ]
        self.assertLen(Comparison(*runs).settings, 13)
        output = cli_output("compare", *runs)
        self.assertIn("  odd_0 a0\\n / b0\\n\n", output)
        self.assertEqual(output.count("  odd_"), 10)
        self.assertIn("  ... 3 more (--json)\n", output)

    @pytest.mark.slow
    def test_a_setting_without_a_value_or_with_several_and_a_tiny_p_are_shown_in_short(self):
        """Only the second run has any right answer: McNemar's p is 2 to the power of -39."""
        right = [row["label"] for row in tiny_rows("sentiment", count=40)]
        words = ("negative", "positive")
        place = folder()
        settings = {"odd": ["x", "y"], "max_grad_norm": None}
        first = make_run(place / "a", "sentiment", predictions=[words[1 - label] for label in right], **settings)
        settings = {"odd": "z", "max_grad_norm": 0.5}
        second = make_run(place / "b", "sentiment", predictions=[words[label] for label in right], **settings)
        output = cli_output("compare", first, second)
        self.assertIn("  odd x, y / z\n", output)
        self.assertIn("  max_grad_norm - / 0.5\n", output)
        self.assertRegex(output, r"100.00 .*<0.0001 \(0/40\)")

    def test_tasks_that_one_run_alone_has_are_named(self):
        first, second = two_runs()
        similarity = make_run(folder() / "s", "similarity")
        for name in ("results.json", "manifest.json"):
            ours, theirs = (json.loads((run / name).read_text()) for run in (second, similarity))
            ours["tasks"] |= theirs["tasks"]
            (second / name).write_text(json.dumps(ours))
        shutil.copytree(similarity / "predictions", second / "predictions", dirs_exist_ok=True)
        change_manifest(second, "settings", "", dataset_name="sentiment,similarity")
        output = cli_output("compare", first, second)
        self.assertIn("only B has similarity\n", output)
        self.assertNotIn("only A", output)

    @parameterized.parameters(
        (["accuracy", "f1_macro"], ["accuracy"], ["only A has f1_macro"]),
        (["accuracy"], ["accuracy", "f1_macro"], ["only B has f1_macro"]),
        (["accuracy"], ["f1_macro"], ["no score can be compared", "only A has accuracy", "only B has f1_macro"]),
        (["accuracy"], ["accuracy"], []),
    )
    def test_metrics_that_one_run_alone_has_are_named(self, metrics_a, metrics_b, notes):
        runs = [make_run(folder() / name, "sentiment", seed=1, wrong=0.0, invalid=0.0) for name in "ab"]
        for run, metrics in zip(runs, (metrics_a, metrics_b), strict=True):
            change_manifest(run, "tasks", "sentiment", metric_names=metrics, metric_to_optimize=metrics[0])
            scores = {name: 100.0 for name in metrics}
            (run / "results.json").write_text(json.dumps({"tasks": {"sentiment": scores}, "averages": {}}))
        comparison = Comparison(*runs)
        self.assertEqual([entry["metric"] for entry in comparison.scores], [m for m in metrics_a if m in metrics_b])
        self.assertLen(comparison.notes, len(notes))
        for text, note in zip(comparison.notes, notes, strict=True):
            self.assertStartsWith(text, f"sentiment: {note}")

    def test_runs_of_the_same_settings_are_said_to_be(self):
        self.assertIn("no setting differs that affects a result", cli_output("compare", *two_runs()))

    @parameterized.parameters(("score", "generate", True), ("score", "score", False), ("score", None, False))
    @pytest.mark.quick_cases(1)
    def test_labels_that_were_scored_against_answers_that_were_written_are_noted(self, method_a, method_b, is_noted):
        runs = two_runs()
        for run, method in zip(runs, (method_a, method_b), strict=True):
            if method is not None:
                scored = {"sentiment": {"split": "validation", "method": method}}
                manifest = json.loads((run / "manifest.json").read_text())
                (run / "manifest.json").write_text(json.dumps({**manifest, "scored": scored}))
        note = "sentiment: A was scored by the likeliest label, B by its written answers (--eval_method)"
        self.assertEqual(Comparison(*runs).notes, [note] * is_noted)
        self.assertEqual(note in cli_output("compare", *runs), is_noted)

    @pytest.mark.slow
    def test_a_text_of_several_lines_is_shown_in_one(self):
        first, second = two_runs()
        for run in (first, second):
            lines = [
                {**line, "inputs": f"{place}\nsecond line\r\nthird"}
                for place, line in enumerate(read_rows(run / PREDICTIONS))
            ]
            write_rows(run / PREDICTIONS, lines)
        output = cli_output("compare", first, second)
        self.assertRegex(output, r"\n    \d+\\nsecond line\\r\\nthird\n")
        self.assertNotRegex(output, r"(?m)^second line")

    @parameterized.parameters("running", "preempted", "failed")
    @pytest.mark.quick_cases(1)
    def test_results_from_before_a_run_went_on_are_not_shown(self, status):
        """They stay in its directory, beside other settings, until it has finished again."""
        first, second = two_runs()
        manifest = json.loads((second / "manifest.json").read_text())
        (second / "manifest.json").write_text(json.dumps({**manifest, "status": status}))
        for words in ((first, second), (second, first)):
            with exits_with(65, f"b: no finished run with predictions .status: {status};"):
                run_cli("compare", *words)
        (row,) = [json.loads(line) for line in cli_output("report", first, second, "--json").splitlines()]
        self.assertEqual(row["run"], str(first))
        with exits_with(65, f"b: no finished run .status: {status}"):
            run_cli("report", second, "--format", "none")
        data = reported(first, second).data
        self.assertEqual([run["status"] for run in data["runs"]], ["finished", status])
        self.assertEqual([run["results"] for run in data["runs"]][1:], [{}])
        self.assertEqual({part["run"] for part in data["examples"]}, {"a"})

    def test_a_task_of_functions_that_are_not_defined_here_is_noted_with_their_names(self):
        """A Python task file may have added them; its code is not run for a report."""
        runs = two_runs()
        change_manifest(runs[1], "tasks", "sentiment", metric_names=["accuracy", "loudness"])
        with exits_with(65, "b: sentiment: .* metric 'loudness', .* another version may, or your Python file"):
            run_cli("compare", *runs)
        first, second = reported(*runs).data["runs"]
        self.assertEqual(["loudness" in " ".join(run["notes"]) for run in (first, second)], [False, True])
        self.assertEqual((list(first["intervals"]), list(second["intervals"])), (["sentiment"], []))

    @parameterized.parameters({"metric_names": 5}, {"metric_functions": 7}, {"labels": 7}, {"key_of_tomorrow": 1})
    def test_a_damaged_entry_is_noted_as_such(self, **change):
        runs = two_runs()
        change_manifest(runs[1], "tasks", "sentiment", **change)
        reason = "sentiment: its entry is damaged, or of another version"
        with exits_with(65, f"b: {reason} "):
            run_cli("compare", *runs)
        notes = [" ".join(run["notes"]) for run in reported(*runs).data["runs"]]
        self.assertEqual([reason in text for text in notes], [False, True])

    def test_runs_with_values_of_own_code_alone_have_their_texts_and_flips_and_no_rows_that_changed(self):
        runs = two_runs()
        for run, share in zip(runs, (3.0, 5.0), strict=True):
            change_manifest(run, "tasks", "sentiment", metric_names=[], metric_to_optimize=None)
            (run / "results.json").write_text(json.dumps({"tasks": {"sentiment": {"share": share}}, "averages": {}}))
        comparison = Comparison(*runs)
        self.assertEmpty(comparison.scores)
        self.assertNotEmpty(comparison.flips)
        self.assertRegex(" ".join(comparison.notes), "sentiment: share is 3 in A and 5 in B, by results.json")
        data = reported(*runs).data
        for part in data["examples"]:
            self.assertEqual((part["note"], part["total"]), ("", 40))
            self.assertTrue(all(example["inputs"] for example in part["examples"]))
        self.assertNotIn("no longer", json.dumps([comparison.notes, [run["notes"] for run in data["runs"]]]))

    @parameterized.parameters("rows", "texts")
    def test_answers_that_do_not_give_the_scores_are_noted_as_such(self, kind):
        """Where the rows can be read again, and where the run kept their texts."""
        runs = two_runs()
        lines = read_rows(runs[1] / PREDICTIONS)
        if kind == "texts":
            lines = [{**line, "inputs": f"text {line['row']}"} for line in lines]
        write_rows(runs[1] / PREDICTIONS, [{**line, "prediction": "neither"} for line in lines])
        notes = " ".join(reported(*runs).data["runs"][1]["notes"])
        self.assertIn(
            "the answers to sentiment validation in predictions/ do not give the scores in results.json", notes
        )
        self.assertNotIn("no longer those", notes)

    def test_a_value_of_own_code_beside_a_score_is_shown_without_a_test(self):
        runs = two_runs()
        for run, share in zip(runs, (3.0, None), strict=True):
            results = json.loads((run / "results.json").read_text())
            results["tasks"]["sentiment"]["share"] = share
            (run / "results.json").write_text(json.dumps(results))
        comparison = Comparison(*runs)
        self.assertEqual([entry["metric"] for entry in comparison.scores], ["accuracy"])
        (note,) = comparison.notes
        self.assertRegex(note, "sentiment: share is 3 in A and – in B")

    def test_a_task_of_which_the_loss_alone_was_evaluated_has_no_examples(self):
        runs = two_runs()
        for run in runs:
            manifest = json.loads((run / "manifest.json").read_text())
            manifest["scored"] = {"sentiment": {"split": "validation", "method": "loss"}}
            (run / "manifest.json").write_text(json.dumps(manifest))
            (run / "results.json").write_text(json.dumps({"tasks": {"sentiment": {"loss": 2.5}}, "averages": {}}))
        with exits_with(65, "a: sentiment: its loss alone was evaluated"):
            run_cli("compare", *runs)
        data = reported(*runs).data
        self.assertEmpty(data["examples"])
        for run in data["runs"]:
            self.assertRegex(" ".join(run["notes"]), "sentiment: its loss alone was evaluated")
            self.assertNotIn("no longer", " ".join(run["notes"]))

    def test_runs_that_cannot_be_compared_are_refused(self):
        place = folder()
        first, second = make_run(place / "a", "sentiment"), make_run(place / "b", "entailment")
        unfinished = make_run(place / "c", "sentiment", finished=False)
        for other, message in (
            (second, "a has mini: sentiment; b has mini: entailment"),
            (first, "given twice"),
            (f"{first}/", "given twice"),
            (unfinished, "c: no finished run with"),
        ):
            with exits_with(65, message):
                run_cli("compare", first, other)


@functools.cache
def subset_run(seed: int) -> Path:
    """A real run over some rows of a task, which the seed has drawn, with made-up answers."""
    run = tiny_run(output_dir=str(folder() / f"s{seed}"), max_eval_samples=40, seed=seed)
    return answers_again(run.directory, "sentiment", seed=seed, wrong=0.3)


class SubsetsTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        subset_run(1), subset_run(2)

    def test_subsets_are_compared_on_their_common_rows(self):
        first, second = subset_run(1), subset_run(2)
        (entry,) = Comparison(first, second).scores
        sides = [{line["idx"]: line for line in read_rows(run / PREDICTIONS)} for run in (first, second)]
        common = [idx for idx in sides[0] if idx in sides[1]]
        self.assertEqual((entry["rows_a"], entry["rows_b"], entry["rows"]), (40, 40, len(common)))
        self.assertBetween(entry["rows"], 1, 39)
        for name, side in zip("ab", sides, strict=True):
            right = [side[idx]["prediction"] == side[idx]["target"] for idx in common]
            self.assertAlmostEqual(entry[name], 100 * np.mean(right))
        self.assertIn("rows in common, of 40 in A and 40 in B", cli_output("compare", first, second))

    @pytest.mark.slow
    def test_rows_of_a_subset_have_their_number_in_the_source(self):
        rows = tiny_rows("sentiment")
        (part,) = reported(subset_run(1)).data["examples"]
        self.assertLen(part["examples"], 40)
        self.assertGreater(max(example["row"] for example in part["examples"]), 40)
        for example in part["examples"]:
            self.assertIn(rows[example["row"]]["sentence"], example["inputs"])


def reviews(count=40) -> list[dict]:
    texts = [f"I {'loved' if i % 3 else 'hated'} the {WORDS[i % 5]}, number {i}." for i in range(count)]
    return [{"input": text, "output": "good" if i % 3 else "bad"} for i, text in enumerate(texts)]


def write_reviews(form: str) -> Path:
    """The reviews as CSV, its first row on line 2, or as JSON lines."""
    path, rows = folder() / f"reviews.{form}", reviews()
    lines = [json.dumps(row) for row in rows]
    if form == "csv":
        lines = ["input,output", *(f'"{row["input"]}",{row["output"]}' for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def own_run(data, seed=1, limit=None) -> Path:
    """A real run over rows of your own, of which 30% are held out, with made-up answers."""
    flags = {"labels": "bad,good", "prefix": "review: ", "validation_split": 0.3, "max_eval_samples": limit}
    run = tiny_run(data=data, dataset_name="reviews", output_dir=str(folder() / f"s{seed}"), seed=seed, **flags)
    return answers_again(run.directory, "reviews", seed=seed, wrong=0.3)


@functools.cache
def reviews_file() -> Path:
    return write_reviews("csv")


@functools.cache
def run_over_file(seed: int) -> Path:
    return own_run(reviews_file(), seed)


def copied_run(seed: int) -> Path:
    return shutil.copytree(run_over_file(seed), folder() / f"s{seed}")


def line_of(path: Path, where: str) -> str:
    """The line of a file that a place ('reviews.csv:6') names."""
    name, _, number = where.rpartition(":")
    assert name == path.name, where
    return path.read_text().splitlines()[int(number) - 1]


class OwnRowsTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        run_over_file(1), run_over_file(2)

    def check_places(self, run, path, count) -> None:
        (part,) = reported(run).data["examples"]
        self.assertLen(part["examples"], count)
        for example in part["examples"]:
            line = line_of(path, example["where"])
            self.assertIn(example["inputs"].removeprefix("review: "), line)
            self.assertIn(example["target"], line.rpartition("number")[2])

    def test_every_example_is_the_line_of_the_file_that_it_names(self):
        self.check_places(run_over_file(1), reviews_file(), 12)

    @parameterized.parameters("csv", "jsonl")
    @pytest.mark.slow
    def test_every_example_of_a_subset_is_the_line_of_the_file_that_it_names(self, form):
        path = write_reviews(form)
        self.check_places(own_run(path, limit=7), path, 7)

    def test_a_file_that_changed_is_named_and_its_texts_are_not_shown(self):
        path, text, run = reviews_file(), reviews_file().read_text(), copied_run(1)
        self.addCleanup(path.write_text, text)
        path.write_text(text.replace("number 7", "number seven"))
        report = reported(run)
        (part,) = report.data["examples"]
        self.assertRegex(part["note"], rf"more: {path} has changed since")
        self.assertEqual({example["inputs"] for example in part["examples"]}, {None})
        self.assertIn("accuracy", report.data["runs"][0]["intervals"]["reviews"], "the targets still give the scores")
        self.assertIn(f"s1, reviews, without texts: {part['note']}", report.page.notes)
        with_texts = copied_run(2)
        lines = read_rows(with_texts / "predictions/reviews.validation.jsonl")
        lines = [{**line, "inputs": f"text {place}"} for place, line in enumerate(lines)]
        (with_texts / "predictions/reviews.validation.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
        with exits_with(65, "none in common; s1: .* has changed since"):
            run_cli("compare", run, with_texts)
        twin = shutil.copytree(run, folder() / "b")
        output = cli_output("compare", run, twin)
        for name in ("s1", "b"):
            self.assertIn(f"{name}: the rows of reviews", output)

    def test_held_out_rows_of_two_seeds_are_compared_on_those_that_both_have(self):
        runs = run_over_file(1), run_over_file(2)
        sides = [{e["inputs"]: e for e in reported(run).data["examples"][0]["examples"]} for run in runs]
        common = [text for text in sides[0] if text in sides[1]]
        right = [sum(side[text]["prediction"] == side[text]["target"] for text in common) for side in sides]
        comparison = Comparison(*runs)
        (entry,) = comparison.scores
        self.assertEqual(entry["rows"], len(common))
        self.assertAlmostEqual(entry["a"], 100 * right[0] / len(common))
        self.assertAlmostEqual(entry["b"], 100 * right[1] / len(common))
        for flip in comparison.flips:
            self.assertIn(flip["inputs"].removeprefix("review: "), line_of(reviews_file(), flip["key"]))

    def test_predictions_name_the_line_of_the_file_that_they_are_of(self):
        for seed in (1, 2):
            lines = read_rows(run_over_file(seed) / REVIEWS)
            self.assertLen({line["place"] for line in lines}, 12)
            for line in lines:
                text, _, label = line_of(reviews_file(), line["place"]).rpartition(",")
                self.assertEqual(label, line["target"])
        for line in read_rows(subset_run(1) / PREDICTIONS):
            self.assertNotIn("place", line)

    def test_predictions_of_rows_that_were_drawn_name_the_lines_that_they_are_of(self):
        """Of several files with empty lines, too; every row has a target of its own."""
        root, numbers = folder(), iter(range(100))
        for name in ("train-1", "validation-1", "validation-2", "test-1", "test-2"):
            rows = [json.dumps({"input": "It was so.", "output": f"a {next(numbers)}"}) for _ in range(12)]
            (root / f"{name}.jsonl").write_text("\n\n".join(rows[:5]) + "\n" + "\n".join(rows[5:]) + "\n")
        limits = {"validation": 7, "test": 5}
        flags = {"max_eval_samples": limits["validation"], "max_predict_samples": limits["test"], "do_predict": True}
        run = tiny_run(data=str(root), dataset_name="reviews", max_steps=1, **flags)
        for split, limit in limits.items():
            lines = read_rows(run.directory / f"predictions/reviews.{split}.jsonl")
            self.assertLen({line["place"] for line in lines}, limit)
            for line in lines:
                path = root / line["place"].partition(":")[0]
                self.assertEqual(json.loads(line_of(path, line["place"]))["output"], line["target"])
            self.assertLen({line["place"].partition(":")[0] for line in lines}, 2)

    def test_without_the_file_held_out_rows_of_two_seeds_are_compared_by_their_places(self):
        in_files = {line["place"] for line in read_rows(run_over_file(1) / REVIEWS)}
        in_both = in_files & {line["place"] for line in read_rows(run_over_file(2) / REVIEWS)}
        runs = copied_run(1), copied_run(2)
        for run in runs:
            change_manifest(run, "settings", "", train_file="/nowhere/reviews.csv")
        comparison = Comparison(*runs)
        self.assertEqual([entry["rows"] for entry in comparison.scores], [len(in_both)])
        self.assertLessEqual({flip["key"] for flip in comparison.flips}, in_both)

    def test_without_file_and_places_held_out_rows_of_two_seeds_are_not_compared(self):
        """Predictions of before 0.2.0 have no places."""
        runs = copied_run(1), copied_run(2)
        for run in runs:
            answers = []
            for line in read_rows(run / REVIEWS):
                del line["place"]
                answers.append({**line, "target": "good", "prediction": "good"})
            (run / REVIEWS).write_text("\n".join(map(json.dumps, answers)) + "\n")
            change_manifest(run, "settings", "", train_file="/nowhere/reviews.csv")
        with exits_with(65, "drawn with seeds 1 and 2"):
            run_cli("compare", *runs)

    def test_runs_keep_texts_that_nothing_could_read_again(self):
        for run, has_texts in ((subset_run(1), False), (run_over_file(1), False), (own_run(reviews()), True)):
            (path,) = run.glob("predictions/*.jsonl")
            self.assertEqual(["inputs" in line for line in read_rows(path)], [has_texts] * len(read_rows(path)))


# MultiRC's questions: the labels of their answers, and which of these A and B have wrong.
QUESTIONS = [([1, 0, 1], [], [1]), ([0, 1], [0], []), ([1, 0, 0], [], [0]), ([1], [0], [0])]


def run_of_questions(name: str, data_dir: Path, answers: list[tuple], scores: dict) -> Path:
    """A run over MultiRC's rows; `answers` are `(idx, label, predicted label)`."""
    words = ("False", "True")
    lines = [
        {"row": row, "example": 0, "prediction": words[predicted], "target": words[label], "idx": idx}
        for row, (idx, label, predicted) in enumerate(answers)
    ]
    manifest = {
        "run_id": name, "tasks": {"multirc": load_task("super_glue", "multirc").entry}, "marks": {}, "data": {},
        "settings": {"benchmark": "super_glue", "dataset_name": "multirc", "seed": 1, "data_dir": str(data_dir)},
    }  # fmt: skip
    return written(folder() / name, manifest, "multirc.validation", lines, {"multirc": scores})


class GroupsTest(parameterized.TestCase):
    def test_questions_of_several_rows_are_drawn_and_counted_as_wholes(self):
        """By hand: A has 2 of 4 questions right, B 1. Of 5 true answers A has 4 and one more, B 3 and one more."""
        rows, sides = [], ([], [])
        for question, (labels, *wrong) in enumerate(QUESTIONS):
            for place, label in enumerate(labels):
                idx = {"paragraph": question // 2, "question": question, "answer": len(rows)}
                texts = {"paragraph": f"P {question // 2}.", "question": f"Q {question}?", "answer": f"A {place}"}
                rows.append({**texts, "label": label, "idx": idx})
                for side, places in zip(sides, wrong, strict=True):
                    side.append((idx, label, 1 - label if place in places else label))
        data_dir = folder()
        write_rows(data_dir / "super_glue" / "multirc" / "validation.jsonl", rows)
        scores = {"f1": 100 * 8 / 10, "exact_match": 50.0}, {"f1": 100 * 6 / 9, "exact_match": 25.0}
        runs = [run_of_questions(name, data_dir, *both) for name, *both in zip("ab", sides, scores, strict=True)]
        comparison = Comparison(*runs)
        entries = {entry["metric"]: entry for entry in comparison.scores}
        self.assertEqual(comparison.notes, [])
        for metric in ("f1", "exact_match"):
            entry = entries[metric]
            self.assertAlmostEqual(entry["a"], scores[0][metric])
            self.assertAlmostEqual(entry["b"], scores[1][metric])
            self.assertEqual((entry["rows"], entry["bootstrap"]["units"]), (9, 4))
        self.assertEqual(entries["exact_match"]["mcnemar"], {"only_a": 2, "only_b": 1, "p": 1.0})
        self.assertIsNone(entries["f1"]["mcnemar"])
        flips = {(flip["key"], flip["flip"]) for flip in comparison.flips}
        keys = [f"answer {place}, paragraph {place // 5}, question" for place in range(9)]
        self.assertEqual(flips, {(f"{keys[1]} 0", "lost"), (f"{keys[3]} 1", "gained"), (f"{keys[5]} 2", "lost")})

    def test_without_labels_there_are_no_scores_and_no_flips(self):
        runs = two_runs()
        for run in runs:
            lines = [{"row": line["row"], "idx": line["idx"], "inputs": "x", "prediction": line["prediction"]}
                     for line in read_rows(run / PREDICTIONS)]  # fmt: skip
            write_rows(run / PREDICTIONS, lines)
        comparison = Comparison(*runs)
        self.assertEqual((comparison.scores, comparison.flips), ([], []))
        self.assertIn(
            "sentiment: no score can be recomputed, without labels or a metric of the suite; only flips are shown",
            comparison.notes,
        )


def wsc_row(candidate: str, label: int, number: int) -> dict:
    """A row of WSC: whether the candidate is who ran."""
    return {"text": "Ann saw that he ran .", "span1_text": candidate, "span1_index": 0, "span2_text": "he",
            "span2_index": 3, "label": label, "idx": number}  # fmt: skip


REFERENTS = [wsc_row("Mark", 0, 0), wsc_row("the fuzzy bunny", 1, 1)]
QUESTION = {"question": "Who won?", "context": "Ann beat Bob.", "answers": {"text": ["Ann", "the winner"]}, "id": "a"}
JOINED = {"id": "a", "input": "Who won?", "output": ["Ann", "the winner"]}
QUERY = {"query": "@placeholder won.", "entities": ["Ann", "Ann Lee"], "passage": "Ann Lee beat Bob.",
         "answers": ["Ann", "Ann Lee"], "idx": {"passage": 0, "query": 0}}  # fmt: skip


def run_over_rows(
    name: str, benchmark: str, task_name: str, rows: list[dict], answers: list[str], score: float
) -> Path:
    """A run with one answer per example of the rows; all of its metrics are `score`."""
    task = load_task(benchmark, task_name)
    scores = {task_name: dict.fromkeys(task.entry["metric_names"], score)}
    return run_with_answers(name, task, rows, answers, scores, "validation")


def run_with_answers(name: str, task, rows: list[dict], answers: list[str], scores: dict, split: str) -> Path:
    path = write_rows(folder() / "rows.jsonl", rows)
    target = "candidate" if task.entry.get("postprocess") == "wsc_verdict" else "target"
    examples = [(number, example) for number, row in enumerate(rows) for example in task.examples(row)]
    lines = [
        {"row": number, "example": 0, "prediction": answer, target: example.targets, "idx": rows[number].get("idx")}
        for (number, example), answer in zip(examples, answers, strict=True)
    ]
    settings = {"benchmark": task.benchmark, "dataset_name": task.name, "seed": 1, f"{split}_file": str(path)}
    manifest = {"run_id": name, "tasks": {task.name: task.entry}, "marks": {}, "data": {}, "settings": settings}
    return written(folder() / name, manifest, f"{task.name}.{split}", lines, scores)


class VerdictsTest(parameterized.TestCase):
    """What counts as right beside a score is what counts as right in it."""

    @parameterized.named_parameters(
        ("wsc_by_its_label", "super_glue", "wsc.fixed", REFERENTS, ["Pete", "bunny"], ["Mark", "Pete"]),
        ("any_answer_of_squad", "squad", "squad", [QUESTION], ["winner"], ["Bob"]),
        ("any_answer_of_joined_rows", "scrolls", "quality", [JOINED], ["winner"], ["Bob"]),
        ("any_answer_of_record", "super_glue", "record", [QUERY], ["Ann Lee"] * 2, ["Bob"] * 2),
    )
    def test_an_answer_is_right_by_the_whole_row(self, benchmark, task, rows, right, wrong):
        runs = [
            run_over_rows(name, benchmark, task, rows, answers, score)
            for name, answers, score in (("a", right, 100.0), ("b", wrong, 0.0))
        ]
        comparison = Comparison(*runs)
        self.assertEqual([flip["flip"] for flip in comparison.flips], ["lost"] * len(right))
        (entry,) = [entry for entry in comparison.scores if entry["metric"] in ("accuracy", "exact_match")]
        self.assertEqual((entry["a"], entry["b"], entry["mcnemar"]["only_b"]), (100.0, 0.0, 0))
        self.check_verdicts(runs, len(right), "wrong" if task.startswith("wsc") else "different")

    @parameterized.named_parameters(
        ("wsc", "super_glue", "wsc.fixed", REFERENTS, ["<extra_id_0> Pete", "bunny"], ["<extra_id_0> Mark", "<extra_id_0>"]),
        ("record", "super_glue", "record", [QUERY], ["<extra_id_0> Ann Lee"] * 2, ["<extra_id_0> Bob"] * 2),
        ("free_text", "scrolls", "quality", [JOINED, {**JOINED, "id": "b"}], ["winner", "<extra_id_0>Ann"], ["Bob"] * 2),
    )  # fmt: skip
    def test_a_sentinel_is_no_part_of_the_answer_after_it(self, benchmark, name, rows, right, wrong):
        form = {"input_format": "__input__ <extra_id_0>", "output_format": "<extra_id_0> __output__"}
        task = make_task(name, "mine", **{**load_task(benchmark, name).entry, **form})
        runs = []
        for answers, points in ((right, 100.0), (wrong, 0.0)):
            scores = {name: dict.fromkeys(task.entry["metric_names"], points)}
            runs.append(run_with_answers(str(points), task, rows, answers, scores, "validation"))
        comparison = Comparison(*runs)
        self.assertNotEmpty(comparison.scores)
        for entry in comparison.scores:
            self.assertEqual((entry["a"], entry["b"]), (100.0, 0.0))
        self.check_verdicts(runs, len(right), "wrong" if name.startswith("wsc") else "different")

    def test_sets_of_labels_are_right_in_any_order_or_wrong(self):
        task = make_task("faults", "mine", labels=None, metric_names=["micro_f1"], metric_to_optimize="micro_f1")
        rows = [{"text": "a", "label": ["late", "broken"]}, {"text": "b", "label": ["late"]}]
        runs = [
            run_with_answers(name, task, rows, answers, {"faults": {"micro_f1": points}}, "validation")
            for name, answers, points in (("a", ["late, broken", "late"], 100.0), ("b", ["blue", "red"], 0.0))
        ]
        self.check_verdicts(runs, 2, "wrong")

    def check_verdicts(self, runs: list[Path], count: int, kind: str):
        """The first run's answers are all right; the second's are of that kind, and both forms of the report say so."""
        report = reported(*runs)
        first, second = report.data["examples"]
        self.assertEqual((first["verdicts"], second["verdicts"]), ({"right": count}, {kind: count}))
        title = {"wrong": f"{count} wrong", "different": f"{count} different from the reference"}[kind]
        self.assertIn(f"{title}**", report.markdown)
        self.assertIn(f"{title}<", report.html)

    def test_a_referent_of_a_row_without_a_label_is_neither_right_nor_wrong(self):
        task, rows = load_task("super_glue", "wsc.fixed"), [wsc_row("Mark", -1, 0)]
        run = run_with_answers("a", task, rows, ["Mark"], {"wsc.fixed.test": {}}, "test")
        (part,) = reported(run).data["examples"]
        self.assertEqual((part["note"], part["verdicts"]), ("", {"unlabelled": 1}))


class LabelListsTest(parameterized.TestCase):
    """The same answers of runs whose labels are in another order or number: F1 is of the classes of A in both."""

    # Of three right answers and a `pos` that is read as `neg`: F1 is 2/3 of `pos`, 4/5 of `neg`, 0 of `so-so`.
    F1 = {"neg,pos": 200 / 3, "pos,neg": 80.0, "so-so,neg,pos": 100 * (2 / 3 + 4 / 5) / 3}

    def run_of_labels(self, name: str, labels: str) -> Path:
        task = make_task("films", "mine", labels=labels.split(","), metric_names=["accuracy", "f1"])
        rows = [{"text": str(number), "label": label} for number, label in enumerate(("pos", "pos", "neg", "neg"))]
        scores = {"films": {"accuracy": 75.0, "f1": self.F1[labels]}}
        return run_with_answers(name, task, rows, ["pos", "neg", "neg", "neg"], scores, "validation")

    @parameterized.parameters(
        ("neg,pos", "pos,neg"), ("pos,neg", "neg,pos"), ("so-so,neg,pos", "neg,pos"), ("neg,pos", "so-so,neg,pos")
    )
    def test_equal_answers_have_equal_scores(self, labels_a, labels_b):
        comparison = Comparison(self.run_of_labels("a", labels_a), self.run_of_labels("b", labels_b))
        self.assertEqual([entry["metric"] for entry in comparison.scores], ["accuracy", "f1"])
        for entry, score in zip(comparison.scores, (75.0, self.F1[labels_a]), strict=True):
            self.assertAlmostEqual(entry["a"], score)
            self.assertAlmostEqual(entry["b"], score)
            self.assertEqual(entry["bootstrap"]["difference"], 0)
        (note,) = comparison.notes
        self.assertIn(labels_a.replace(",", ", "), note)
        self.assertIn(labels_b.replace(",", ", "), note)

    def test_of_runs_without_a_common_score_nothing_is_said_of_whose_labels_score(self):
        first, second = [self.run_of_labels(name, labels) for name, labels in (("a", "neg,pos"), ("b", "pos,neg"))]
        change_manifest(second, "tasks", "films", metric_names=[], metric_to_optimize=None)
        comparison = Comparison(first, second)
        self.assertEmpty(comparison.scores)
        self.assertNotIn("scored by", " ".join(comparison.notes))


# Every row's faults, of ten rows each; what A and B answer to them.
FAULTS = {
    "late, broken": ("late", "broken, late"),
    "late": ("late", "late"),
    "rude staff": ("late", "rude staff"),
    "broken": ("broken", "late"),
}
# A has 40 labels, 30 of them right, B 50 and 40; there are 50 true ones. F1 by label: late, broken, rude staff.
FAULT_SCORES = (
    {"micro_f1": 100 * 60 / 90, "macro_f1": 100 * (40 / 50 + 20 / 30 + 0) / 3, "subset_accuracy": 50.0},
    {"micro_f1": 100 * 80 / 100, "macro_f1": 100 * (40 / 50 + 20 / 30 + 1) / 3, "subset_accuracy": 75.0},
)


def run_of_faults(name: str, side: int) -> Path:
    """A real run over rows with several labels each, with the answers of one side."""
    place = folder()
    rows = [{"text": f"number {i}", "faults": list(FAULTS)[i // 10]} for i in range(40)]
    write_rows(place / "rows.jsonl", rows)
    flags = {"text_column": "text", "target_column": "faults", "metrics": "micro_f1,macro_f1,subset_accuracy"}
    flags |= {"dataset_name": "faults", "max_eval_samples": None, "validation_file": str(place / "rows.jsonl")}
    run = tiny_run(data=place / "rows.jsonl", output_dir=str(folder() / name), **flags)
    path = run.directory / "predictions/faults.validation.jsonl"
    answers = [FAULTS[row["faults"]][side] for row in rows]
    write_rows(path, [{**line, "prediction": answers[line["row"]]} for line in read_rows(path)])
    results = {"tasks": {"faults": FAULT_SCORES[side]}, "averages": {}}
    (run.directory / "results.json").write_text(json.dumps(results))
    return run.directory


class SetsOfLabelsTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_sets_of_labels_have_10000_resamples_and_mcnemar_s_test_of_rows_that_are_exactly_right(self):
        comparison = Comparison(run_of_faults("a", 0), run_of_faults("b", 1))
        entries = {entry["metric"]: entry for entry in comparison.scores}
        self.assertCountEqual(entries, FAULT_SCORES[0])
        for metric, entry in entries.items():
            self.assertAlmostEqual(entry["a"], FAULT_SCORES[0][metric])
            self.assertAlmostEqual(entry["b"], FAULT_SCORES[1][metric])
            self.assertEqual(entry["bootstrap"]["resamples"], 10_000)
        # A alone is right on the ten broken ones, B alone on twenty.
        test = entries["subset_accuracy"]["mcnemar"]
        self.assertEqual((test["only_a"], test["only_b"]), (10, 20))
        self.assertAlmostEqual(test["p"], 2 * sum(math.comb(30, heads) for heads in range(11)) / 2**30)
        self.assertIsNone(entries["micro_f1"]["mcnemar"])
