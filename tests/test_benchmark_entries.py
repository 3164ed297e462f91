"""Further benchmarks, Super-NaturalInstructions and the examples' task files: texts and scores of made and real rows."""

import contextlib
import io
import json
import random
import string
import tempfile
from pathlib import Path

import pytest
import shared_data
import yaml
from absl.testing import parameterized
from task_facts import task_facts

import fine_tune_t5
from t5suite import DATASET_VALS, FineTuner, load_task
from t5suite.tasks.metrics import METRICS
from t5suite.testing import TINY_T5, exits_with, load_rows, run_cli, save_model

TASK_FILES = {n: str(Path(__file__).parents[1] / f"examples/tasks/{n}.yaml") for n in ("hyperpartisan", "discoeval")}
ANSWERS = {"text": ["U.S. troops", "troops"], "answer_start": [0, 5]}


def texts(benchmark, name, row, split="validation"):
    return [tuple(example) for example in load_task(benchmark, name).examples(row, split)]


class OriginalTextTest(parameterized.TestCase):
    def test_squad_has_spaces_around_punctuation_and_single_spaces(self):
        row = {"question": "Who, in  1945?", "context": '"U.S. troops"\n(and 2nd-line).', "answers": ANSWERS}
        expected = 'question: Who , in 1945 ? context: " U . S . troops " ( and 2nd - line ) . '
        self.assertEqual(texts("squad", "squad", row), [(expected, "U . S . troops")])

    @parameterized.parameters(
        ("a_b", "a _ b"), ("24–10", "24–10"), ("Ä(b)", "Ä ( b ) "), ("x\u00a0y", "x\u00a0y"), ("$1.2", "$ 1 . 2")
    )
    def test_ascii_punctuation_alone_is_padded(self, text, padded):
        ((inputs, _),) = texts("squad", "squad", {"question": "Who", "context": text, "answers": ANSWERS})
        self.assertEqual(inputs, f"question: Who context: {padded}")

    def test_summaries(self):
        row = {"article": "A. \n B", "highlights": "H ."}
        self.assertEqual(texts("summarization", "cnn_dailymail", row), [("summarize: A. \n B", "H .")])
        self.assertEqual(texts("summarization", "xsum", {"document": "D", "summary": "S"}), [("summarize: D", "S")])

    @parameterized.parameters(
        ("wmt14_en_de", "de", "translate English to German: Hi."),
        ("wmt14_en_fr", "fr", "translate English to French: Hi."),
        ("wmt16_en_ro", "ro", "translate English to Romanian: Hi."),
    )
    def test_translations(self, name, language, expected):
        row = {"translation": {"en": "Hi.", language: "X."}}
        self.assertEqual(texts("translation", name, row), [(expected, "X.")])
        with exits_with(65, r"translation\.en"):
            texts("translation", name, {"translation": {language: "X."}})


class TextScoresTest(parameterized.TestCase):
    def test_the_geometric_mean_is_of_the_three_means(self):
        from rouge_score import rouge_scorer  # slow to import

        predictions, references = ["a cat sat", "dogs run far"], [["the cat sat"], ["dogs run", "a far dog runs"]]
        scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"])
        product = 1.0
        for key in ("rouge1", "rouge2", "rougeL"):
            pairs = zip(predictions, references)
            mean = 100 * sum(max(scorer.score(a, p)[key].fmeasure for a in answers) for p, answers in pairs) / 2
            product *= mean
            self.assertAlmostEqual(METRICS[key](predictions, references), mean)
        self.assertAlmostEqual(METRICS["rouge_geometric_mean"](predictions, references), product ** (1 / 3))


class ScrollsTest(parameterized.TestCase):
    def rows(self, task, split, answers):
        """Three rows, the first and the last about one question, as loaded from a file."""
        folder = Path(tempfile.mkdtemp())
        (folder / "scrolls" / task.name).mkdir(parents=True)
        ids = [{"id": f"q{i}", "pid": f"q{i}_{j}", "input": f"Q{i}?\n\nA story."} for i, j in ((1, 0), (2, 0), (1, 1))]
        lines = [json.dumps({**row, "output": answer}) + "\n" for row, answer in zip(ids, answers)]
        (folder / f"scrolls/{task.name}/{split}.jsonl").write_text("".join(lines))
        return load_rows(task, split, data_dir=str(folder))

    def test_rows_of_one_question_are_one_scored_row_with_all_answers(self):
        task = load_task("scrolls", "narrative_qa")
        rows = self.rows(task, "validation", ["Bob", "Rain", "the tall man"])
        answers = [(row["id"], row["output"]) for row in rows]
        self.assertEqual(answers, [("q1", ["Bob", "the tall man"]), ("q2", ["Rain"])])
        self.assertEqual(list(rows[0]), ["id", "pid", "input", "output"])
        self.assertEqual(task.score(rows, ["tall man", "snow"]), {"f1": 50.0})

    def test_hidden_answers_stay_hidden(self):
        task = load_task("scrolls", "quality")
        rows = self.rows(task, "test", [None] * 3)
        self.assertEqual([row["output"] for row in rows], [None, None])
        self.assertEqual(task.score(rows, ["a", "b"], "test"), {})


class ClassificationTest(parameterized.TestCase):
    def test_hyperpartisan(self):
        of_a_publisher = {"text": "T", "title": "t", "hyperpartisan": True, "url": "u", "published_at": "", "bias": 4}
        for name, row in (
            ("byarticle", {"text": "T", "label": "true"}),
            ("byarticle", {"text": "T", "label": 1}),
            ("bypublisher", of_a_publisher),
        ):
            task = load_task("hyperpartisan", name, TASK_FILES["hyperpartisan"])
            self.assertEqual(task.examples(row), [("hyperpartisan text: T", "true")])
            scores = task.score([row], ["false"])
            self.assertEqual((scores["accuracy"], scores["f1"], scores["invalid_rate"]), (0.0, 0.0, 0.0))

    @pytest.mark.slow
    def test_discoeval_reads_labels_as_ids_digits_and_names(self):
        tasks = yaml.safe_load(Path(TASK_FILES["discoeval"]).read_text())["discoeval"]
        sizes = {name: len(entry["labels"]) for name, entry in tasks.items()}
        self.assertEqual(
            sizes,
            {**dict.fromkeys(("SParxiv", "SProcstory", "SPwiki"), 5), "BSOarxiv": 2, "BSOrocstory": 2, "BSOwiki": 2,
             "DCchat": 2, "DCwiki": 2, "SSPabs": 2, "PDTB-I": 11, "PDTB-E": 12, "RST": 41},
        )  # fmt: skip
        for name in tasks:
            task = load_task("discoeval", name, TASK_FILES["discoeval"])
            row = {f"sentence_{i}": f"s{i}." for i in range(1, len(task.text_columns) + 1)}
            if name == "RST":
                row = {key: [text, "more ."] for key, text in row.items()}
            for number, word in enumerate(task.label_words):
                for label in (number, str(number), word):
                    (example,) = task.examples({**row, "label": label})
                    self.assertEqual(example.targets, word)
            self.assertStartsWith(example.inputs, f"{name.lower()} sentence")
            self.assertIn("s1. more ." if name == "RST" else "s1.", example.inputs)


RUN_ROWS = {
    ("squad", "squad"): lambda i: {"question": f"Who {i}?", "context": f"Ann {i}.", "answers": {"text": [f"Ann {i}"]}},
    ("summarization", "cnn_dailymail"): lambda i: {"article": f"It rains {i}.", "highlights": "Rain ."},
    ("translation", "wmt16_en_ro"): lambda i: {"translation": {"en": f"Hi {i}", "ro": f"Salut {i}"}},
    ("scrolls", "narrative_qa"): lambda i: dict(id=f"q{i // 2}", pid=f"q{i}", input=f"Who {i // 2}?", output=f"A{i}"),
    ("hyperpartisan", "byarticle"): lambda i: {"text": f"News {i}.", "label": ["false", "true"][i % 2]},
    ("discoeval", "RST"): lambda i: {"sentence_1": [f"He {i}", "left ."], "sentence_2": ["."], "label": i},
}


class CommandLineTest(parameterized.TestCase):
    @parameterized.parameters(*RUN_ROWS)
    @pytest.mark.slow
    def test_a_task_trains_and_is_scored_from_the_command_line(self, benchmark, name):
        folder = Path(self.enter_context(tempfile.TemporaryDirectory()))
        rows = folder / "rows.jsonl"
        rows.write_text("".join(json.dumps(RUN_ROWS[benchmark, name](i)) + "\n" for i in range(8)))
        argv = f"--benchmark {benchmark} --dataset_name {name} --train_file {rows} --validation_file {rows}".split()
        argv += ["--task_file", TASK_FILES[benchmark]] if benchmark in TASK_FILES else []
        argv += ["--max_steps", "2", "--per_device_train_batch_size", "4", "--max_source_length", "32", "--use_cpu"]
        results = fine_tune_t5.main([*argv, "--output_dir", str(folder / "run")])
        metrics = task_facts(benchmark, name, TASK_FILES.get(benchmark))["metrics"]
        self.assertContainsSubset(metrics, results["tasks"][name])
        (predictions,) = (folder / "run" / "predictions").iterdir()
        self.assertLen(predictions.read_text().splitlines(), 4 if benchmark == "scrolls" else 8)


SETTINGS = DATASET_VALS["super_ni"]["english"]["instruction"]
ROW = {
    "idx": 5,
    "task": "task1_capital",
    "category": "Misc.",
    "definition": " Name the capital of the country ",
    "positive_examples": [{"input": "India", "output": "New Delhi", "explanation": "It is the capital."},
        {"input": "Peru?", "output": "Lima!", "explanation": None}],
    "negative_examples": [{"input": "Italy", "output": "Beijing", "explanation": "Of China"}],
    "input": "Kenya",
    "output": ["Nairobi", "nairobi city"],
}  # fmt: skip
ASKED = "Now complete the following example -\nInput: Kenya.\nOutput: "
DEFINITION = "Definition: Name the capital of the country.\n\n"
INDIA = " Positive Example 1 -\nInput: India.\n Output: New Delhi.\n\n"
PERU = " Positive Example 2 -\nInput: Peru?\n Output: Lima!\n\n"
ITALY = " Negative Example 1 -\nInput: Italy.\n Output: Beijing.\n\n"


def instructed(**changes):
    """The task with some settings of its instructions changed."""
    entry = DATASET_VALS["super_ni"]["english"]
    registry = {"super_ni": {"english": {**entry, "instruction": {**SETTINGS, **changes}}}}
    return load_task("super_ni", "english", registry=registry)


def instruction_text(row, *fits, **changes) -> str:
    return instructed(**changes).examples(row, "test", *fits)[0].inputs


def write_tasks(root, names, instances=5, lists="default"):
    """A repository of made tasks, the first half for training."""
    (root / "tasks").mkdir(parents=True, exist_ok=True)
    (root / "splits" / lists).mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        task = {"Definition": ["Write it again."], "Categories": ["Copying" if number % 2 else "Echo", "Other"]}
        task["Positive Examples"] = [{"input": "ha", "output": "ha", "explanation": "the same"}]
        rows = [{"id": f"{name}-{i}", "input": f"w{i}", "output": [f"w{i}", f"W {i}"]} for i in range(instances)]
        task |= {"Negative Examples": [], "Instances": rows}
        (root / "tasks" / f"{name}.json").write_text(json.dumps(task))
    half = len(names) // 2
    for split, chosen in (("train", names[:half]), ("test", names[half:])):
        (root / "splits" / lists / f"{split}_tasks.txt").write_text("\n".join(chosen) + "\n")


class InstructionTextTest(parameterized.TestCase):
    @parameterized.parameters(
        ({}, DEFINITION + INDIA + PERU + ASKED),
        ({"num_pos_examples": 0}, DEFINITION + ASKED),
        ({"add_task_definition": False, "num_pos_examples": 1}, INDIA + ASKED),
        ({"num_neg_examples": 2}, DEFINITION + INDIA + PERU + ITALY + ASKED),
        ({"num_pos_examples": 1, "add_task_name": True}, "task1_capital. " + DEFINITION + INDIA + ASKED),
        (
            {"add_explanation": True, "num_pos_examples": 2, "num_neg_examples": 1},
            DEFINITION + INDIA.removesuffix("\n") + " Explanation: It is the capital.\n\n" + PERU
            + ITALY.removesuffix("\n") + " Explanation: Of China.\n\n" + ASKED,
        ),
    )  # fmt: skip
    def test_every_form_is_tk_instructs(self, changes, expected):
        self.assertEqual(instruction_text(ROW, **changes), expected)

    def test_demonstrations_that_do_not_fit_are_left_out_from_the_end(self):
        whole = instruction_text(ROW, num_neg_examples=1)
        lengths = [len(DEFINITION + ASKED), len(DEFINITION + INDIA + ASKED), len(whole)]
        for limit in range(lengths[0], lengths[-1] + 4):
            fits = lambda candidate, most=limit: len(candidate) <= most
            text = instruction_text(ROW, fits, num_neg_examples=1)
            self.assertLessEqual(len(text), limit)
            self.assertStartsWith(text, DEFINITION)
            self.assertEndsWith(text, ASKED)
        for most, expected in ((lengths[1] - 1, DEFINITION + ASKED), (lengths[1], DEFINITION + INDIA + ASKED)):
            text = instruction_text(ROW, lambda text, most=most: len(text) <= most)
            self.assertEqual(text, expected)

    def test_the_mixture_draws_every_form_by_seed_and_row(self):
        forms = [
            {"num_pos_examples": 0}, {"add_task_definition": False}, {}, {"num_neg_examples": 2}, {"add_explanation": True}
        ]  # fmt: skip
        texts_of_forms = [instruction_text(ROW, **form) for form in forms]
        draw = lambda seed, count=500: [
            instruction_text({**ROW, "idx": i}, tk_instruct=True, seed=seed) for i in range(count)
        ]
        drawn = draw(42)
        self.assertEqual([drawn.count(text) > 60 for text in texts_of_forms], [True] * 5)
        self.assertEqual(set(drawn), set(texts_of_forms))
        self.assertEqual(drawn[:50], draw(42, 50))
        self.assertNotEqual(drawn[:50], draw(43, 50))

    @parameterized.parameters({}, {"idx": None})
    def test_rows_without_a_number_draw_by_their_inputs(self, **columns):
        """As a file of the user's own may have them; on every start the same."""
        unnumbered = {name: value for name, value in ROW.items() if name != "idx"}
        rows = [{**unnumbered, **columns, "input": f"Land {i}"} for i in range(100)]

        def drawn(rows):
            task = instructed(tk_instruct=True)
            examples = [task.examples(row, "train")[0] for row in rows]
            return [(example.inputs.rpartition("Now complete")[0], example.targets) for example in examples]

        self.assertLen(set(drawn(rows)), 5 * 2)
        self.assertEqual(drawn(rows[::-1]), drawn(rows)[::-1])

    def test_a_training_row_writes_one_reference_drawn_by_seed_and_row(self):
        task = load_task("super_ni", "english")
        drawn = [task.examples({**ROW, "idx": i}, "train")[0].targets for i in range(100)]
        self.assertEqual(set(drawn), set(ROW["output"]))
        self.assertBetween(drawn.count("Nairobi"), 30, 70)
        self.assertEqual(drawn, [task.examples({**ROW, "idx": i}, "train")[0].targets for i in range(100)])
        other_seed = [instructed(seed=1).examples({**ROW, "idx": i}, "train")[0].targets for i in range(100)]
        self.assertNotEqual(drawn, other_seed)
        self.assertEqual(task.examples(ROW, "test")[0].targets, "Nairobi")


class InstructionSourceTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.root = Path(self.enter_context(tempfile.TemporaryDirectory()))
        write_tasks(self.root, ["task1_a", "task2_b", "task3_c", "task4_d"], instances=150)

    def rows(self, split, **changes):
        return load_rows(instructed(**changes), split, data_dir=str(self.root))

    def test_training_takes_random_instances_and_evaluation_the_first_ones(self):
        train = self.rows("train", max_num_instances_per_task=10)
        test = self.rows("test", max_num_instances_per_eval_task=3)
        self.assertEqual([row["task"] for row in train], ["task1_a"] * 10 + ["task2_b"] * 10)
        self.assertEqual([row["input"] for row in test], ["w0", "w1", "w2"] * 2)
        self.assertEqual([row["idx"] for row in train], list(range(20)))
        inputs = [[row["input"] for row in train if row["task"] == name] for name in ("task1_a", "task2_b")]
        self.assertNotEqual(inputs[0], inputs[1])
        self.assertNotEqual(inputs[0], [f"w{i}" for i in range(10)])
        self.assertEqual(train, self.rows("train", max_num_instances_per_task=10))
        self.assertNotEqual(train, self.rows("train", max_num_instances_per_task=10, seed=7))

    def test_what_is_missing_is_named(self):
        (self.root / "tasks" / "task2_b.json").unlink()
        with exits_with(65, r"train_tasks.txt:2: .*task2_b.json \(1 of 2 tasks are missing\)"):
            self.rows("train")
        with exits_with(78, "--task_lists 'defalt'.*did you mean default"):
            self.rows("train", task_lists="defalt")
        with exits_with(78, "DIR/tasks and DIR/splits"):
            load_rows(instructed(), "train", data_dir=str(self.root / "tasks"))
        with exits_with(78, "--data_dir"):
            load_rows(instructed(), "train")

    def test_a_file_that_is_no_task_is_named_and_so_is_an_instance_without_output(self):
        path = self.root / "tasks" / "task1_a.json"
        whole = path.read_text()
        without_input = json.dumps({**json.loads(whole), "Instances": [{"input": 1}]})
        for content in ("{", "[]", '{"Instances": []}', without_input):
            path.write_text(content)
            with exits_with(65, "task1_a.json"):
                self.rows("train")
        path.write_text(whole.replace('["w0", "W 0"]', "[]"))
        with exits_with(65, "task1_a.json: instance 0"):
            self.rows("train")


class InstructionScoresTest(parameterized.TestCase):
    def test_scores_are_tk_instructs(self):
        from rouge_score import rouge_scorer  # slow to import

        draw = random.Random(0)
        words = ["the", "cats", "cat", "running", "runs!", "A", "b.", "Yes", "yes"]

        def sentence():
            return " ".join(draw.choices(words, k=draw.randrange(1, 3)))

        predictions = [sentence() for _ in range(80)]
        references = [[sentence() for _ in range(draw.randrange(1, 4))] for _ in predictions]
        scorer = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=True)

        def plain(text):
            return " ".join("".join(c for c in text.lower() if c not in string.punctuation).split())

        pairs = list(zip(predictions, references))
        rouge = [max(scorer.score(a, p)["rougeL"].fmeasure for a in answers) for p, answers in pairs]
        exact = [max(plain(p) == plain(a) for a in answers) for p, answers in pairs]
        self.assertAlmostEqual(METRICS["instruction_rougeL"](predictions, references), 100 * sum(rouge) / 80)
        self.assertAlmostEqual(METRICS["instruction_exact_match"](predictions, references), 100 * sum(exact) / 80)
        self.assertBetween(sum(exact), 1, 79)

    def test_all_references_count_and_parts_add_up(self):
        task = load_task("super_ni", "english")
        rows = [{**ROW, "idx": i, "task": f"t{i % 2}", "category": "c" if i < 3 else "d"} for i in range(4)]
        predictions = ["nairobi city.", "Nairobi", "Mombasa", "Mombasa"]
        whole = task.score(rows, predictions, "test")
        self.assertEqual(whole["exact_match"], 50.0)
        groups = task.score_groups(task.example_set(rows, "test"), predictions)
        self.assertEqual(list(groups), ["category", "task"])
        self.assertAlmostEqual(groups["category"]["c"]["exact_match"], 200 / 3)
        self.assertEqual(groups["category"]["d"], {"rougeL": 0.0, "exact_match": 0.0, "n": 1})
        for table in groups.values():
            for metric in ("rougeL", "exact_match"):
                self.assertAlmostEqual(sum(part["n"] * part[metric] for part in table.values()) / 4, whole[metric])


class InstructionFlagsTest(parameterized.TestCase):
    def test_given_flags_and_the_seed_go_into_the_entry(self):
        flags = {"num_pos_examples": 1, "task_lists": "subset", "seed": 9, "use_cpu": True, "quiet": True}
        flags |= {"config_overrides": TINY_T5, "from_scratch": True, "data_dir": tempfile.mkdtemp()}
        plan = FineTuner(None, "super_ni/english", max_num_instances_per_task=0, **flags).plan
        expected = {"num_pos_examples": 1, "task_lists": "subset", "max_num_instances_per_task": None, "seed": 9}
        self.assertEqual(plan.evaluate[0].entry["instruction"], {**SETTINGS, **expected})
        self.assertEqual(plan.train[0].entry["instruction"], {**SETTINGS, **expected})
        self.assertEqual(load_task("super_ni", "english").entry["instruction"], SETTINGS)

    @parameterized.parameters(
        ({}, {}, {}),
        ({"num_pos_examples": 0, "seed": 7}, {}, {"num_pos_examples": 0, "seed": 7}),
        ({"num_pos_examples": 0}, {"num_pos_examples": 2, "seed": 3}, {"seed": 3}),
        ({"num_pos_examples": 0}, {"add_task_name": True}, {"num_pos_examples": 0, "add_task_name": True}),
        ({"num_pos_examples": 0}, {"tk_instruct": True}, {"tk_instruct": True}),
        ({"tk_instruct": True}, {}, {"tk_instruct": True}),
        ({"tk_instruct": True}, {"num_neg_examples": 1}, {"num_neg_examples": 1}),
        ({"tk_instruct": True}, {"tk_instruct": False}, {}),
        ({"max_num_instances_per_eval_task": 3, "task_lists": "mine"}, {}, {}),
    )
    def test_a_model_is_scored_with_the_form_of_its_training_where_no_flag_gives_another(
        self, trained, flags, expected
    ):
        model = str(save_model(Path(tempfile.mkdtemp()) / "model", tasks=[instructed(**trained)]))
        flags = {**flags, "use_cpu": True, "quiet": True, "data_dir": tempfile.mkdtemp()}
        scored = FineTuner(model, "super_ni/english", eval_only=True, **flags)
        self.assertEqual(scored.plan.evaluate[0].entry["instruction"], {**SETTINGS, **expected})
        trains = FineTuner(model, "super_ni/english", max_steps=1, **flags)
        usual = {name: value for name, value in flags.items() if name in SETTINGS}
        self.assertEqual(trains.plan.train[0].entry["instruction"], {**SETTINGS, **usual})

    @parameterized.parameters(*SETTINGS)
    def test_a_setting_that_an_entry_lacks_is_named(self, name):
        settings = {other: value for other, value in SETTINGS.items() if other != name}
        entry = {**DATASET_VALS["super_ni"]["english"], "instruction": settings}
        with exits_with(78, f"super_ni/english: instruction: {name} is missing"):
            load_task("super_ni", "english", registry={"super_ni": {"english": entry}})

    def test_more_than_the_official_test_instances_are_refused(self):
        with exits_with(78, "--max_num_instances_per_eval_task 101: must .* 100"):
            fine_tune_t5.main(["--max_num_instances_per_eval_task", "101", "--use_cpu"])

    def test_flags_without_a_task_of_instructions_are_refused(self):
        with exits_with(78, "--num_neg_examples.*mini/sentiment"):
            fine_tune_t5.main(["--num_neg_examples", "1", "--use_cpu"])


class InstructionRunTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_a_run_trains_and_scores_by_category_and_task(self):
        root = Path(self.enter_context(tempfile.TemporaryDirectory()))
        write_tasks(root / "ni", ["task1_a", "task2_b", "task3_c", "task4_d"], instances=6)
        flags = {"max_source_length": 64, "max_target_length": 8, "max_steps": 2, "per_device_train_batch_size": 4}
        flags |= {"max_num_instances_per_eval_task": 2, "num_pos_examples": 1, "output_dir": root / "run"}
        argv = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        task = f"--benchmark super_ni --dataset_name english --data_dir {root / 'ni'} --use_cpu"
        results = fine_tune_t5.main([*task.split(), *argv])
        self.assertEqual(results, json.loads((root / "run" / "results.json").read_text()))
        self.assertEqual(list(results["tasks"]["english"]), ["rougeL", "exact_match"])
        groups = results["groups"]["english"]
        counts = {kind: {name: part["n"] for name, part in table.items()} for kind, table in groups.items()}
        self.assertEqual(counts, {"task": {"task3_c": 2, "task4_d": 2}, "category": {"Copying": 2, "Echo": 2}})
        manifest = json.loads((root / "run" / "manifest.json").read_text())
        self.assertEqual(manifest["tasks"]["english"]["instruction"]["num_pos_examples"], 1)
        self.assertEqual(manifest["data"]["english.train"]["rows"], 12)

    @pytest.mark.slow
    def test_the_subset_of_real_tasks_is_read_whole(self):
        root = shared_data.SHARED_DATA / "super_ni"
        if not root.is_dir():
            self.skipTest(shared_data.MISSING)
        task = instructed(task_lists="subset")
        rows = load_rows(task, "test", data_dir=str(root))
        self.assertLen({row["task"] for row in rows}, 23)
        self.assertEqual(task.score(rows, [row["output"][0] for row in rows], "test")["exact_match"], 100.0)
        self.assertLess(task.score(rows, [row["input"] for row in rows], "test")["rougeL"], 40)


class PreviewTest(parameterized.TestCase):
    def shown(self, *flags):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            run_cli("preview", "--json", *flags)
        return [json.loads(line) for line in out.getvalue().splitlines()]

    def test_other_lists_of_tasks_are_shown(self):
        root = Path(tempfile.mkdtemp())
        write_tasks(root, ["task1_a", "task2_b"])
        write_tasks(root, ["task1_a", "task3_c", "task4_d", "task5_e"], lists="mine")
        flags = ["--benchmark", "super_ni", "--dataset_name", "english", "--data_dir", str(root)]
        for lists, rows in (([], 5), (["--task_lists", "mine"], 10)):  # one test task, two
            self.assertLen(self.shown(*flags, "--limit", "30", *lists), rows)

    def test_where_lists_mean_nothing_they_are_refused(self):
        for task, message in (("super_ni english --rows x.jsonl", "--rows"), ("mini sentiment", "super_ni")):
            benchmark, name, *more = task.split()
            with exits_with(78, message):
                self.shown("--benchmark", benchmark, "--dataset_name", name, "--task_lists", "mine", *more)
