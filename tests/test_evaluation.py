"""Label scoring equals brute force; generation stops where it should; averages and selection count every task once."""

import itertools
import math
import tempfile

import datasets
import law_worker
import torch
from absl.testing import absltest, parameterized
from transformers import AutoModelForSeq2SeqLM, set_seed

from t5suite.base.errors import ConfigError
from t5suite.data.rows.sources import DataOptions, load_split
from t5suite.models.loading import BUNDLED_MODEL, load_model, load_tokenizer
from t5suite.reports.finishing import build_results
from t5suite.tasks.registry import Lengths, decode_ids, load_task
from t5suite.training.eval_sets import (
    EvalSet,
    Report,
    Result,
    choose_method,
    make_eval_set,
    report_metrics,
    selection_value,
    task_values,
)
from t5suite.training.evaluation import batches_by_length
from t5suite.training.fine_tuning import make_collator, make_evaluator

LENGTHS = Lengths(128, 32)
RECORD_ROWS = [
    {
        "query": "@placeholder was good.",
        "entities": entities,
        "passage": "The food was good.\n@highlight\nThe man was old",
        "answers": [entities[-1]],
        "idx": {"passage": i, "query": i},
    }
    for i, entities in enumerate((["The food", "The man"], ["A", "B", "The man", "food"], ["The old man"]))
]
DPR_ROWS = [
    {"sentence": "Bees sting as they fly.", "pronoun": "they", "candidates": ["Bees", "The people"], "label": 0},
    {"sentence": "Men run as they talk.", "pronoun": "they", "candidates": ["The men", "Dogs"], "label": 1},
]


def bundled_rows(benchmark, name, count=9):
    return load_split(load_task(benchmark, name), "validation", "validation", DataOptions()).rows.select(range(count))


def evaluator_and_model(batch_size=4):
    trainer = law_worker.make_trainer(8, 1)
    evaluator = make_evaluator(
        make_collator(trainer.model), trainer.processing_class, trainer.args, trainer.accelerator, False
    )
    evaluator.batch_size = batch_size
    return evaluator, trainer.model.eval(), trainer.processing_class


def brute_force_choice(model, tokenizer, inputs, candidates):
    """One forward a candidate: the sum of its tokens' log-probabilities, end-of-sequence included."""
    input_ids = torch.tensor([tokenizer(inputs, max_length=LENGTHS.source, truncation=True)["input_ids"]])
    scores = []
    for candidate in candidates:
        labels = torch.tensor([tokenizer(candidate)["input_ids"]])
        start = torch.full((1, 1), model.config.decoder_start_token_id)
        decoder_input_ids = torch.cat([start, labels[:, :-1]], dim=1)
        with torch.no_grad():
            log_p = model(input_ids=input_ids, decoder_input_ids=decoder_input_ids).logits.log_softmax(-1)
        scores.append(sum(float(log_p[0, t, token]) for t, token in enumerate(labels[0])))
    return candidates[max(range(len(scores)), key=lambda i: scores[i])]


class ScoringTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("labels", "mini", "entailment", None),
        ("numbers", "mini", "similarity", None),
        ("entities", "super_glue", "record", RECORD_ROWS),
        ("two_candidates", "super_glue", "dpr", DPR_ROWS),
    )
    def test_scoring_candidates_equals_one_forward_a_candidate(self, benchmark, name, rows):
        task = load_task(benchmark, name)
        dataset = datasets.Dataset.from_list(rows) if rows else bundled_rows(benchmark, name)
        evaluator, model, tokenizer = evaluator_and_model()
        eval_set = make_eval_set(name, task, "validation", "validation", dataset, tokenizer, LENGTHS, "score")
        result = evaluator.evaluate(model, [eval_set]).results[name]
        expected = [
            brute_force_choice(model, tokenizer, example.inputs, task.candidates(row))
            for row in dataset
            for example in task.examples(row)
        ]
        self.assertEqual(result.predictions, expected)
        self.assertGreater(len(set(expected)), 1)

    def test_of_equal_candidates_the_first_is_chosen(self):
        rows = [{**DPR_ROWS[0], "candidates": ["Bees", "Bees"]}, DPR_ROWS[1]]
        evaluator, model, tokenizer = evaluator_and_model()
        task = load_task("super_glue", "dpr")
        eval_set = make_eval_set(
            "dpr", task, "validation", "validation", datasets.Dataset.from_list(rows), tokenizer, LENGTHS, "score"
        )
        eval_set.candidates.texts[0] = ["first", "second"]  # same ids, other names
        self.assertEqual(evaluator.evaluate(model, [eval_set]).results["dpr"].predictions[0], "first")

    @parameterized.parameters(("super_glue", "wsc"), ("super_glue", "wsc.fixed"), ("glue", "wnli_simple"))
    def test_a_task_without_candidates_is_refused_alone_and_generates_in_a_mixture(self, benchmark, name):
        task = load_task(benchmark, name)
        with self.assertRaisesRegex(ConfigError, "has no candidates"):
            choose_method("score", task, alone=True)
        self.assertEqual(choose_method("score", task, alone=False), "generate")


class GenerationTest(parameterized.TestCase):
    def test_the_longest_target_bounds_the_length_and_what_is_cut_off_is_counted(self):
        task = load_task("mini", "entailment")
        evaluator, model, tokenizer = evaluator_and_model()
        eval_set = make_eval_set(
            "entailment", task, "validation", "validation", bundled_rows("mini", "entailment"), tokenizer, LENGTHS
        )
        longest = max(len(tokenizer(word)["input_ids"]) for word in task.label_words)
        self.assertEqual(eval_set.max_target_tokens, longest)
        result = evaluator.evaluate(model, [eval_set]).results["entailment"]
        self.assertEqual(result.truncated, 9)  # random weights never end a sequence
        for text in result.predictions:
            self.assertLessEqual(len(tokenizer(text, add_special_tokens=False)["input_ids"]), 2 * longest)

    def test_beams_are_searched_where_asked(self):
        evaluator, model, tokenizer = evaluator_and_model()
        task = load_task("mini", "entailment")
        eval_set = make_eval_set(
            "entailment", task, "validation", "validation", bundled_rows("mini", "entailment"), tokenizer, LENGTHS
        )
        greedy = evaluator.evaluate(model, [eval_set]).results["entailment"].predictions
        evaluator.decoding.num_beams, evaluator.decoding.max_length = 4, 6
        beams = evaluator.evaluate(model, [eval_set]).results["entailment"].predictions
        self.assertNotEqual(greedy, beams)

    def test_decoding_stops_at_the_end_and_hides_nothing_else(self):
        tokenizer = load_tokenizer(None)
        word = tokenizer("positive", add_special_tokens=False)["input_ids"]
        sentinel = tokenizer.convert_tokens_to_ids("<extra_id_0>")
        decoded = decode_ids([[0, *word, 1, -100, -100], [*word, 1, *word], [sentinel, *word, 1], [-100, 1]], tokenizer)
        self.assertEqual(decoded[:2], ["positive", "positive"])
        self.assertNotEqual(decoded[2], "positive")
        self.assertEqual(decoded[3], "")

    def test_every_example_is_in_one_batch_longest_first(self):
        lengths = [3, 9, 5, 9, 1]
        batches = batches_by_length(lengths, 2)
        self.assertEqual(sorted(itertools.chain(*batches)), list(range(5)))
        self.assertEqual([lengths[i] for i in itertools.chain(*batches)], sorted(lengths, reverse=True))

    def test_the_loss_is_nats_per_target_token_without_dropout(self):
        """Of a model in the middle of training, which it then goes on with."""
        evaluator, model, tokenizer = evaluator_and_model(batch_size=2)
        dropouts = [module for module in model.modules() if isinstance(module, torch.nn.Dropout)]
        self.assertNotEmpty(dropouts)
        for dropout in dropouts:
            dropout.p = 0.5
        task = load_task("mini", "similarity")
        eval_set = make_eval_set(
            "s", task, "validation", "validation", bundled_rows("mini", "similarity", 5), tokenizer, LENGTHS
        )
        total, tokens = 0.0, 0
        for i in range(5):
            labels = torch.tensor(eval_set.features[i]["labels"].tolist())[None]
            with torch.no_grad():
                out = model(input_ids=torch.tensor(eval_set.features[i]["input_ids"].tolist())[None], labels=labels)
            total, tokens = total + float(out.loss) * labels.numel(), tokens + labels.numel()
        model.train()
        self.assertAlmostEqual(evaluator.evaluate(model, [eval_set]).results["s"].loss, total / tokens, places=5)
        self.assertTrue(model.training)


# A model's scores on GLUE: the tasks' own numbers are 50, 90, 86, 80, 80, 80, 70 and 64, whose mean is 75.
GLUE_SCORES = {
    "cola": {"matthews_correlation": 50.0},
    "sst2": {"accuracy": 90.0},
    "mrpc": {"f1": 88.0, "accuracy": 84.0},
    "stsb": {"pearson": 70.0, "spearman": 90.0},
    "qqp": {"f1": 70.0, "accuracy": 90.0},
    "mnli_matched": {"accuracy": 60.0},
    "mnli_mismatched": {"accuracy": 100.0},
    "qnli": {"accuracy": 70.0},
    "rte": {"accuracy": 64.0},
}
EIGHT = ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"]


def told(scores, losses=None):
    """`(eval sets, results)` of splits with these scores."""
    sets, results = [], {}
    for name, metrics in scores.items():
        task, role = load_task("glue", name.split("_")[0].split(".")[0]), "test" if ".test" in name else "validation"
        sets.append(EvalSet(name, task, role, role, [], [], [], None, None))
        loss = (losses or {}).get(name)
        results[name] = Result(name, {**metrics, "invalid_rate": 1.0}, [], 0, 0.0, loss, 0, "generate", [], True)
    return sets, results


class AverageTest(parameterized.TestCase):
    def averages(self, scores, published=True):
        sets, results = told(scores)
        return build_results(Report(results, 0.0, {}), "glue", EIGHT, sets, published)["averages"]

    def test_the_glue_average_is_the_mean_over_eight_tasks_each_counting_once(self):
        self.assertEqual(self.averages(GLUE_SCORES), {"glue": 75.0})
        self.assertEqual(self.averages({**GLUE_SCORES, "rte.test": {"accuracy": 0.0}}), {"glue": 75.0})
        self.assertEqual(self.averages(GLUE_SCORES, published=False), {"average": 75.0})

    @parameterized.parameters(("rte", 536 / 7), ("mnli_matched", 520 / 7), ("mnli_mismatched", 520 / 7))
    def test_an_average_that_lacks_a_task_or_a_half_does_not_bear_the_published_name(self, missing, mean):
        scores = {name: metrics for name, metrics in GLUE_SCORES.items() if name != missing}
        ((name, value),) = self.averages(scores).items()
        self.assertEqual(name, "glue (7 of 8 tasks)")
        self.assertAlmostEqual(value, mean)

    def test_mnli_with_60_and_100_points_selects_and_is_logged_with_80(self):
        """Of real answers: labels are such that 3 of 5 are right in one half, and all in the other."""
        evaluator, model, tokenizer = evaluator_and_model()
        task = load_task("glue", "mnli")
        texts = [
            {"premise": f"It was {word}.", "hypothesis": f"It is {word}."} for word in ("a", "bad", "so", "of", "e")
        ]

        def report(labels):
            sets = [
                make_eval_set(
                    f"mnli_{half}", task, "validation", f"validation_{half}",
                    datasets.Dataset.from_list([{**row, "label": i} for row, i in zip(texts, labels[half])]),
                    tokenizer, LENGTHS, "score",
                )
                for half in ("matched", "mismatched")
            ]  # fmt: skip
            return evaluator.evaluate(model, sets)

        answers = report({"matched": [0] * 5, "mismatched": [0] * 5}).results["mnli_matched"].predictions
        right = [["entailment", "neutral", "contradiction"].index(answer) for answer in answers]
        wrong = [(i + 1) % 3 for i in right]
        found = report({"matched": [*right[:3], *wrong[3:]], "mismatched": right})
        self.assertEqual((found.selection, found.by_task), (80.0, {"mnli": 80.0}))
        logged = report_metrics(found)
        self.assertEqual((logged["eval/accuracy"], logged["eval/average"]), (80.0, 80.0))
        self.assertEqual(logged["eval/mnli_matched/accuracy"], 60.0)
        self.assertEqual(logged["eval/mnli_mismatched/accuracy"], 100.0)

    @parameterized.parameters(None, "loss")
    def test_a_value_that_is_nan_is_selected_after_every_other(self, metric):
        """Highest score first, or lowest loss."""
        values = [math.nan, -100.0, 100.0] if metric is None else [math.nan, 1e9, 0.0]
        chosen = []
        for value in values:
            sets, results = told({"cola": {"matthews_correlation": value}}, {"cola": value})
            chosen.append(selection_value(task_values(sets, results, metric)["cola"]))
        self.assertEqual(chosen, sorted(chosen))
        self.assertLess(chosen[0], chosen[1])


class ModelsTest(parameterized.TestCase):
    def test_a_bfloat16_checkpoint_is_trained_in_float32(self):
        folder = tempfile.mkdtemp()
        tokenizer = load_tokenizer(None)
        set_seed(0)
        model = load_model(tokenizer=tokenizer).to(torch.bfloat16)
        model.save_pretrained(folder)
        self.assertEqual(AutoModelForSeq2SeqLM.from_pretrained(folder, dtype="auto").dtype, torch.bfloat16)
        self.assertEqual(load_model(folder, tokenizer=tokenizer).dtype, torch.float32)

    def test_the_vocabulary_of_new_weights_fits_the_tokenizer(self):
        tokenizer = load_tokenizer(None)
        tokenizer.add_tokens([f"extra{i}" for i in range(300)])
        model = load_model(tokenizer=tokenizer)
        self.assertGreaterEqual(model.config.vocab_size, len(tokenizer))
        self.assertEqual(model.config.vocab_size % 128, 0)

    def test_a_tokenizer_too_large_for_the_model_is_refused(self):
        folder = tempfile.mkdtemp()
        tokenizer = load_tokenizer(None)
        load_model(tokenizer=tokenizer).save_pretrained(folder)
        tokenizer.add_tokens([f"extra{i}" for i in range(300)])
        with self.assertRaisesRegex(ConfigError, r"the model has \d+ embeddings, but the tokenizer has \d+ pieces"):
            load_model(folder, tokenizer=tokenizer)

    def test_a_folder_without_weights_is_told(self):
        with self.assertRaisesRegex(ConfigError, "holds no weights.*--from_scratch"):
            load_model(BUNDLED_MODEL, tokenizer=load_tokenizer(None))


if __name__ == "__main__":
    absltest.main()
