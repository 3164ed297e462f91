"""Label scoring equals brute force; generation stops where it should; any encoder-decoder family works."""

import itertools
import math
import tempfile

import datasets
import law_worker
import torch
from absl.testing import absltest, parameterized
from transformers import AutoModelForSeq2SeqLM, BartConfig, set_seed

import fine_tune_t5
from t5suite.data.sources import DataOptions, load_split
from t5suite.errors import ConfigError
from t5suite.models.loading import BUNDLED_MODEL, load_model, load_tokenizer
from t5suite.tasks.registry import Lengths, decode_ids, load_task
from t5suite.training.eval_batches import batches_by_length
from t5suite.training.eval_sets import choose_method, make_eval_set
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

    def test_the_loss_is_nats_per_target_token(self):
        evaluator, model, tokenizer = evaluator_and_model(batch_size=2)
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
        self.assertAlmostEqual(evaluator.evaluate(model, [eval_set]).results["s"].loss, total / tokens, places=5)


class ModelsTest(parameterized.TestCase):
    def test_a_bfloat16_checkpoint_is_trained_in_float32(self):
        folder = tempfile.mkdtemp()
        tokenizer = load_tokenizer(None)
        set_seed(0)
        model = load_model(tokenizer=tokenizer).to(torch.bfloat16)
        model.save_pretrained(folder)
        self.assertEqual(AutoModelForSeq2SeqLM.from_pretrained(folder, dtype="auto").dtype, torch.bfloat16)
        self.assertEqual(load_model(folder, tokenizer=tokenizer).dtype, torch.float32)

    def test_another_family_trains_and_is_evaluated_both_ways(self):
        folder = tempfile.mkdtemp()
        BartConfig(
            vocab_size=50, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=256,
        ).save_pretrained(folder)  # fmt: skip
        for method in ("generate", "score"):
            results = fine_tune_t5.main([
                "--config_name", folder, "--tokenizer_name", BUNDLED_MODEL, "--eval_method", method, "--use_cpu",
                "--max_steps", "2", "--max_train_samples", "16", "--max_eval_samples", "6", "--disable_tqdm", "True",
                "--output_dir", tempfile.mkdtemp() + "/run",
            ])  # fmt: skip
            self.assertFalse(math.isnan(results["tasks"]["sentiment"]["accuracy"]))

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
