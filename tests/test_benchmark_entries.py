"""Further benchmarks and the examples' task files: texts and scores of made and real rows."""

import collections
import json
import random
import re
import string
import tempfile
from pathlib import Path

import pytest
import rouge_score.rouge_scorer
import sacrebleu
import shared_data
from absl.testing import absltest, parameterized

import fine_tune_t5
from t5suite import DATASET_VALS, load_task
from t5suite.base.errors import DataError
from t5suite.data.rows.sources import DataOptions, load_split
from t5suite.tasks.entries import load_registry, metric_functions, task_figure
from t5suite.tasks.formatters import pad_punctuation
from t5suite.tasks.metrics import METRICS
from t5suite.tasks.registry import Task

TASK_FILES = {n: str(Path(__file__).parents[1] / f"examples/tasks/{n}.yaml") for n in ("hyperpartisan", "discoeval")}
SQUAD_ROWS = "seq2seq/squad/validation.jsonl"
ANSWERS = {"text": ["U.S. troops", "troops"], "answer_start": [0, 5]}


def texts(benchmark, name, row, split="validation"):
    return [tuple(example) for example in load_task(benchmark, name).examples(row, split)]


def official_squad(predictions, answer_lists):
    """The published definition (arXiv:1606.05250, section 6.1) on raw texts, written anew: (exact match, F1)."""

    def plain(text):
        text = "".join(character for character in text.lower() if character not in string.punctuation)
        return re.sub(r"\b(a|an|the)\b", " ", text).split()

    def overlap(prediction, answer):
        counts = collections.Counter(plain(prediction)) & collections.Counter(plain(answer))
        same = sum(counts.values())
        if not same:
            return 0.0
        precision, recall = same / len(plain(prediction)), same / len(plain(answer))
        return 2 * precision * recall / (precision + recall)

    exact = [max(plain(p) == plain(a) for a in answers) for p, answers in zip(predictions, answer_lists)]
    f1 = [max(overlap(p, a) for a in answers) for p, answers in zip(predictions, answer_lists)]
    return 100 * sum(exact) / len(exact), 100 * sum(f1) / len(f1)


def damaged(answers, seed):
    """Answers that are right, cut, lengthened, or of another row."""
    draw = random.Random(seed)
    found = []
    for answer in answers:
        words = answer.split()
        found.append(
            draw.choice([answer, " ".join(words[:-1]), f"the {answer} of it", draw.choice(answers), answer.upper(), ""])
        )
    return found


class OriginalTextTest(parameterized.TestCase):
    def test_squad_has_spaces_around_punctuation_and_single_spaces(self):
        row = {"question": "Who, in  1945?", "context": '"U.S. troops"\n(and 2nd-line).', "answers": ANSWERS}
        expected = 'question: Who , in 1945 ? context: " U . S . troops " ( and 2nd - line ) . '
        self.assertEqual(texts("squad", "squad", row), [(expected, "U . S . troops")])

    @parameterized.parameters(
        ("a_b", "a _ b"), ("24–10", "24–10"), ("Ä(b)", "Ä ( b ) "), ("x\u00a0y", "x\u00a0y"), ("$1.2", " $ 1 . 2")
    )
    def test_ascii_punctuation_alone_is_padded(self, text, padded):
        self.assertEqual(pad_punctuation(text), padded)

    @parameterized.parameters(
        ("cnn_dailymail", {"article": "A. \n B", "highlights": "H ."}, ("summarize: A. \n B", "H .")),
        ("xsum", {"document": "D", "summary": "S", "id": "1"}, ("summarize: D", "S")),
    )
    def test_summaries(self, name, row, expected):
        self.assertEqual(texts("summarization", name, row), [expected])

    @parameterized.parameters(
        ("wmt14_en_de", "de", "translate English to German: Hi."),
        ("wmt14_en_fr", "fr", "translate English to French: Hi."),
        ("wmt16_en_ro", "ro", "translate English to Romanian: Hi."),
    )
    def test_translations(self, name, language, expected):
        row = {"translation": {"en": "Hi.", language: "X."}}
        self.assertEqual(texts("translation", name, row), [(expected, "X.")])
        with self.assertRaisesRegex(DataError, r"translation\.en"):
            texts("translation", name, {"translation": {language: "X."}})


class SquadScoresTest(parameterized.TestCase):
    @parameterized.product(seed=[0], padded=[False, True])
    def test_scores_equal_the_official_definition_in_either_form(self, seed, padded):
        if not shared_data.has(SQUAD_ROWS):
            self.skipTest(shared_data.MISSING)
        rows = shared_data.read_rows(SQUAD_ROWS)[seed::7]
        form = pad_punctuation if padded else str
        answers = [[form(text) for text in row["answers"]["text"]] for row in rows]
        predictions = damaged([of_row[0] for of_row in answers], seed)
        exact, f1 = official_squad(predictions, answers)
        found = load_task("squad", "squad").score(rows, predictions)
        self.assertAlmostEqual(found["exact_match"], exact)
        self.assertAlmostEqual(found["f1"], f1)
        self.assertBetween(exact, 5, 95)

    def test_every_answer_counts_in_both_forms(self):
        task, row = load_task("squad", "squad"), {"question": "q", "context": "c", "answers": ANSWERS}
        for prediction in ("U.S. troops", "U . S . troops", "the troops", "Troops."):
            self.assertEqual(task.score([row], [prediction]), {"f1": 100.0, "exact_match": 100.0}, prediction)


class TextScoresTest(parameterized.TestCase):
    @parameterized.parameters("wmt14_en_de", "wmt14_en_fr", "wmt16_en_ro")
    def test_translations_are_scored_as_sacrebleu_does(self, name):
        language = name[-2:]
        path = f"seq2seq/wmt_newstest2019_en-{language}/test.jsonl"
        if not shared_data.has(path):
            self.skipTest(shared_data.MISSING)
        rows = shared_data.read_rows(path)[:60]
        gold = [row["translation"][language] for row in rows]
        predictions = damaged(gold, 1)
        found = load_task("translation", name).score(rows, predictions)
        bleu = sacrebleu.corpus_bleu(predictions, [gold], tokenize="intl").score
        self.assertAlmostEqual(found["bleu"], bleu)
        self.assertAlmostEqual(found["chrf"], sacrebleu.corpus_chrf(predictions, [gold]).score)
        self.assertBetween(bleu, 5, 95)

    def test_the_geometric_mean_is_of_the_three_means(self):
        predictions, references = ["a cat sat", "dogs run far"], [["the cat sat"], ["dogs run", "a far dog runs"]]
        scorer = rouge_score.rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"])
        product = 1.0
        for key in ("rouge1", "rouge2", "rougeL"):
            best = [
                max(scorer.score(a, p)[key].fmeasure for a in answers) for p, answers in zip(predictions, references)
            ]
            product *= 100 * sum(best) / 2
            self.assertAlmostEqual(METRICS[key](predictions, references), 100 * sum(best) / 2)
        self.assertAlmostEqual(METRICS["rouge_geometric_mean"](predictions, references), product ** (1 / 3))


def scrolls_rows():
    return [
        {"id": "q1", "pid": "q1_0", "input": "Who?\n\nA long story.", "output": "Bob"},
        {"id": "q2", "pid": "q2_0", "input": "Why?\n\nA long story.", "output": "Rain"},
        {"id": "q1", "pid": "q1_1", "input": "Who?\n\nA long story.", "output": "the tall man"},
    ]


class ScrollsTest(parameterized.TestCase):
    def directory(self, name, rows, split="validation"):
        root = self.enter_context(tempfile.TemporaryDirectory())
        folder = Path(root) / "scrolls" / name
        folder.mkdir(parents=True)
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return root

    def test_rows_of_one_question_are_one_scored_row_with_all_answers(self):
        options = DataOptions(data_dir=self.directory("narrative_qa", scrolls_rows()))
        task = load_task("scrolls", "narrative_qa")
        rows = load_split(task, "validation", "validation", options).rows.to_list()
        self.assertEqual(
            [(row["id"], row["output"]) for row in rows], [("q1", ["Bob", "the tall man"]), ("q2", ["Rain"])]
        )
        self.assertEqual(list(rows[0]), ["id", "pid", "input", "output"])
        self.assertEqual(task.score(rows, ["tall man", "snow"]), {"f1": 50.0})

    def test_hidden_answers_stay_hidden(self):
        rows = [{**row, "output": None} for row in scrolls_rows()]
        options = DataOptions(data_dir=self.directory("quality", rows, "test"))
        task = load_task("scrolls", "quality")
        loaded = load_split(task, "test", "test", options).rows.to_list()
        self.assertEqual([row["output"] for row in loaded], [None, None])
        self.assertEqual(task.score(loaded, ["a", "b"], "test"), {})


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

    def test_discoeval_reads_labels_as_ids_digits_and_names(self):
        tasks = load_registry(TASK_FILES["discoeval"])["discoeval"]
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

    def test_digits_are_no_label_where_words_are_numbers(self):
        entry = {**DATASET_VALS["glue"]["rte"], "labels": ["2", "3"]}
        row = {"sentence1": "a", "sentence2": "b"}
        self.assertEqual(Task("mine", "x", entry).examples({**row, "label": "3"})[0].targets, "3")
        with self.assertRaisesRegex(DataError, "'1'"):
            Task("mine", "x", entry).examples({**row, "label": "1"})


RUN_ROWS = {
    ("squad", "squad"): lambda i: {"question": f"Who {i}?", "context": f"Ann {i}.", "answers": {"text": [f"Ann {i}"]}},
    ("summarization", "cnn_dailymail"): lambda i: {"article": f"It rains {i}.", "highlights": "Rain ."},
    ("translation", "wmt16_en_ro"): lambda i: {"translation": {"en": f"Hi {i}", "ro": f"Salut {i}"}},
    ("scrolls", "narrative_qa"): lambda i: {
        "id": f"q{i // 2}",
        "pid": f"q{i}",
        "input": f"Who {i // 2}?",
        "output": f"A{i}",
    },
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
        self.assertContainsSubset(
            metric_functions(load_task(benchmark, name, TASK_FILES.get(benchmark)).entry), results["tasks"][name]
        )
        (predictions,) = (folder / "run" / "predictions").iterdir()
        self.assertLen(predictions.read_text().splitlines(), 4 if benchmark == "scrolls" else 8)


class FiguresTest(parameterized.TestCase):
    SUMMARY = {"rouge1": 30.0, "rouge2": 9.0, "rougeL": 21.0, "rouge_geometric_mean": 17.8}

    @parameterized.parameters(
        ("scrolls", "gov_report", SUMMARY, 17.8),
        ("summarization", "xsum", {"rouge1": 30.0, "rouge2": 9.0, "rougeLsum": 21.0}, 20.0),
        ("translation", "wmt14_en_de", {"bleu": 20.0, "chrf": 50.0}, 20.0),
        ("squad", "squad", {"f1": 80.0, "exact_match": 70.0}, 75.0),
    )
    def test_a_finished_run_counts_with_the_metric_that_selects(self, benchmark, name, scores, figure):
        self.assertAlmostEqual(task_figure(scores, DATASET_VALS[benchmark][name]), figure)
        self.assertAlmostEqual(load_task(benchmark, name).optimised(scores), figure)


if __name__ == "__main__":
    absltest.main()
