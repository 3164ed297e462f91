"""Whole small runs of fine_tune_t5.py with models that are no encoder-decoders."""

import contextlib
import io
import tempfile
from pathlib import Path

import pytest
from absl.testing import parameterized
from support import later_wins
from tokenizer_folders import bart_tokenizer, gpt2_tokenizer
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

import fine_tune_t5
from t5suite import FineTuner, load_task
from t5suite.testing import bundled_model, exits_with, load_rows, read_rows, write_rows

GPT2 = {"config_name": "gpt2", "config_overrides": "n_embd=32,n_layer=1,n_head=2"}
BERT = {
    "config_name": "bert",
    "config_overrides": "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=32",
}
SETTINGS = {
    "max_train_samples": 64, "max_eval_samples": 24, "max_steps": 4, "per_device_train_batch_size": 8,
    "learning_rate": 5e-3, "eval_strategy": "steps", "eval_steps": 2, "logging_steps": 1, "disable_tqdm": True,
    "use_cpu": True,
}  # fmt: skip


def run(*flags, output_dir=None, **settings):
    output_dir = output_dir or Path(tempfile.mkdtemp()) / "run"
    argv = [f"--{name}={value}" for name, value in {**SETTINGS, **settings}.items()]
    return fine_tune_t5.main(later_wins([*argv, *flags, f"--output_dir={output_dir}"])), Path(output_dir)


def evaluated(folder, *flags):
    """The model of a run once more, with no flag but its folder."""
    output_dir = Path(tempfile.mkdtemp()) / "run"
    argv = [f"--model_name_or_path={folder}", "--eval_only", "--max_eval_samples=24", "--use_cpu", *flags]
    return fine_tune_t5.main([*argv, "--disable_tqdm=True", f"--output_dir={output_dir}"]), output_dir


def predictions(folder, name="sentiment.validation"):
    return [line["prediction"] for line in read_rows(folder / "predictions" / f"{name}.jsonl")]


class CausalRunTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.results, cls.folder = run("--answer_separator= => ", **GPT2)

    def test_the_saved_model_answers_as_it_was_trained_without_being_told_how(self):
        results, folder = evaluated(self.folder)
        self.assertEqual(results["tasks"], self.results["tasks"])
        self.assertEqual(predictions(folder), predictions(self.folder))
        self.assertEqual(AutoModelForCausalLM.from_pretrained(self.folder).config.answer_separator, " => ")

    @pytest.mark.slow
    def test_all_checkpoints_are_scored_with_their_own_weights(self):
        """--config_name says what the run began with; it must not make random weights of its checkpoints."""
        checkpoints, _ = run("--answer_separator= => ", "--eval_checkpoints=all", output_dir=self.folder, **GPT2)
        best = max(checkpoints.values(), key=lambda of_step: of_step["tasks"]["sentiment"]["accuracy"])
        self.assertEqual(best["tasks"]["sentiment"], self.results["tasks"]["sentiment"])

    @pytest.mark.slow
    def test_prompts_that_do_not_fit_the_model_are_told_by_flag(self):
        with exits_with(78, "--max_source_length .*positions for 8 tokens"):
            run(**{**GPT2, "config_overrides": "n_embd=32,n_layer=1,n_head=2,n_positions=8"})

    @pytest.mark.slow
    def test_python_does_what_the_script_does(self):
        tuner = FineTuner(**SETTINGS, **GPT2, answer_separator=" => ", output_dir=tempfile.mkdtemp() + "/run")
        self.assertEqual(tuner.train(), self.results)
        texts = [example.inputs for example in tuner.trainer.eval_sets[0].examples[:6]]
        self.assertEqual(tuner.predict(texts, raw=True), predictions(self.folder)[:6])


class EncoderRunTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with contextlib.redirect_stderr(io.StringIO()) as log:
            cls.results, cls.folder = run("--eval_method=score", **BERT)
        cls.log = log.getvalue()

    def test_answers_are_label_words_scored_as_any(self):
        self.assertContainsSubset(set(predictions(self.folder)), {"negative", "positive"})
        lines = read_rows(self.folder / "predictions" / "sentiment.validation.jsonl")
        right = sum(line["prediction"] == line["target"] for line in lines)
        self.assertAlmostEqual(self.results["tasks"]["sentiment"]["accuracy"], 100 * right / 24)
        self.assertEqual(self.results["tasks"]["sentiment"]["invalid_rate"], 0.0)

    def test_a_flag_that_a_head_does_not_heed_is_named(self):
        self.assertIn("--eval_method has no effect: an encoder's head gives the answer", self.log)

    def test_the_saved_model_has_its_head(self):
        results, folder = evaluated(self.folder)
        self.assertEqual(results["tasks"], self.results["tasks"])
        self.assertEqual(predictions(folder), predictions(self.folder))
        config = AutoModelForSequenceClassification.from_pretrained(self.folder).config
        self.assertEqual(config.id2label, {0: "negative", 1: "positive"})

    def test_a_mixture_of_label_sets_is_refused(self):
        with exits_with(78, "an encoder has one head: mini/sentiment is"):
            run("--dataset_name=all", **BERT)


BART = {
    "config_name": "bart",
    "config_overrides": "d_model=64,encoder_layers=1,decoder_layers=1,encoder_attention_heads=4,"
    "decoder_attention_heads=4,encoder_ffn_dim=64,decoder_ffn_dim=64,dropout=0.0",
}
LLAMA = {
    "config_name": "llama",
    "config_overrides": "hidden_size=64,num_hidden_layers=1,num_attention_heads=4,num_key_value_heads=4,"
    "intermediate_size=64",
}
WIDE_GPT2 = {
    "config_name": "gpt2",
    "config_overrides": "n_embd=64,n_layer=1,n_head=4,resid_pdrop=0.0,embd_pdrop=0.0,attn_pdrop=0.0",
}


class RotesTest(parameterized.TestCase):
    """Rows learnt by heart are answered rightly: where answers begin and end is the same in training and in use."""

    @parameterized.named_parameters(
        ("bart", BART, lambda: bundled_model()),
        ("bart_that_begins_texts", BART, bart_tokenizer),
        ("gpt2_without_padding", WIDE_GPT2, gpt2_tokenizer),
        ("llama", LLAMA, lambda: bundled_model()),
    )
    @pytest.mark.slow
    def test_rows_learnt_by_heart_are_answered_rightly(self, model, tokenizer):
        rows = Path(tempfile.mkdtemp()) / "rows.jsonl"
        write_rows(rows, load_rows(load_task("mini", "entailment"), "train")[:6])
        for method in ("generate", "score"):
            results, folder = run(
                "--dataset_name=entailment", f"--train_file={rows}", f"--validation_file={rows}",
                f"--tokenizer_name={tokenizer()}", f"--eval_method={method}",
                **{**model, "max_steps": 80, "learning_rate": 5e-3, "eval_steps": 80, "max_train_samples": None},
            )  # fmt: skip
            self.assertEqual(
                results["tasks"]["entailment"]["accuracy"], 100.0, predictions(folder, "entailment.validation")
            )
