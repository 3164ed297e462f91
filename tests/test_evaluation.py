"""Evaluation: every row once, by every method, batch and number of ranks; the quick ways answer as the plain ones."""

import functools
import itertools
import math
import tempfile
from unittest import mock

import datasets
import law_worker
import numpy as np
import pytest
import torch
import transformers
from absl.testing import parameterized

from t5suite import load_task
from t5suite.base.reference_code import reference_code
from t5suite.data.batches.collators import Seq2SeqCollator
from t5suite.data.batches.encodings import TextEncoding
from t5suite.data.rows.sources import DataOptions, load_split
from t5suite.models.answering import Seq2SeqAnswerer, writes_plainly
from t5suite.models.loading import load_model
from t5suite.models.t5_decoder import takes_apart
from t5suite.reports.finishing import build_results
from t5suite.tasks.registry import Lengths, decode_ids
from t5suite.testing import bundled_model, exits_with, tiny_tokenizer
from t5suite.training import eval_sets
from t5suite.training.evaluation import batches_by_tokens
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


def mini_set(name, tokenizer, count=9):
    """`(task, eval set)` of rows of `mini`, to be answered by generation."""
    task, encoding = load_task("mini", name), TextEncoding(tokenizer, LENGTHS)
    return task, eval_sets.make_eval_set(name, task, "validation", bundled_rows("mini", name, count), encoding)


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
        ("entities", "super_glue", "record", RECORD_ROWS),
        ("two_candidates", "super_glue", "dpr", DPR_ROWS),
    )
    def test_scoring_candidates_equals_one_forward_a_candidate(self, benchmark, name, rows):
        self.check(benchmark, name, rows)

    def check(self, benchmark, name, rows, count=4):
        task = load_task(benchmark, name)
        dataset = datasets.Dataset.from_list(rows) if rows else bundled_rows(benchmark, name, count)
        evaluator, model, tokenizer = evaluator_and_model()
        eval_set = eval_sets.make_eval_set(name, task, "validation", dataset, TextEncoding(tokenizer, LENGTHS), "score")
        result = evaluator.evaluate(model, [eval_set]).results[name]
        expected = [
            brute_force_choice(model, tokenizer, example.inputs, task.candidates(row))
            for row in dataset
            for example in task.examples(row)
        ]
        self.assertEqual(result.predictions, expected)
        self.assertGreater(len(set(expected)), 1)

    @pytest.mark.slow
    def test_scoring_numbers_equals_one_forward_a_number(self):
        self.check("mini", "similarity", None, count=12)

    def test_of_equal_candidates_the_first_is_chosen(self):
        rows = [{**DPR_ROWS[0], "candidates": ["Bees", "Bees"]}, DPR_ROWS[1]]
        evaluator, model, tokenizer = evaluator_and_model()
        task = load_task("super_glue", "dpr")
        eval_set = eval_sets.make_eval_set(
            "dpr", task, "validation", datasets.Dataset.from_list(rows), TextEncoding(tokenizer, LENGTHS), "score"
        )
        eval_set.candidates[0] = (["first", "second"], eval_set.candidates[0][1])  # same ids, other names
        self.assertEqual(evaluator.evaluate(model, [eval_set]).results["dpr"].predictions[0], "first")

    @parameterized.parameters(("super_glue", "wsc"), ("super_glue", "wsc.fixed"), ("glue", "wnli_simple"))
    def test_a_task_without_candidates_is_refused_alone_and_generates_in_a_mixture(self, benchmark, name):
        task = load_task(benchmark, name)
        with exits_with(78, "has no candidates"):
            eval_sets.method_for(TextEncoding(None, LENGTHS), "score", task, alone=True)
        self.assertEqual(eval_sets.method_for(TextEncoding(None, LENGTHS), "score", task, alone=False), "generate")


class GenerationTest(parameterized.TestCase):
    def test_the_longest_target_bounds_the_length_and_what_is_cut_off_is_counted(self):
        task = load_task("mini", "entailment")
        evaluator, model, tokenizer = evaluator_and_model()
        eval_set = eval_sets.make_eval_set(
            "entailment", task, "validation", bundled_rows("mini", "entailment"), TextEncoding(tokenizer, LENGTHS)
        )
        longest = max(len(tokenizer(word)["input_ids"]) for word in task.label_words)
        self.assertEqual(eval_set.max_target_tokens, longest)
        result = evaluator.evaluate(model, [eval_set]).results["entailment"]
        self.assertEqual(result.truncated, 9)  # random weights never end a sequence
        for text in result.predictions:
            self.assertLessEqual(len(tokenizer(text, add_special_tokens=False)["input_ids"]), 2 * longest)

    def test_beams_are_searched_where_asked(self):
        evaluator, model, tokenizer = evaluator_and_model()
        task, eval_set = mini_set("entailment", tokenizer)
        greedy = evaluator.evaluate(model, [eval_set]).results["entailment"].predictions
        evaluator.decoding.num_beams, evaluator.decoding.max_length = 4, 6
        beams = evaluator.evaluate(model, [eval_set]).results["entailment"].predictions
        self.assertNotEqual(greedy, beams)

    def test_decoding_stops_at_the_end_and_hides_nothing_else(self):
        tokenizer = tiny_tokenizer()
        word = tokenizer("positive", add_special_tokens=False)["input_ids"]
        sentinel = tokenizer.convert_tokens_to_ids("<extra_id_0>")
        decoded = decode_ids([[0, *word, 1, -100, -100], [*word, 1, *word], [sentinel, *word, 1], [-100, 1]], tokenizer)
        self.assertEqual(decoded[:2], ["positive", "positive"])
        self.assertNotEqual(decoded[2], "positive")
        self.assertEqual(decoded[3], "")

    def test_the_loss_is_nats_per_target_token_without_dropout(self):
        """Of a model in the middle of training, which it then goes on with."""
        evaluator, model, tokenizer = evaluator_and_model(batch_size=2)
        dropouts = [module for module in model.modules() if isinstance(module, torch.nn.Dropout)]
        self.assertNotEmpty(dropouts)
        for dropout in dropouts:
            dropout.p = 0.5
        task, eval_set = mini_set("similarity", tokenizer, 5)
        total, tokens = 0.0, 0
        for i in range(5):
            labels = torch.tensor(eval_set.features[i]["labels"].tolist())[None]
            with torch.no_grad():
                out = model(input_ids=torch.tensor(eval_set.features[i]["input_ids"].tolist())[None], labels=labels)
            total, tokens = total + float(out.loss) * labels.numel(), tokens + labels.numel()
        model.train()
        self.assertAlmostEqual(
            evaluator.evaluate(model, [eval_set]).results["similarity"].loss, total / tokens, places=5
        )
        self.assertTrue(model.training)


# A model's scores on GLUE: the tasks' own numbers are 50, 90, 86, 80, 80, 80, 70 and 64, whose mean is 75.
GLUE_SCORES = {
    "cola": {"matthews_correlation": 50.0}, "sst2": {"accuracy": 90.0}, "mrpc": {"f1": 88.0, "accuracy": 84.0},
    "stsb": {"pearson": 70.0, "spearman": 90.0}, "qqp": {"f1": 70.0, "accuracy": 90.0},
    "mnli_matched": {"accuracy": 60.0}, "mnli_mismatched": {"accuracy": 100.0}, "qnli": {"accuracy": 70.0},
    "rte": {"accuracy": 64.0},
}  # fmt: skip
EIGHT = ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"]


def told(scores, losses=None):
    """`(eval sets, results)` of splits with these scores."""
    sets, results = [], {}
    for name, metrics in scores.items():
        task, role = load_task("glue", name.split("_")[0].split(".")[0]), "test" if ".test" in name else "validation"
        sets.append(eval_sets.EvalSet(name, task, role, role, [], [], [], None, None, None, "score", 1))
        loss = (losses or {}).get(name)
        results[name] = eval_sets.Result(
            name, {**metrics, "invalid_rate": 1.0}, [], 0, 0.0, loss, 0, "generate", [], True
        )
    return sets, results


class AverageTest(parameterized.TestCase):
    def averages(self, scores, published=True):
        sets, results = told(scores)
        return build_results(eval_sets.Report(results, 0.0, {}), "glue", EIGHT, sets, published)["averages"]

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
                eval_sets.make_eval_set(
                    f"mnli_{half}", task, "validation",
                    datasets.Dataset.from_list([{**row, "label": i} for row, i in zip(texts, labels[half])]),
                    TextEncoding(tokenizer, LENGTHS), "score",
                )
                for half in ("matched", "mismatched")
            ]  # fmt: skip
            return evaluator.evaluate(model, sets)

        answers = report({"matched": [0] * 5, "mismatched": [0] * 5}).results["mnli_matched"].predictions
        right = [["entailment", "neutral", "contradiction"].index(answer) for answer in answers]
        wrong = [(i + 1) % 3 for i in right]
        found = report({"matched": [*right[:3], *wrong[3:]], "mismatched": right})
        self.assertEqual((found.selection, found.by_task), (80.0, {"mnli": 80.0}))
        logged = eval_sets.report_metrics(found)
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
            chosen.append(eval_sets.selection_value(eval_sets.report_of(sets, results, metric).by_task["cola"]))
        self.assertEqual(chosen, sorted(chosen))
        self.assertLess(chosen[0], chosen[1])


class ModelsTest(parameterized.TestCase):
    def test_a_bfloat16_checkpoint_is_trained_in_float32(self):
        folder = tempfile.mkdtemp()
        tokenizer = tiny_tokenizer()
        transformers.set_seed(0)
        model = load_model(tokenizer=tokenizer).to(torch.bfloat16)
        model.save_pretrained(folder)
        self.assertEqual(transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype="auto").dtype, torch.bfloat16)
        self.assertEqual(load_model(folder, tokenizer=tokenizer).dtype, torch.float32)

    def test_a_folder_without_weights_is_told(self):
        with exits_with(78, "holds no weights.*--from_scratch"):
            load_model(bundled_model(), tokenizer=tiny_tokenizer())


# One begins another, two are equal, one has no tokens in common with the rest, one is longer than all.
CANDIDATES = [[3, 7, 8, 1], [3, 9, 1], [4, 1], [3, 7, 1], [3, 9, 1], [5, 5, 5, 5, 5, 5, 5, 5, 1]]
LENGTHS_OF_ROWS = (30, 17, 29, 4, 1)
# How large the end of sequence is written, so that rows end at different lengths.
END_WEIGHTS = {"t5": 6.0, "mt5": 12.0, "umt5": 2.0}
TYPES = tuple(itertools.product(("t5", "mt5", "umt5"), (True, False)))


@functools.cache
def tiny(model_type="t5", tied=True, dtype=torch.float64):
    """A T5 whose attention is far from uniform, so that a wrong distance or mask shows."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        model_type, vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=3, num_heads=4, decoder_start_token_id=0
    )
    model = transformers.AutoModelForSeq2SeqLM.from_config(config).eval().to(dtype)
    model.config.tie_word_embeddings = tied
    if model_type == "t5":
        model.config.scale_decoder_outputs = tied
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(2.0 if ".q." in name or "relative" in name else 1.0)
        model.lm_head.weight[1] *= END_WEIGHTS[model_type]
    return model


def reading(model, quick=True, trees=True, labels=None):
    """Rows of differing lengths, one a single token."""
    rng = np.random.default_rng(0)
    answerer = Seq2SeqAnswerer(model, tiny_tokenizer(), Seq2SeqCollator(0, 0), "cpu")
    answerer.reference = frozenset(
        name for name, taken in (("quick_decoding", quick), ("candidate_trees", trees)) if not taken
    )
    labels = labels or [[3, 9, 1]] * len(LENGTHS_OF_ROWS)
    return answerer.read(
        [
            {"input_ids": rng.integers(2, 60, length), "labels": label}
            for length, label in zip(LENGTHS_OF_ROWS, labels, strict=True)
        ]
    )


def greedy(most=12, **settings):
    return transformers.GenerationConfig(
        max_new_tokens=most, num_beams=1, do_sample=False, eos_token_id=1, pad_token_id=0, decoder_start_token_id=0,
        **settings,
    )  # fmt: skip


def written(answers):
    """Ids up to the first end of sequence."""
    ids = [of_row[0][0] for of_row in answers]
    return [row[: row.index(1) + 1] if 1 in row else row for row in ids]


def generates(model):
    return mock.patch.object(type(model), "generate", autospec=True, side_effect=type(model).generate)


class TreeScoresTest(parameterized.TestCase):
    @parameterized.parameters(*TYPES)
    @torch.no_grad()
    def test_scores_equal_those_of_candidates_one_by_one(self, model_type, tied):
        model = tiny(model_type, tied)
        found = reading(model).candidate_scores([CANDIDATES] * 5)
        expected = reading(model, trees=False).candidate_scores([CANDIDATES] * 5)
        np.testing.assert_allclose(found, expected, rtol=1e-6)  # logits are taken to float32
        self.assertGreater(np.ptp(np.array(found), axis=0).min(), 1e-3)  # rows differ, so that they cannot be mixed up


class GreedyTest(parameterized.TestCase):
    @parameterized.product(kind=TYPES, most=(1, 4, 40))
    @torch.no_grad()
    def test_it_writes_what_generate_writes(self, kind, most):
        model = tiny(*kind)
        with generates(model) as generate:
            found = reading(model).generate(greedy(most))
            self.assertFalse(generate.called)
            expected = reading(model, quick=False).generate(greedy(most))
            self.assertTrue(generate.called)
        self.assertEqual(written(found), written(expected))
        self.assertEqual([ids for [(ids, _)] in found], written(found))  # nothing behind the end

    @parameterized.parameters(
        {"num_beams": 2}, {"repetition_penalty": 1.3}, {"min_length": 3}, {"no_repeat_ngram_size": 2},
        {"forced_eos_token_id": 1}, {"suppress_tokens": [5]}, {"eos_token_id": 2}, {"num_return_sequences": 2},
        {"bad_words_ids": [[5]]}, {"max_new_tokens": None}, {"output_scores": True},
    )  # fmt: skip
    def test_what_is_not_plainly_greedy_is_left_to_generate(self, **settings):
        model = tiny()
        self.assertTrue(writes_plainly(model, greedy(), 1, 0))
        config = greedy()
        for name, value in settings.items():
            setattr(config, name, value)
        self.assertFalse(writes_plainly(model, config, 1, 0))
        theirs = transformers.GenerationConfig(eos_token_id=1)
        for name, value in settings.items():
            setattr(theirs, name, value)
        with mock.patch.object(model, "generation_config", theirs):
            idle = {"num_beams", "eos_token_id", "max_new_tokens"}  # the call says these
            self.assertEqual(writes_plainly(model, greedy(), 1, 0), settings.keys() <= idle)


class WhichModelsTest(parameterized.TestCase):
    def test_other_models_keep_to_their_own_forward(self):
        bart = transformers.BartForConditionalGeneration(
            transformers.BartConfig(
                vocab_size=20, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                decoder_attention_heads=2,
            )
        )  # fmt: skip
        self.assertFalse(takes_apart(bart))
        self.assertTrue(takes_apart(tiny()))
        self.assertFalse(takes_apart(tiny(dtype=torch.float16)))


class EvaluatorTest(parameterized.TestCase):
    @parameterized.product(
        case=(
            ("mini", "entailment", None),
            ("mini", "similarity", None),
            ("super_glue", "record", RECORD_ROWS),
            ("super_glue", "dpr", DPR_ROWS),
        ),
        method=("generate", "score"),
    )
    def test_reports_are_equal(self, case, method):
        benchmark, name, rows = case
        task = load_task(benchmark, name)
        dataset = datasets.Dataset.from_list(rows) if rows else bundled_rows(benchmark, name)
        evaluator, model, tokenizer = evaluator_and_model()
        eval_set = eval_sets.make_eval_set(name, task, "validation", dataset, TextEncoding(tokenizer, LENGTHS), method)
        results = []
        for quick, tokens in ((True, 100), (True, None), (False, None)):
            evaluator.decoding.reference = frozenset() if quick else reference_code("all")
            evaluator.decoding.batch_tokens = tokens
            results.append(evaluator.evaluate(model, [eval_set]).results[name])
        for result in results[:2]:
            self.assertEqual(result.predictions, results[2].predictions)
            np.testing.assert_equal(result.metrics, results[2].metrics)  # NaN is not equal to itself
            self.assertAlmostEqual(result.loss, results[2].loss, places=5)
            self.assertEqual(result.truncated, results[2].truncated)

    def test_no_loss_is_worked_out_that_nobody_wants(self):
        evaluator, model, tokenizer = evaluator_and_model()
        task, eval_set = mini_set("entailment", tokenizer)
        evaluator.decoding.loss = False
        with mock.patch.object(model, "forward", wraps=model.forward) as forward:
            self.assertIsNone(evaluator.evaluate(model, [eval_set]).results["entailment"].loss)
        self.assertFalse(forward.called)
        report = evaluator.evaluate(model, [eval_set], selection_metric="loss")
        self.assertEqual(report.selection, -report.results["entailment"].loss)

    @parameterized.parameters(1, 10, 57, 10**6)
    def test_batches_by_tokens_have_every_example_once(self, most):
        lengths = np.random.default_rng(0).integers(1, 60, 40)
        batches = batches_by_tokens(lengths, most)
        self.assertEqual(sorted(itertools.chain(*batches)), list(range(40)))
        flat = [lengths[i] for i in itertools.chain(*batches)]
        self.assertEqual(flat, sorted(lengths, reverse=True))
        for batch in batches:
            self.assertTrue(len(batch) == 1 or len(batch) * lengths[batch].max() <= most)
