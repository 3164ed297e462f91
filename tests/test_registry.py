"""The task registry: every shipped entry, a user's entries, and what is refused with which words."""

import contextlib
import copy
import functools
import hashlib
import io
import itertools
import json
import pickle
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import yaml
from absl.testing import parameterized
from task_facts import example_row, task_facts
from transformers import AutoTokenizer

import fine_tune_t5
from t5suite import DATASET_VALS, MIXTURES, Task, load_task
from t5suite.commands.task_rows import read_task_rows
from t5suite.data.rows.formats import Wishes, own_entry
from t5suite.data.rows.sources import merge_references
from t5suite.export.trim_words import task_words
from t5suite.reports.evaluated_rows import ScoredSplit, drawn_rows, read_rows_again
from t5suite.reports.evaluations import scored_splits_of_role
from t5suite.tasks.formatters import FORMATTERS
from t5suite.tasks.metrics import METRICS
from t5suite.tasks.registry import bind_compute_metrics, resolve_names, score_ids
from t5suite.tasks.task_card import make_task_card, read_task_card
from t5suite.tasks.tokenization import Lengths, decode_ids
from t5suite.testing import (
    encode_rows,
    exits_with,
    load_own_rows,
    load_rows,
    make_task,
    read_rows,
    run_cli,
    save_model,
    tiny_model,
    tiny_rows,
    tiny_tokenizer,
    write_rows,
)

REQUIRED_FIELDS = "prefix text_column_name label_column_name labels metric_names metric_to_optimize".split()
ENTRIES = [(benchmark, name) for benchmark, tasks in DATASET_VALS.items() for name in tasks]

# Official row counts: train, validation, test.
COUNTS = {
    ("glue", "cola"): (8551, 1043, 1063), ("glue", "sst2"): (67349, 872, 1821), ("glue", "mrpc"): (3668, 408, 1725),
    ("glue", "qqp"): (363846, 40430, 390965), ("glue", "stsb"): (5749, 1500, 1379), ("glue", "qnli"): (104743, 5463, 5463),
    ("glue", "rte"): (2490, 277, 3000), ("glue", "wnli"): (635, 71, 146), ("super_glue", "boolq"): (9427, 3270, 3245),
    ("super_glue", "cb"): (250, 56, 250), ("super_glue", "copa"): (400, 100, 500), ("super_glue", "multirc"): (27243, 4848, 9693),
    ("super_glue", "record"): (100730, 10000, 10000), ("super_glue", "rte"): (2490, 277, 3000), ("super_glue", "wic"): (5428, 638, 1400),
    ("super_glue", "wsc"): (554, 104, 146), ("super_glue", "wsc.fixed"): (554, 104, 146),
}  # fmt: skip
OTHER_COUNTS = {
    ("glue", "mnli"): {
        "train": 392702, "validation_matched": 9815, "validation_mismatched": 9832, "test_matched": 9796,
        "test_mismatched": 9847,
    },
    ("glue", "wnli_simple"): {"validation": 71, "test": 146},
    ("glue", "ax"): {"test": 1104},
    ("super_glue", "axb"): {"test": 1104},
    ("super_glue", "axg"): {"test": 356},
    ("super_glue", "dpr"): {"train": 1322, "test": 564},
}  # fmt: skip
LONG = ("gov_report", "summ_screen_fd", "qmsum")
METRIC_NAMES = {
    ("glue", "cola"): ["matthews_correlation"], ("glue", "mrpc"): ["f1", "accuracy"], ("glue", "qqp"): ["f1", "accuracy"],
    ("glue", "stsb"): ["pearson", "spearman"], ("glue", "ax"): [], ("super_glue", "cb"): ["mean_3class_f1", "accuracy"],
    ("super_glue", "multirc"): ["f1", "exact_match"], ("super_glue", "record"): ["f1", "exact_match"], ("super_glue", "axb"): ["matthews_correlation"],
    ("super_glue", "axg"): ["accuracy", "gender_parity"], ("mini", "similarity"): ["pearson", "spearman"], ("squad", "squad"): ["f1", "exact_match"],
    ("super_ni", "english"): ["rougeL", "exact_match"], ("scrolls", "narrative_qa"): ["f1"], ("scrolls", "qasper"): ["f1"],
    ("scrolls", "quality"): ["exact_match"], ("scrolls", "contract_nli"): ["exact_match"],
    **{("summarization", name): ["rouge1", "rouge2", "rougeLsum"] for name in ("cnn_dailymail", "xsum")},
    **{("translation", name): ["bleu", "chrf"] for name in ("wmt14_en_de", "wmt14_en_fr", "wmt16_en_ro")},
    **{("scrolls", name): ["rouge1", "rouge2", "rougeL", "rouge_geometric_mean"] for name in LONG},
}  # fmt: skip
# What selects checkpoints, where it is neither the only metric nor the average.
OPTIMISED = {
    ("super_glue", "axg"): "accuracy", ("super_ni", "english"): "rougeL",
    **{("scrolls", name): "rouge_geometric_mean" for name in LONG}, "summarization": "rouge", "translation": "bleu",
}  # fmt: skip


def labelled_rows(key):
    """A few made-up rows of a task, every label among them; no letter of a free target is one of `nonsense`."""
    task = load_task(*key)
    row, column = example_row(*key), task.entry["label_column_name"]
    if key == ("super_glue", "record"):
        changes = [{"entities": a, "answers": a} for a in (["Bob"], ["Ann", "Ann Lee", "Bob"], ["the Cat"])]
    elif key[1] in ("wsc", "wsc.fixed"):
        changes = [{"span1_text": name} for name in ("Tom", "the cat", "Ann's hat")]
    elif key[1] == "wnli_simple":
        changes = [{"sentence2": f"{what} broke."} for what in ("The cup", "Bob")]
    elif key[1] == "dpr":
        changes = [{"label": 0}, {"label": 1}]
    elif task.value_kind != "text":
        changes = [
            {column: label} for label in (range(len(task.label_words)) if task.label_words else (0.0, 1.25, 5.0))
        ]
    else:
        language = column.removeprefix("translation.")
        as_rows = {
            "squad": lambda text: {"answers": {"text": [text], "answer_start": [0]}},
            "super_ni": lambda text: {"output": [text]},
            "translation": lambda text: {"translation": {"en": "x", language: text}},
        }
        as_row = as_rows.get(task.entry.get("formatter") or task.benchmark, lambda text: {column: text})
        changes = [as_row(text) for text in ("Ich war ja da, Karl. Fall bald ab!", "Kfz! Z. B. da rauf, Karl, ja.")]
    ids = {"multirc": ("paragraph", "question", "answer"), "record": ("passage", "query")}.get(key[1])
    numbered = lambda i: {"idx": dict.fromkeys(ids, i) if ids else i, "id": i, "task": f"t{i}"}
    return [{**row, **numbered(i), **changed} for i, changed in enumerate(changes)]


@functools.cache
def card_of(benchmark) -> dict:
    """The task card of a model of all tasks of a benchmark."""
    tasks = [load_task(*key) for key in ENTRIES if key[0] == benchmark]
    return json.loads((save_model(tempfile.mkdtemp(), tasks=tasks) / "task.json").read_text())


class ShippedEntriesTest(parameterized.TestCase):
    @parameterized.parameters(*ENTRIES)
    @pytest.mark.quick_cases(1)
    def test_an_entry_is_plain_data_and_passes_the_check(self, *key):
        entry = DATASET_VALS[key[0]][key[1]]
        self.assertContainsSubset(REQUIRED_FIELDS, entry)
        self.assertEqual(yaml.safe_load(yaml.safe_dump(entry)), entry)
        benchmark, name = key
        task = load_task(benchmark, name)
        card = card_of(benchmark)
        self.assertEqual(card["benchmark"], benchmark)
        self.assertEqual(list(card["tasks"]), [of_benchmark for owner, of_benchmark in ENTRIES if owner == benchmark])
        of_card = load_task(benchmark, name, registry={benchmark: card["tasks"]})
        self.assertEqual(of_card.label_words, task.label_words)
        self.assertEqual({**of_card.entry, "labels": None}, {**entry, "labels": None})

    @parameterized.parameters(*[key for key in ENTRIES if key[0] in ("glue", "super_glue")])
    def test_row_counts_are_the_official_ones(self, *key):
        expected = OTHER_COUNTS.get(key) or dict(zip(("train", "validation", "test"), COUNTS[key]))
        entry = DATASET_VALS[key[0]][key[1]]
        self.assertEqual(entry["num_examples"], expected)
        splits = [name for role in entry["splits"] for name in load_task(*key).splits(role).values()]
        self.assertCountEqual(splits, expected)

    @parameterized.parameters(*ENTRIES)
    def test_metrics_are_those_of_the_contract_in_order(self, *key):
        expected = METRIC_NAMES.get(key, ["accuracy"])
        task = load_task(*key)
        self.assertEqual(task_facts(*key)["metrics"], expected)
        optimised = {0: None, 1: expected[0] if expected else None}.get(len(expected), "average")
        optimised = OPTIMISED.get(key, OPTIMISED.get(key[0], optimised))
        self.assertEqual(task.entry["metric_to_optimize"], optimised)

    @parameterized.parameters(*ENTRIES)
    def test_gold_targets_score_100_and_nonsense_nothing_and_is_reported(self, *key):
        task, rows = load_task(*key), labelled_rows(key)
        examples = [(row, example) for row in rows for example in task.examples(row)]
        free = task.value_kind == "text" and key[1] not in ("record", "dpr")
        self.assertEqual(task.has_candidates, not free)
        for row, example in examples:
            parsed = task.parse(example.targets)
            if task.value_kind == "number":
                self.assertLess(abs(parsed - row["label"]), 0.1001)
            else:
                label = row[task.entry["label_column_name"]] if task.value_kind == "class" else example.targets
                self.assertEqual(parsed, label)
            candidates = task.candidates(row)
            self.assertEqual(candidates is None, free)
            self.assertTrue(free or task.examples(row)[0].targets in candidates)
        expected = dict.fromkeys(METRIC_NAMES.get(key, ["accuracy"]), 100.0)
        if key[1] == "axg":
            expected["gender_parity"] = 0.0  # the two rows of this pair have different labels
        if task.value_kind != "text" and expected:
            expected["invalid_rate"] = 0.0
        scores = task.score(rows, [example.targets for _, example in examples])
        self.assertEqual(list(scores), list(expected))
        for name, value in expected.items():
            self.assertAlmostEqual(scores[name], value, msg=name)
        if key[1] != "ax":
            self.assertAlmostEqual(task.optimised(scores), 100.0)
        for name, value in task.score(rows, ["nonsense ?"] * len(examples)).items():
            if name in ("pearson", "spearman"):
                self.assertNotEqual(value, value)
            else:
                self.assertEqual(value, {"invalid_rate": 100.0, "gender_parity": 100.0}.get(name, 0.0), name)

    def test_mnli_has_two_validation_splits_and_no_plain_one(self):
        task = load_task("glue", "mnli")
        halves = {"mnli_matched": "validation_matched", "mnli_mismatched": "validation_mismatched"}
        self.assertEqual(task.splits("validation"), halves)
        self.assertEqual(task.splits("train"), {"mnli": "train"})
        self.assertEqual(load_task("glue", "ax").splits("validation"), {})
        self.assertEqual(load_task("super_glue", "wsc.fixed").splits("validation"), {"wsc.fixed": "validation"})

    def test_the_shipped_tasks_are_those_of_the_contract(self):
        self.assertEqual(
            {benchmark: set(tasks) for benchmark, tasks in DATASET_VALS.items()},
            {
                "glue": set("cola sst2 mrpc qqp stsb mnli qnli rte wnli ax wnli_simple".split()),
                "super_glue": set("boolq cb copa multirc record rte wic wsc wsc.fixed axb axg dpr".split()),
                "mini": {"sentiment", "entailment", "similarity"},
                "squad": {"squad"},
                "summarization": {"cnn_dailymail", "xsum"},
                "translation": {"wmt14_en_de", "wmt14_en_fr", "wmt16_en_ro"},
                "super_ni": {"english"},
                "scrolls": set("gov_report summ_screen_fd qmsum narrative_qa qasper quality contract_nli".split()),
            },
        )


class MixturesTest(parameterized.TestCase):
    def test_the_mixtures_are_those_of_the_contract(self):
        eight = "cola sst2 mrpc qqp stsb mnli qnli rte".split()
        mixture = {"train": eight, "evaluate": [*eight, "wnli", "ax"], "average": eight}
        self.assertEqual(MIXTURES["glue"]["all"], mixture)
        eight = "boolq cb copa multirc record rte wic wsc.fixed".split()
        mixture = {"train": [*eight, "dpr"], "evaluate": [*eight, "axb", "axg"], "average": eight}
        self.assertEqual(MIXTURES["super_glue"]["all"], mixture)
        for benchmark, mixtures in MIXTURES.items():
            for roles in mixtures.values():
                for names in roles.values():
                    self.assertContainsSubset(names, DATASET_VALS[benchmark])
                self.assertContainsSubset(roles["average"], roles["evaluate"])
                for name in roles["train"]:
                    self.assertTrue(load_task(benchmark, name).splits("train"), name)

    def test_dataset_names_are_a_task_a_comma_list_or_a_mixture(self):
        names = {"rte": ["rte"], "cola,rte": ["cola", "rte"], " rte , cola ": ["rte", "cola"], "cola,": ["cola"]}
        for text, expected in names.items():
            self.assertEqual(resolve_names("glue", text, DATASET_VALS, MIXTURES), (expected, expected, expected))
        roles = tuple(MIXTURES["glue"]["all"][role] for role in ("train", "evaluate", "average"))
        self.assertEqual(resolve_names("glue", "all", DATASET_VALS, MIXTURES), roles)

    def test_other_names_are_refused(self):
        for benchmark, text, reason in (
            ("glue", "", ".*empty"), ("glue", ",", ".*empty"), ("glue", "cola,cola", ".*twice"),
            ("glue", "all,cola", ".*mixture"), ("glue", "cola,rt", ".*rte"), ("glue", "al", ".*all"),
            ("mini", "rte", ": rte is a task of glue, super_glue, not of mini; give --benchmark glue or super_glue"),
            ("mini", "rte,cola", ": rte is a task of glue, not of mini; give --benchmark glue"),
            ("mini", "rte,sentiment", ": rte is a task of glue, super_glue, not of mini"),
        ):  # fmt: skip
            with exits_with(78, f"--dataset_name{reason}"):
                resolve_names(benchmark, text, DATASET_VALS, MIXTURES)


# The entries of a predecessor, as its file has them.
OTHERS = {-1: "other"}
COMMON = ["accuracy", "f1", "precision", "recall"]
PREDECESSOR = {
    "cola": {
        "prefix": "cola sentence: ", "text_column_name": "sentence", "label_column_name": "label",
        "metric_to_optimize": "mcc", "metric_names": COMMON,
        "labels": {0: "unacceptable", 1: "acceptable", **OTHERS},
    },
    "mnli": {
        "prefix": ["mnli hypothesis: ", "premise: "], "text_column_name": ["premise", "hypothesis"],
        "label_column_name": "label", "metric_to_optimize": "accuracy", "metric_names": COMMON,
        "labels": {0: "entailment", 1: "neutral", 2: "contradiction", **OTHERS},
    },
    "stsb": {
        "prefix": ["stsb sentence1: ", "sentence1: "], "text_column_name": ["sentence1", "sentence2"],
        "label_column_name": "label", "metric_to_optimize": "spearman",
        "metric_names": [*COMMON, "spearman", "pearson"], "labels": None,
    },
}  # fmt: skip


class TaskFileTest(parameterized.TestCase):
    def write(self, name, text):
        path = Path(self.enter_context(tempfile.TemporaryDirectory())) / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    def as_file(self, tasks, kind, benchmark="old"):
        tasks = {benchmark: tasks}
        text = yaml.safe_dump(tasks, sort_keys=False) if kind == "yaml" else f"DATASET_VALS = {tasks!r}\n"
        return self.write(f"tasks.{kind}", text)

    @parameterized.product(name=list(PREDECESSOR), kind=["yaml", "py"])
    def test_a_predecessors_entry_works_unchanged(self, name, kind):
        entry = copy.deepcopy(PREDECESSOR[name])
        task = load_task("old", name, self.as_file({name: entry}, kind))
        self.assertEqual(task.entry, PREDECESSOR[name])
        columns = dict(zip(task.text_columns, ("first", "second")))
        prefixes = [entry["prefix"]] if isinstance(entry["prefix"], str) else entry["prefix"]
        text = " ".join(prefix + value for prefix, value in zip(prefixes, columns.values()))
        labels = [0.0, 2.5, 4.0] if name == "stsb" else list(range(len(task.label_words)))
        words = ["0.0", "2.5", "4.0"] if name == "stsb" else [entry["labels"][label] for label in labels]
        rows = [{**columns, "label": label} for label in labels]
        self.assertEqual([tuple(task.examples(row)[0]) for row in rows], [(text, word) for word in words])
        scores = task.score(rows, words)
        names = [*entry["metric_names"], *([] if name != "cola" else ["mcc"]), "invalid_rate"]
        self.assertEqual(list(scores), names)
        for metric, value in scores.items():
            self.assertAlmostEqual(value, 0 if metric == "invalid_rate" else 100, msg=metric)
        self.assertAlmostEqual(task.optimised(scores), 100)
        if name != "stsb":  # its word for unlabelled rows is no label
            self.assertNotIn("other", task.label_words)
            self.assertEqual(task.parse("other"), -1)
            self.assertEqual(task.examples({**columns, "label": -1})[0].targets, "<unk>")
            self.assertEqual(task.score([{**columns, "label": -1}], ["other"]), {})

    @parameterized.parameters("yaml", "py")
    def test_ones_own_task_may_join_a_shipped_benchmark_and_redefine_none(self, kind):
        path = self.as_file({"mine": PREDECESSOR["cola"], "sst2": PREDECESSOR["cola"]}, kind, "glue")
        self.assertEqual(load_task("glue", "mine", path).parse("acceptable"), 1)
        self.assertEqual(load_task("glue", "cola", path).entry, DATASET_VALS["glue"]["cola"])
        self.assertNotIn("mine", DATASET_VALS["glue"])
        with exits_with(78, "unknown glue task 'mine'"):
            load_task("glue", "mine")
        with exits_with(78, "glue/sst2.*shipped"):
            load_task("glue", "sst2", path)

    def test_a_bad_entry_is_refused_when_it_is_used_and_blocks_no_other(self):
        path = self.write("tasks.yaml", yaml.safe_dump({"mine": {"bad": entry(labels=3), "good": entry()}}))
        self.assertEqual(load_task("mine", "good", path).parse("yes"), 1)
        with exits_with(78, "tasks.yaml:2: mine/bad: labels must be"):
            load_task("mine", "bad", path)

    def test_labels_may_be_a_list_and_metrics_a_group(self):
        table = {
            "topics": {
                "prefix": "topic title: ", "text_column_name": "title", "label_column_name": "topic",
                "labels": ["sports", "world", "yes"], "metric_to_optimize": "f1",
                "metric_names": ["accuracy", "f1", "f1_macro", "precision_macro"],
            },
            "summaries": {
                "prefix": "summarize: ", "text_column_name": "article", "label_column_name": "summary", "labels": None,
                "metric_names": ["rouge", "bleu", "chrf"], "metric_to_optimize": "rougeLsum",
            },
            "answers": {
                "prefix": ["question: ", "context: "], "text_column_name": ["question", "context"], "labels": None,
                "label_column_name": "answers", "metric_names": ["squad"], "metric_to_optimize": "average",
            },
        }  # fmt: skip
        path = self.as_file(table, "yaml", "mine")
        topics = load_task("mine", "topics", path)
        rows = [{"title": "t", "topic": topic} for topic in (0, "world", 2)]
        self.assertEqual([topics.examples(row)[0].targets for row in rows], ["sports", "world", "yes"])
        self.assertAlmostEqual(topics.score(rows, ["sports", "sports", "yes"])["f1"], 100 * (2 / 3 + 0 + 1) / 3)
        summaries = load_task("mine", "summaries", path)
        rows = [{"article": "long", "summary": "the cat sat on the mat ."}]
        self.assertEqual(tuple(summaries.examples(rows[0])[0]), ("summarize: long", rows[0]["summary"]))
        found = summaries.score(rows, [rows[0]["summary"]])
        self.assertEqual(list(found), ["rouge1", "rouge2", "rougeLsum", "bleu", "chrf"])
        self.assertAlmostEqual(summaries.optimised(found), 100)
        answers = load_task("mine", "answers", path)
        rows = [{"question": "q", "context": "c", "answers": ["Bob Lee", "Ann"]}]
        self.assertEqual(tuple(answers.examples(rows[0])[0]), ("question: q context: c", "Bob Lee"))
        self.assertEqual(answers.score(rows, ["the ann."]), {"squad_f1": 100.0, "squad_exact_match": 100.0})

    def test_an_unreadable_file_is_refused_by_name(self):
        for name, text, reason in (
            ("tasks.yaml", "", "hold"), ("tasks.yaml", "- a\n- b\n", "hold"),
            ("tasks.yaml", "mine: 3\n", "mine must be a table"), ("tasks.yaml", "mine:\n  t: {prefix: 'a\n", "yaml:"),
            ("tasks.yaml", "mine:\n  t: !!python/object/apply:os.getcwd []\n", "yaml:"),
            ("tasks.yml", "x: [", "yml:"), ("tasks.py", "x = 1\n", "DATASET_VALS"),
            ("tasks.py", "DATASET_VALS = [1]\n", "DATASET_VALS"), ("tasks.py", "DATASET_VALS = {\n", "SyntaxError"),
            ("tasks.py", "raise RuntimeError('boom')\n", "boom"), ("tasks.json", "{}", "must end in"),
        ):  # fmt: skip
            path = self.write(name, text)
            with exits_with(78, reason) as failure:
                load_task("mine", "t", path)
            self.assertIn(name, failure.message)


def entry(**changes):
    """A good entry with some fields changed; None removes a field."""
    good = {
        "prefix": ["t a: ", "b: "], "text_column_name": ["a", "b"], "label_column_name": "label",
        "labels": ["no", "yes"], "metric_names": ["accuracy"], "metric_to_optimize": "accuracy",
    }  # fmt: skip
    return {key: value for key, value in {**good, **changes}.items() if value != "(gone)"}


INSTRUCTION = DATASET_VALS["super_ni"]["english"]["instruction"]
# (changes, what the message must hold: the key, and the reason)
BAD_ENTRIES = [
    *[({field: "(gone)"}, f"{field} missing") for field in REQUIRED_FIELDS], ({"prefx": "t: "}, "unknown key 'prefx'.*prefix"),
    ({"metrics": ["f1"]}, "unknown key 'metrics'"), ({"prefix": "t: "}, "prefix is one string but text_column_name is a list of 2"),
    ({"text_column_name": "a"}, "prefix is a list of 2 but text_column_name is one string"),
        ({"prefix": ["t: ", None]}, "prefix must be a string or a list of strings"),
    ({"text_column_name": None}, "text_column_name must be a string or a list of strings"),
    ({"label_column_name": None}, "label_column_name must be a string"), ({"label_column_name": ["label"]}, "label_column_name must be a string"),
    ({"labels": []}, "labels must be"), ({"labels": {}}, "labels must be"), ({"labels": "no,yes"}, "labels must be"),
    ({"labels": 2}, "labels must be"), ({"labels": {1: "no", 2: "yes"}}, "labels must have the keys 0, 1, 2"),
    ({"labels": {0: "no", 2: "yes"}}, "labels must have the keys 0, 1, 2"), ({"labels": {"no": 0, "yes": 1}}, "labels must have the keys 0, 1, 2"),
    ({"labels": {-1: "other"}}, "labels must have the keys 0, 1, 2"),
    ({"labels": [False, True]}, "label False must be a text .quote"), ({"labels": ["no", ""]}, "label '' must be a text"),
    ({"labels": {0: "no", 1: 1}}, "label 1 must be a text"), ({"labels": ["no", "no"]}, "label 'no' is given twice"),
    ({"metric_names": "accuracy"}, "metric_names must be a list"), ({"metric_names": None}, "metric_names must be a list"),
    ({"metric_names": ["acuracy"]}, "metric_names: unknown metric 'acuracy'; did you mean accuracy"),
    ({"metric_names": [1]}, "metric_names must be a list of metric names"), ({"metric_names": ["bleu"]}, "metric_names: 'bleu' compares texts"),
    ({"metric_names": ["sacrebleu"]}, "metric_names: 'sacrebleu' compares texts"),
    ({"metric_to_optimize": "rouge1"}, "metric_to_optimize: 'rouge1' compares texts"),
    ({"metric_names": ["mine"], "metric_functions": {"mine": "rougeL"}}, "metric_names: 'mine' compares texts"),
    ({"metric_names": ["mine"], "metric_functions": {"mine": "span_f1"}}, "span_f1.* need the formatter token_labels"),
    ({"labels": None, "metric_names": ["squad_f1"], "metric_to_optimize": "squad_f1", "references_by": "q", "group_by": "g"},
     "references_by .*group_by"),
    ({"formatter": "super_ni", "instruction": {"num_positive": 2}}, "instruction: unknown key 'num_positive'"),
    ({"metric_to_optimize": ["f1", "accuracy"]}, "metric_to_optimize must be one metric's name"),
    ({"metric_to_optimize": None}, "metric_to_optimize is empty"),
    ({"metric_to_optimize": "average", "metric_names": []}, "metric_to_optimize is 'average'"),
    ({"metric_names": ["grouped_exact_match"]}, "group_by"), ({"metric_names": ["gender_parity"]}, "group_by"),
    ({"metric_names": ["mean_3class_f1"]}, "exactly three labels, and there are 2; f1_macro"),
    ({"labels": None, "metric_names": ["mine"], "metric_functions": {"mine": "mean_3class_f1"}},
     "exactly three labels, and there are 0; f1_macro"),
    ({"formatter": "colums"}, "formatter 'colums'.*columns"), ({"target": "nearest"}, "target 'nearest'"),
    ({"postprocess": "verdict"}, "postprocess 'verdict'"), ({"splits": ["train"]}, "splits must be a table"),
    ({"splits": {}}, "splits must be a table"), ({"splits": {"dev": "validation"}}, "splits: unknown key 'dev'"),
    ({"splits": {"train": 1}}, "splits: train must be"), ({"splits": {"train": []}}, "splits: train must be"),
    ({"splits": {"validation": ["a", None]}}, "splits: validation must be"),
    *[({"num_examples": {"train": count}}, "num_examples: train must be a whole number of rows") for count in ("5,000", 5e3, -1)],
    *[({"max_input_tokens": length}, "max_input_tokens must be a whole number of tokens above 0") for length in (0, True, "5", 2.0)],
    ({"max_output_tokens": -1}, "max_output_tokens must be a whole number of tokens above 0"),
    ({"labels": None, "metric_names": [], "metric_to_optimize": "pearson", "target": "nearest_fifth", "target_decimals": 2},
     "target_decimals 2 and target 'nearest_fifth': give one"),
    ({"labels": None, "metric_names": ["f1"], "metric_to_optimize": "f1", "references_by": "a"}, "several references, and f1 compares labels"),
    ({"labels": None, "metric_names": ["micro_f1"], "metric_to_optimize": "micro_f1", "references_by": "a"}, "and micro_f1 compares"),
    ({"labels": None, "metric_names": ["mine"], "metric_to_optimize": "mine", "metric_functions": {"mine": "precision"}, "references_by": "a"},
     "several references, and mine compares labels"),
    ({"references_by": "a"}, "references_by is for free text"), ({"report_by": ["a", 1]}, "report_by must be a list of columns"),
    ({"instruction": INSTRUCTION}, "needs the field instruction"), ({"formatter": "super_ni"}, "needs the field instruction"),
    *[({"formatter": "super_ni", "instruction": INSTRUCTION | changes}, f"instruction: {message}") for changes, message in (
        ({"seed": -1}, "seed must be at least 0, not -1"), ({"tk_instruct": 1}, "tk_instruct must be true or false, not 1"),
        ({"num_pos_examples": True}, "num_pos_examples must be a whole number, not True"),
        ({"max_num_instances_per_task": "5"}, "max_num_instances_per_task must be a whole number or null, not '5'"),
    )],
    ({"formatter": "token_labels", "metric_names": ["token_accuracy"], "metric_to_optimize": "token_accuracy"},
     "token_labels needs one text_column_name"),
    ({"formatter": "token_labels", "prefix": ["names: "], "text_column_name": "a", "metric_names": ["token_accuracy"],
      "metric_to_optimize": "token_accuracy"}, r"token_labels needs one prefix, a text, not \['names: '\]"),
    *[({"formatter": formatter, "prefix": "t: "}, "prefix is one string but text_column_name is a list of 2")
      for formatter in ("squad", "joined_lists", "instruction", "multirc", "record")],
]  # fmt: skip
GOOD_FIELDS = [
    {"max_input_tokens": 1, "max_output_tokens": 1}, {"report_by": ["a", "b"]},
    *[{"formatter": formatter, "prefix": prefix, "text_column_name": columns}
      for formatter in (None, "squad", "joined_lists", "instruction", "multirc", "record")
      for prefix, columns in ((["q: "], "a"), ("", ["a"]))],
    {"splits": {"train": ["a", "b"], "validation": ["b", "c"]}}, {"num_examples": {"train": 5, "test": None}},
    {"labels": {-1: "hidden", 0: "no", 1: "yes", 2: "both"}, "metric_names": ["mean_3class_f1"]},
    {"formatter": "super_ni", "instruction": INSTRUCTION | {"seed": 0, "max_num_instances_per_task": None}},
    *[{"labels": None, "metric_names": ["pearson"], "metric_to_optimize": "pearson", "target_decimals": n} for n in (0, 20)],
]  # fmt: skip


class BadEntriesTest(parameterized.TestCase):
    def test_a_metric_that_was_added_to_the_table_may_be_named(self):
        entry = {
            "prefix": "a: ", "text_column_name": "a", "label_column_name": "label", "labels": ["no", "yes"],
            "metric_names": ["share_of_no"], "metric_to_optimize": "share_of_no",
        }  # fmt: skip
        share_of_no = lambda predictions, references, **_: (
            100 * sum(value == 0 for value in predictions) / len(predictions)
        )
        with mock.patch.dict(METRICS, share_of_no=share_of_no):
            task = load_task("mine", "task", registry={"mine": {"task": entry}})
            rows = [{"a": "b", "label": 1}] * 4
            self.assertEqual(task.score(rows, ["no", "yes", "no", "no"])["share_of_no"], 75.0)

    def test_a_slip_is_told_by_its_entry_key_and_reason(self):
        load = lambda value: load_task("mine", "task", registry={"mine": {"task": value}})
        for fields in ({}, *GOOD_FIELDS):  # what is changed below is good
            load(entry(**fields))
        for changes, message in BAD_ENTRIES:
            with self.subTest(changes), exits_with(78, f"^mine/task: .*{message}"):
                load(entry(**changes))
        for value in (None, 3, "sst2", ["prefix"]):
            with exits_with(78, "mine/task: an entry is a table"):
                load(value)

    def test_a_task_file_has_one_training_split(self):
        """The `task.json` of a model that was trained before may have several."""
        path = Path(tempfile.mkdtemp()) / "tasks.yaml"
        path.write_text(json.dumps({"mine": {"task": entry(splits={"train": ["a", "b"]})}}))
        with exits_with(78, "mine/task: splits: train must be one split, not a, b"):
            load_task("mine", "task", task_file=path)

    def test_a_number_as_a_task_s_name_is_refused_by_its_reason(self):
        path = Path(tempfile.mkdtemp()) / "tasks.yaml"
        path.write_text(f"mine:\n  2023: {json.dumps(entry())}\n")
        with exits_with(78, "tasks.yaml:2: .*it is of the type int, not a text"):
            load_task("mine", "2023", task_file=path)

    def test_a_row_on_which_a_formatter_fails_is_named_with_its_line(self):
        path = write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", [{"a": "x", "b": "y", "label": n} for n in (0, 1)])
        for error in (KeyError("gone"), TypeError("no text"), ZeroDivisionError("no word")):
            fails = mock.Mock(side_effect=[[], error])
            with (
                mock.patch.dict(FORMATTERS, fails=fails),
                exits_with(65, rf"rows.jsonl:2: not a row of mine/task \({type(error).__name__}"),
            ):
                load_rows(Task("mine", "task", entry(formatter="fails")), "train", train_file=str(path))

    @parameterized.parameters(
        ({"report_by": ["kind"]}, "no column 'kind', which report_by names; did you mean kinds"),
        ({"group_by": "kind"}, "a row has no 'kind', which groups the predictions"),
    )
    def test_a_column_that_only_scores_need_is_missed_before_training(self, fields, message):
        path = write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", [{"a": "x", "b": "y", "kinds": "z", "label": 1}])
        task = Task("mine", "task", entry(**fields))
        with exits_with(65, f"rows.jsonl:1: {message}"):
            load_rows(task, "validation", validation_file=str(path))
        self.assertLen(load_rows(task, "train", train_file=str(path)), 1)


class LookupTest(parameterized.TestCase):
    def test_an_unknown_name_is_told_with_the_closest(self):
        for benchmark, name, message in (
            ("gleu", "sst2", "--benchmark: unknown benchmark 'gleu'.*glue"),
            ("superglue", "cb", "--benchmark: unknown benchmark 'superglue'.*super_glue"),
            ("glue", "ssst2", "--dataset_name: unknown glue task 'ssst2'.*sst2"),
            ("glue", "MNLI", "--dataset_name: .*mnli"),
            ("super_glue", "wsc_fixed", "--dataset_name: .*wsc.fixed"),
            ("super_glue", "zzzzz", "--dataset_name: .*choose from axb, axg"),
        ):
            with exits_with(78, message):
                load_task(benchmark, name)


class Letters:
    """A tokenizer of one token a character, with T5's special ids."""

    pad_token_id, eos_token_id, bos_token_id = 0, 1, None

    def __call__(self, texts=None, *, text_target=None, max_length, truncation):
        assert truncation
        texts = texts if text_target is None else text_target
        return {"input_ids": [[ord(c) for c in text][: max_length - 1] + [1] for text in texts]}

    def decode(self, ids, clean_up_tokenization_spaces):
        assert not clean_up_tokenization_spaces
        return "".join(map(chr, ids))


class ScoredSplitsTest(parameterized.TestCase):
    @parameterized.parameters(
        ("mnli", "validation", {}, ["mnli_matched", "mnli_mismatched"]),
        ("mnli", "validation", {"validation_file": "mine.jsonl"}, ["mnli"]),
        ("mnli", "test", {"validation_file": "mine.jsonl"}, ["mnli_matched.test", "mnli_mismatched.test"]),
        ("rte", "validation", {"validation_file": "mine.jsonl", "data_format": "jsonl"}, ["rte"]),
        ("ax", "validation", {"validation_file": "mine.jsonl"}, []),
        ("ax", "test", {}, ["ax.test", "ax"]),
    )
    def test_a_file_replaces_all_splits_of_a_role_and_no_other_does(self, name, role, settings, expected):
        splits = scored_splits_of_role(load_task("glue", name), role, settings)
        self.assertEqual([split.name for split in splits], expected)

    @parameterized.parameters(
        ("rte", "rte", "validation", False, 2), ("rte", "rte", "validation", True, 2), ("rte", "rte.test", "test", True, 3),
        ("ax", "ax", "test", False, 2), ("ax", "ax", "test", True, 3), ("ax", "ax.test", "test", False, 3),
    )  # fmt: skip
    def test_a_split_that_is_predicted_has_the_rows_to_predict(self, task, name, role, do_predict, num_rows):
        settings = {"max_eval_samples": 2, "max_predict_samples": 3, "do_predict": do_predict, "seed": 1}
        loaded = SimpleNamespace(rows=list(range(9)))
        scored = ScoredSplit(name, load_task("glue", task), role, role)
        self.assertLen(drawn_rows(scored, loaded, [], settings).rows, num_rows)


class RowsReadAgainTest(parameterized.TestCase):
    @parameterized.parameters(
        ([{"text": 1, "mark": "a"}, {"text": 2.5, "mark": "b", "idx": 7}], {}),
        ([{"text": "x", "mark": 3}, {"text": "y", "mark": 4}], {}),
        ([{"text": "x", "mark": 1}, {"text": "y", "mark": 0}], {"labels": "bad,good"}),
        ([{"text": "x", "mark": {"by": 1}}, {"text": "y", "mark": {"by": 2, "at": 3}}], {"target_column": "mark.by"}),
        ([{"text": "x", "mark": -1}, {"text": "y", "mark": -1}], {"metrics": "pearson"}),
        ([{"text": "x", "lang": "de"}, {"text": "y", "lang": "fr"}], {"target_lang_column": "lang"}),
    )
    def test_own_rows_are_those_of_the_run_also_where_its_model_knew_their_columns(self, rows, flags):
        path = write_rows(Path(tempfile.mkdtemp()) / "a.jsonl", rows)
        flags = {"text_column": "text", "target_column": "mark", **flags}
        task, rows_of_run = load_own_rows({"test": path}, "test", **flags)
        scored = ScoredSplit("a", task, "test", "test")
        files = {"data_format": "jsonl", "test_file": str(path), "seed": 1}
        for settings in ({**files, **flags}, files):
            manifest = {"settings": settings, "encoding": {"form": "text", **flags}}
            with self.assertNoLogs("t5suite.data.rows", "WARNING"):  # which are for a training
                again = read_rows_again(scored, manifest, [settings])
            self.assertEqual((again.error, again.rows.rows), ("", rows_of_run))
            self.assertEqual(again.rows.places, ["a.jsonl:1", "a.jsonl:2"])

    def test_a_split_that_a_folder_no_longer_has_is_named(self):
        place = Path(tempfile.mkdtemp())
        write_rows(place / "train.jsonl", [{"text": "x", "mark": "a"}])
        settings = {"data_format": "jsonl", "train_dir": str(place), "text_column": "text", "target_column": "mark"}
        settings["seed"] = 1
        task, _ = load_own_rows(place, text_column="text", target_column="mark", no_eval=True)
        again = read_rows_again(ScoredSplit("a", task, "test", "test"), {"settings": settings}, [settings])
        self.assertIn("has no test rows; it has train", again.error)


class LambdasTest(parameterized.TestCase):
    def test_rows_become_ids_and_long_ones_keep_their_end(self):
        rows = [{"sentence": "a", "label": 0}, {"sentence": "b", "label": 1}]
        lengths = {"source_length": 6, "target_length": 4}
        encoded = encode_rows(rows, load_task("glue", "sst2"), tokenizer=Letters(), **lengths)
        inputs, words = [*map(ord, "sst2 "), 1], [[*map(ord, word), 1] for word in ("neg", "pos")]
        self.assertEqual(encoded, [{"input_ids": inputs, "labels": word} for word in words])

    @parameterized.parameters(
        (9, [39, 210, 501, 39, 210, 501, 620, 1], [620, 39, 210, 501, 39, 210, 501, 1]),
        (7, [39, 210, 501, 39, 210, 620, 1], [620, 39, 210, 501, 39, 501, 1]),
        (4, [39, 210, 620, 1], [620, 39, 501, 1]),
        (2, [620, 1], [501, 1]),
    )
    def test_a_sentinel_at_the_end_survives_cutting_as_in_seqio(self, length, inputs, targets):
        """`value[: length - 2] + value[-1:] + [eos]` of both sides; ids of the bundled tokenizer."""
        form = {"input_format": "__input__ <extra_id_0>", "output_format": "<extra_id_0> __output__"}
        fields = {"prefix": "", "text_column_name": "a", "labels": None, "metric_names": [], "metric_to_optimize": None}
        task = Task("mine", "t", entry(**fields, **form))
        lengths = {"source_length": length, "target_length": length}
        encoded = encode_rows([{"a": "a b a b", "label": "a b a b"}], task, **lengths)
        self.assertEqual(encoded, [{"input_ids": inputs, "labels": targets}])

    @parameterized.parameters((["true", "false"], 0, 1), (["False", "True"], 1, 0), (["1", "0"], 0, 1))
    def test_a_boolean_is_the_label_that_it_spells(self, labels, true_id, false_id):
        task = Task("mine", "t", entry(labels=labels))
        for value, number in ((True, true_id), (False, false_id)):
            row = {"a": "x", "b": "y", "label": value}
            self.assertEqual(task.examples(row)[0].targets, labels[number])
            self.assertEqual(task.score([row], [labels[number]])["accuracy"], 100)

    def test_an_answer_after_a_sentinel_is_read_as_in_seqio(self):
        """`if text.startswith(sentinel): text = text[len(sentinel):].strip()`, then the label is looked up."""
        form = {"input_format": "__input__ <extra_id_0>", "output_format": "<extra_id_0> __output__"}
        rows = [{"a": "x", "b": "y", "label": 1}]
        task = Task("mine", "t", entry(labels=["False", "True"], **form))
        for text in ("True", "<extra_id_0>True", "<extra_id_0>  True", "<extra_id_0> True ", "<extra_id_0>\tTrue\n"):
            self.assertEqual(task.parse(text), 1, text)
            self.assertEqual(task.score(rows, [text]), {"accuracy": 100, "invalid_rate": 0}, text)
        for text in (" True", "True ", "<extra_id_1>True", "true", "<extra_id_0> <extra_id_0> True", ""):
            self.assertEqual(task.parse(text), -1, text)
        two = Task("mine", "t", entry(output_format="<extra_id_0> <extra_id_1> __output__"))
        self.assertEqual([two.parse("<extra_id_0><extra_id_1> yes"), two.parse("<extra_id_0> yes")], [1, -1])
        fields = {"labels": None, "metric_names": ["pearson"], "metric_to_optimize": "pearson"}
        number = Task("mine", "t", entry(**fields, target="nearest_fifth", **form))
        texts = ["2.6", "<extra_id_0>2.6", "<extra_id_0> 2.6 "]
        self.assertEqual([number.parse(text) for text in texts], [2.6] * 3)
        rows = [{"a": "x", "b": "y", "label": label} for label in (1.0, 2.0, 3.0)]
        scores = number.score(rows, ["1.0", "<extra_id_0> 2.0", "<extra_id_0>3.0"])
        self.assertEqual({name: round(score, 9) for name, score in scores.items()}, {"pearson": 100, "invalid_rate": 0})
        self.assertEqual(number.candidates({})[13], "<extra_id_0> 2.6")
        query = Task("mine", "t", {**load_task("super_glue", "record").entry, **form})
        self.assertEqual(query.candidates({"entities": ["Ann", "Bob"]}), ["<extra_id_0> Ann", "<extra_id_0> Bob"])
        plain = Task("mine", "t", entry(output_format="answer: __output__"))
        self.assertEqual([plain.parse("answer: yes"), plain.parse("yes"), plain.parse("answer:  yes")], [1, -1, -1])

    def test_a_row_may_make_several_examples_or_none(self):
        settings = {"tokenizer": Letters(), "source_length": 99, "target_length": 9}
        targets_of = lambda rows, name, split: [
            each["labels"] for each in encode_rows(rows, load_task("super_glue", name), split, **settings)
        ]
        wsc = [
            {"text": f"{letter.lower()} he", "span1_text": letter, "span2_text": "he", "span2_index": 1}
            for letter in "AB"
        ]
        for labels, split, expected in (
            ([0, 1], "train", ["B"]), ([0, 0], "train", []), ([0, 1], "validation", ["A", "B"]),
        ):  # fmt: skip
            rows = [{**row, "label": label} for row, label in zip(wsc, labels, strict=True)]
            self.assertEqual(targets_of(rows, "wsc.fixed", split), [[ord(word), 1] for word in expected])
        row = {"passage": "p", "query": "q", "entities": ["E"]}
        rows = [{**row, "answers": answers} for answers in (["A", "B"], ["C"])]
        self.assertEqual(targets_of(rows, "record", "train"), [[ord(word), 1] for word in "ABC"])

    def test_decoding_hides_padding_and_nothing_else(self):
        tokenizer = tiny_tokenizer()
        word = tokenizer("positive", add_special_tokens=False)["input_ids"]
        sentinel = tokenizer.convert_tokens_to_ids("<extra_id_0>")
        sequences = [[0, *word, 1, -100, -100], [*word, 1, *word], [sentinel, *word, 1], [-100, 1]]
        first, second, after_sentinel, empty = decode_ids(sequences, tokenizer)
        self.assertEqual([first, second, empty], ["positive", "positive", ""])
        self.assertNotEqual(after_sentinel, "positive")

    def test_generated_ids_are_read_up_to_the_end_and_scored(self):
        sequences = [[0, *map(ord, "positive"), 1, 0, 0], [0, *map(ord, "bad"), 1, ord("x"), -100, -100]]
        self.assertEqual(decode_ids(sequences, Letters()), ["positive", "bad"])
        self.assertEqual(decode_ids([[0, *map(ord, "cut"), -100, -100]], Letters()), ["cut"])  # no end was written
        rows = [{"sentence": "a", "label": 1}, {"sentence": "b", "label": 0}]
        task = load_task("glue", "sst2")
        score = bind_compute_metrics(task, Letters(), task.example_set(rows))

        class Output:
            predictions = sequences

        self.assertEqual(score(Output), {"accuracy": 50.0, "invalid_rate": 50.0})
        Output.predictions = []
        with exits_with(65):
            score(Output)


class PaddingTest(parameterized.TestCase):
    def test_a_perfect_model_scores_100_whatever_its_answers_are_padded_with(self):
        """A mask of the pad id over labels that hold -100 once gave a perfect model 0.196 points."""
        tokenizer, task = tiny_tokenizer(), load_task("mini", "sentiment")

        def score(words, labels, width, filler):
            ids = np.full((len(words), width), filler)
            for row, word in zip(ids, words):
                answer = tokenizer(word)["input_ids"]
                row[: len(answer)] = answer
            prediction = SimpleNamespace(predictions=ids, label_ids=None)
            rows = [{"sentence": "s", "label": label} for label in labels]
            examples = task.example_set(rows)
            return score_ids(prediction, task=task, tokenizer=tokenizer, examples=examples)["accuracy"]

        for width, filler in itertools.product((16, 512), (tokenizer.pad_token_id, -100)):
            self.assertEqual(score(["negative", "positive"], [0, 1], width, filler), 100.0)
            self.assertEqual(score(["positive", "negative"], [0, 1], width, filler), 0.0)
        self.assertEqual(score(["positive"] * 4, [1, 0, 0, 0], 64, -100), 25.0)


class TaskCardTest(parameterized.TestCase):
    """`task.json` beside the weights: what `t5suite predict` needs no flags for."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.rows = write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", tiny_rows(count=3))
        cls.causal = tiny_model("gpt2", "n_embd=32,n_layer=1,n_head=2,n_positions=128")

    def saved(self, *names, model=None, source_length: int = 64, **changes) -> Path:
        """A model's folder with a card of these tasks, changed in some fields."""
        tasks = [load_task("mini", name) for name in names]
        folder = save_model(tempfile.mkdtemp(), model, tasks=tasks, source_length=source_length, target_length=5)
        card = folder / "task.json"
        card.write_text(json.dumps(json.loads(card.read_text()) | changes))
        return folder

    def saved_with_unknown_metric(self) -> Path:
        """A model's folder with a card that names a metric, for the choice of a checkpoint, that no table has."""
        folder = self.saved("sentiment")
        card = json.loads((folder / "task.json").read_text())
        card["tasks"]["sentiment"]["metric_to_optimize"] = "loudness"
        (folder / "task.json").write_text(json.dumps(card))
        return folder

    def predict(self, folder, *flags, rows=None) -> list[dict]:
        output = Path(tempfile.mkdtemp()) / "answers.jsonl"
        words = ["--model_name_or_path", folder, "--input", rows or self.rows, "--output", output]
        run_cli("predict", *words, "--scores", "--use_cpu", *flags)
        return read_rows(output)

    @pytest.mark.slow
    def test_lengths_come_back(self):
        card = json.loads((self.saved("sentiment") / "task.json").read_text())
        lengths = {"max_source_length": 64, "max_target_length": 5, "max_answer_tokens": {"sentiment": 5}}
        self.assertEqual({name: card[name] for name in (*lengths, "family")}, {**lengths, "family": "seq2seq"})
        short = self.predict(self.saved("sentiment", source_length=6))
        self.assertEqual(short, self.predict(self.saved("sentiment"), "--max_source_length", "6"))
        self.assertNotEqual(short, self.predict(self.saved("sentiment")))

    @pytest.mark.slow
    def test_a_causal_models_separator_comes_back(self):
        separated = self.predict(self.saved("sentiment", model=self.causal, answer_separator=" = "))
        plain = self.saved("sentiment", model=self.causal)
        self.assertEqual(separated, self.predict(plain, "--answer_separator", " = "))
        self.assertNotEqual(separated, self.predict(plain))

    @pytest.mark.slow
    def test_of_several_tasks_one_must_be_named(self):
        folder = self.saved("sentiment", "similarity")
        with exits_with(78, "sentiment, similarity"):
            self.predict(folder)
        with exits_with(78, "did you mean similarity"):
            self.predict(folder, "--dataset_name", "similaritie")
        rows = write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", tiny_rows("similarity", count=2))
        answers = self.predict(folder, "--dataset_name", "similarity", rows=rows)
        self.assertEqual(answers, self.predict(self.saved("similarity"), rows=rows))

    @parameterized.parameters(
        "{",
        "[]",
        '{"format": 2}',
        '{"format": 1, "benchmark": "b", "tasks": {"t": {}}}',
        '{"format": 1, "benchmark": "b", "tasks": {}, "max_source_length": 0, "max_target_length": 1, '
        '"max_answer_tokens": {}, "family": null}',
        '{"format": 1, "benchmark": "b", "tasks": {}, "max_source_length": 1, "max_target_length": 1, '
        '"max_answer_tokens": {}, "family": null, "scored_by_labels": ["t"]}',
    )
    def test_damage_is_told_with_the_file(self, content):
        folder = self.saved("sentiment")
        (folder / "task.json").write_text(content)
        with exits_with(78, f"{folder}/task.json is not a task card"):
            self.predict(folder)

    def test_a_card_that_names_a_function_of_a_task_file_is_read_after_the_file(self):
        place = Path(tempfile.mkdtemp())
        fields = {"prefix": "", "text_column_name": "text", "label_column_name": "label", "labels": ["bad", "good"],
                  "formatter": "shout", "metric_names": ["accuracy"], "metric_to_optimize": "accuracy"}  # fmt: skip
        file = place / "tasks.py"
        file.write_text(
            "from t5suite.tasks.formatters import FORMATTERS, Example\n"
            "FORMATTERS['shout'] = lambda row, entry, split: [Example(row['text'].upper(), 'good')]\n"
            f"DATASET_VALS = {{'mine': {{'films': {fields!r}}}}}\n"
        )
        rows = write_rows(place / "rows.jsonl", [{"text": "fine"}])
        flags = ["--benchmark", "mine", "--dataset_name", "films", "--task_file", file]
        with mock.patch.dict(FORMATTERS):
            save_model(place / "model", tasks=[load_task("mine", "films", str(file))])
        message = "task.json: mine/films has the formatter 'shout', .*; give --benchmark mine --dataset_name films --task_file FILE$"
        with exits_with(78, message):
            self.predict(place / "model", rows=rows)
        with mock.patch.dict(FORMATTERS):
            (answer,) = self.predict(place / "model", *flags, "--include_inputs", rows=rows)
        self.assertEqual(answer["inputs"], "FINE")

    @parameterized.parameters(
        ("predict --input ROWS", "; give --benchmark mini --dataset_name sentiment --task_file FILE"),
        ("score --rows ROWS --predictions ROWS",
         "; give --benchmark mini --dataset_name sentiment --task_file FILE in place of --model_name_or_path"),
    )  # fmt: skip
    def test_a_function_that_only_a_task_file_has_is_told_with_what_the_command_takes(self, words, way):
        """Also a metric that only chooses the checkpoint."""
        folder = self.saved_with_unknown_metric()
        words = words.replace("ROWS", str(self.rows)).split()
        message = f"/task.json: mini/sentiment has the metric 'loudness', .* adds such functions{way}$"
        with exits_with(78, message):
            run_cli(*words, "--model_name_or_path", folder)

    def test_a_model_is_trimmed_to_its_tasks_words_without_their_functions(self):
        folder = self.saved_with_unknown_metric()
        output = folder.with_name(f"{folder.name}-trimmed")
        text = write_rows(folder / "text.jsonl", [{"sentence": "the film"}])
        words = ["--text", text, "--text_column_name", "sentence", "--output_dir", output]
        run_cli("trim", "--model_name_or_path", folder, *words)
        before, after = (AutoTokenizer.from_pretrained(place) for place in (folder, output))
        self.assertLess(len(after), len(before))
        for label in ("negative", "positive"):
            self.assertEqual(after.tokenize(label), before.tokenize(label))
        tasks = [json.loads((place / "task.json").read_text())["tasks"] for place in (folder, output)]
        self.assertEqual(tasks[1], tasks[0])

    def test_ranks_can_pass_the_error_of_a_function_that_is_missing(self):
        with exits_with(78, "metric 'loudness'") as ended:
            read_task_card(self.saved_with_unknown_metric())
        error = ended.exception
        passed_error = pickle.loads(pickle.dumps(error))
        self.assertEqual((str(passed_error), vars(passed_error)), (str(error), vars(error)))
        self.assertIn("--task_file", error.task_flags)

    def test_where_no_folder_is_named_there_is_no_card(self):
        """A `task.json` of another program may stand in the working directory."""
        with contextlib.chdir(tempfile.mkdtemp()):
            Path("task.json").write_text('{"version": "2.0.0"}')
            self.assertIsNone(read_task_card(""))

    def test_labels_are_kept_as_their_template_spells_them(self):
        task = make_task(labels=["no", "yes"], output_format="<__output__>")
        self.assertContainsSubset(["no", "yes", "<no>", "<yes>"], task_words(make_task_card([task], Lengths(8, 8))))

    def check_that_it_warns_and_holds(self, folder, words: str, message: str, same_folder, **settings):
        """The flag's answers are those of a model whose card says the same."""
        with contextlib.redirect_stderr(io.StringIO()) as shown:
            answers = self.predict(folder, *words.split(), "--max_new_tokens", "5", **settings)
        self.assertIn(message, shown.getvalue())
        self.assertEqual(answers, self.predict(same_folder, "--max_new_tokens", "5", **settings))

    def test_a_length_that_differs_warns_and_holds(self):
        message, same_folder = "--max_source_length 6 differs from 64", self.saved("sentiment", source_length=6)
        self.check_that_it_warns_and_holds(self.saved("sentiment"), "--max_source_length 6", message, same_folder)

    @pytest.mark.slow
    def test_a_task_that_differs_warns_and_holds(self):
        rows = write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", tiny_rows("similarity", count=2))
        message = "mini --dataset_name similarity differs from mini/sentiment"
        words = "--benchmark mini --dataset_name similarity"
        self.check_that_it_warns_and_holds(self.saved("sentiment"), words, message, self.saved("similarity"), rows=rows)

    def test_a_prefix_in_a_list_is_that_of_the_same_task(self):
        folder = self.saved("sentiment")
        card = json.loads((folder / "task.json").read_text())
        card["tasks"]["sentiment"]["prefix"] = [card["tasks"]["sentiment"]["prefix"]]
        (folder / "task.json").write_text(json.dumps(card))
        with contextlib.redirect_stderr(io.StringIO()) as shown:
            self.predict(folder, "--benchmark", "mini", "--dataset_name", "sentiment")
        self.assertNotIn("differs from", shown.getvalue())

    @parameterized.parameters(
        ({"family": "seq2seq"}, {}, "--model_family causal", "--model_family causal differs from seq2seq"),
        ({"answer_separator": ":"}, {"answer_separator": "="}, "--answer_separator =", "--answer_separator = differs from :"),
    )  # fmt: skip
    @pytest.mark.slow
    def test_what_differs_for_a_causal_model_warns_and_holds(self, card, card_that_agrees, words, message):
        folders = [self.saved("sentiment", model=self.causal, **changes) for changes in (card, card_that_agrees)]
        self.check_that_it_warns_and_holds(folders[0], words, message, folders[1])


class EntryTest(parameterized.TestCase):
    @parameterized.parameters(
        (None, {"metric_names": ["f1"], "metric_to_optimize": "mcc"}, "mcc"), (("accuracy",), {}, "accuracy"),
        (None, {"metric_names": ["rouge"], "metric_to_optimize": "rougeLsum"}, "rougeLsum"),
        (("bleu", "chrf"), {"metric_names": ["f1"], "metric_to_optimize": "mcc"}, "average"), (None, {}, "average"),
        (("evaluate:./words",), {"metric_names": ["f1"], "metric_to_optimize": "words"}, "words"),
    )  # fmt: skip
    def test_the_entry_s_own_choice_of_a_metric_stays_unless_flags_name_metrics(self, metrics, fields, optimized):
        self.assertEqual(own_entry(fields, Wishes(metrics=metrics))["metric_to_optimize"], optimized)


class OwnRowsTest(parameterized.TestCase):
    @parameterized.parameters(
        ("exact_match", [-1, 1], "-1"), ("exact_match", [1, -1], "1"), ("exact_match", ["-1"], "-1"),
        ("micro_f1", [-1, 1], "-1, 1"), ("exact_match", [-1], "<unk>"), ("exact_match", [], "<unk>"),
        ("micro_f1", [-1], "<unk>"), ("exact_match", -1, "<unk>"),
    )  # fmt: skip
    def test_minus_one_is_an_answer_where_a_list_has_another(self, metric, label, target):
        task = make_task(labels=None, metric_names=[metric], metric_to_optimize=metric)
        row = {"text": "x^2 = 1", "label": label}
        (example,) = task.examples(row)
        self.assertEqual((example.targets, task.is_labelled(row)), (target, target != "<unk>"))

    def test_rows_of_one_question_need_its_key(self):
        import datasets

        rows = datasets.Dataset.from_list([{"id": key, "answer": "Ann"} for key in ("a", None)])
        with exits_with(65, "column 'id' of row 1 is empty"):
            merge_references(rows, "id", "answer")

    def test_the_key_of_a_question_its_answers_and_hidden_numbers_may_stand_inside_of_a_column(self):
        place = Path(tempfile.mkdtemp())
        answers = [(1, "Ann"), (2, "Tom"), (1, "she")]
        rows = [{"q": f"Who {key}?", "gold": {"id": key, "text": text}, "n": 3} for key, text in answers]
        question = {"prefix": "q: ", "text_column_name": "q", "label_column_name": "gold.text", "labels": None,
                    "references_by": "gold.id", "metric_names": ["exact_match"], "metric_to_optimize": "exact_match"}  # fmt: skip
        file = str(write_rows(place / "questions.jsonl", rows))
        merged = load_rows(make_task(**question), "validation", validation_file=file)
        expected = [{"id": 1, "text": ["Ann", "she"]}, {"id": 2, "text": ["Tom"]}]
        self.assertEqual(merged, [{**rows[i], "gold": gold} for i, gold in enumerate(expected)])
        with exits_with(65, "no column 'of.id'; the rows have 'q', 'gold', 'n'"):
            load_rows(make_task(**question | {"references_by": "of.id"}), "validation", validation_file=file)
        numbers = {
            "labels": None,
            "label_column_name": "gold.stars",
            "metric_names": ["pearson"],
            "metric_to_optimize": "pearson",
        }
        for stars, expected in (([-1, -1], [None, None]), ([-1, 2], [-1, 2])):
            rows = [{"text": "a", "gold": {"by": "Ann", "stars": number}} for number in stars]
            file = str(write_rows(place / "numbers.jsonl", rows))
            of_test = load_rows(make_task(**numbers), "test", test_file=file)
            self.assertEqual([row["gold"] for row in of_test], [{"by": "Ann", "stars": number} for number in expected])

    @parameterized.parameters(
        {"references_by": "meta.id", "labels": None, "metric_names": ["squad_exact_match"],
         "metric_to_optimize": "squad_exact_match"},
        {"group_by": "meta.id", "metric_names": ["grouped_exact_match"], "metric_to_optimize": "grouped_exact_match"},
    )  # fmt: skip
    def test_a_plain_column_with_a_dot_in_its_name_joins_rows_as_a_key_of_an_object_does(self, **fields):
        task = make_task(**fields)
        predictions = ["good", "bad", "bad", "good"]
        labels = ["good", "bad", "bad", "bad"]
        keys = ["q0", "q0", "q1", "q1"]
        plain_rows, nested_rows = [], []
        for key, label in zip(keys, labels):
            plain_rows.append({"text": "x", "label": label, "meta.id": key})
            nested_rows.append({"text": "x", "label": label, "meta": {"id": key}})
        scores = task.score(nested_rows, predictions)
        self.assertEqual(task.score(plain_rows, predictions), scores)
        if "group_by" in fields:
            self.assertEqual(scores["grouped_exact_match"], 50)

    def test_the_key_of_a_question_and_hidden_numbers_may_stand_inside_of_the_only_column(self):
        place = Path(tempfile.mkdtemp())
        question = {"prefix": "q: ", "text_column_name": "qa.q", "label_column_name": "qa.a", "labels": None,
                    "references_by": "qa.q", "metric_names": ["exact_match"], "metric_to_optimize": "exact_match"}  # fmt: skip
        file = str(write_rows(place / "questions.jsonl", [{"qa": {"q": "Who?", "a": name}} for name in ("Ann", "she")]))
        merged = load_rows(make_task(**question), "validation", validation_file=file)
        self.assertEqual(merged, [{"qa": {"q": "Who?", "a": ["Ann", "she"]}}])
        numbers = {"prefix": "n: ", "text_column_name": "pair.text", "label_column_name": "pair.score", "labels": None,
                   "metric_names": ["pearson"], "metric_to_optimize": "pearson"}  # fmt: skip
        file = str(write_rows(place / "numbers.jsonl", [{"pair": {"text": "a", "score": -1}}] * 2))
        of_test = load_rows(make_task(**numbers), "test", test_file=file)
        self.assertEqual(of_test, [{"pair": {"text": "a", "score": None}}] * 2)

    def test_a_number_is_the_label_of_its_digits_where_answers_are_scored(self):
        entry = own_entry({"label_column_name": "label"}, Wishes(labels=("1", "2", "3")))
        path = write_rows(Path(tempfile.mkdtemp()) / "a.jsonl", [{"input": "x", "label": n} for n in (3, 1, "2")])
        task_rows = read_task_rows(Task("own", "a", entry), str(path), "test", by_data_format=True)
        self.assertEqual([row.examples[0].targets for row in task_rows], ["3", "1", "2"])


class SavedModelsTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_the_run_and_every_checkpoint_have_a_card_that_the_manifest_covers(self):
        folder = Path(tempfile.mkdtemp()) / "run"
        flags = "--benchmark mini --dataset_name sentiment,entailment --max_train_samples 16 --max_eval_samples 4"
        flags += " --config_overrides d_model=16,d_kv=8,d_ff=16,num_layers=1,num_heads=2 --max_source_length 48"
        flags += f" --max_steps 2 --per_device_train_batch_size 8 --use_cpu --disable_tqdm True --output_dir {folder}"
        fine_tune_t5.main(flags.split())
        (checkpoint,) = folder.glob("checkpoint-*")
        for place in (folder, checkpoint):
            card = json.loads((place / "task.json").read_text())
            self.assertEqual(list(card["tasks"]), ["sentiment", "entailment"])
            self.assertEqual((card["max_source_length"], card["family"]), (48, "seq2seq"))
            self.assertEqual(card["max_answer_tokens"]["sentiment"], 2)
        files = json.loads((checkpoint / "checkpoint.json").read_text())["files"]
        content = (checkpoint / "task.json").read_bytes()
        self.assertEqual(files["task.json"]["sha256"], hashlib.sha256(content).hexdigest())
