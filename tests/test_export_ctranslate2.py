"""CTranslate2's files score and write as the model that they were made of, tied and untied."""

import contextlib
import functools
import io
import json
import re
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import ctranslate2
import numpy as np
import pytest
import torch
from absl.testing import parameterized
from tiny_predictor import model_folder as folder_with_card
from transformers import AutoModelForSeq2SeqLM, LEDConfig, LEDForConditionalGeneration

from t5suite.testing import exits_with, read_rows, run_cli, save_model, tiny_model, tiny_tokenizer, write_rows

TOKENIZER = tiny_tokenizer()
TRANSLATOR = ctranslate2.Translator
T5 = "d_model=32,d_ff=64,d_kv=8,num_heads=2,num_layers=1,num_decoder_layers=1"
MODELS = {"tied T5": None, "untied T5": "t5-v1_1-small", "mt5": "mt5", "umt5": "umt5"}
# Ids without special tokens, of many lengths; each ends with end-of-sequence, 1.
PROMPTS = [[*np.random.default_rng(length).integers(3, 500, length).tolist(), 1] for length in (1, 3, 7, 16, 29, 50)]


@functools.cache
def model_folder(name: str) -> Path:
    """A saved model with random weights whose answers are not all one token."""
    model = tiny_model(MODELS[name], T5, scale=1.0)
    for parameter in model.parameters():
        parameter.data.mul_(3 if parameter.ndim > 1 else 1)
    return save_model(tempfile.mkdtemp(), model)


def export(folder, *flags) -> Path:
    """The folder of the files, which the command itself has compared with the model."""
    output = Path(tempfile.mkdtemp()) / "exported"
    words = ["export", "--format", "ctranslate2", "--check", "--model_name_or_path", folder, "--output_dir", output]
    run_cli(*words, *flags)
    return output


@functools.cache
def files_of(name: str) -> Path:
    """The files of `model_folder(name)`; only read them."""
    return export(model_folder(name))


def card_of(folder: Path) -> dict:
    return json.loads((folder / "export.json").read_text())


def tokens_of(ids: list[int]) -> list[str]:
    return TOKENIZER.convert_ids_to_tokens(ids)


class ScaledTranslator:
    """A translator of CTranslate2 whose last score is `factor` times the true one."""

    factor = 1.0

    def __init__(self, *arguments, **settings):
        self.translator = TRANSLATOR(*arguments, **settings)
        self.translate_batch = self.translator.translate_batch

    def score_batch(self, *arguments):
        results = [list(result.log_probs) for result in self.translator.score_batch(*arguments)]
        results[-1] = [self.factor * log_prob for log_prob in results[-1]]
        return [SimpleNamespace(log_probs=log_probs) for log_probs in results]


class FilesTest(parameterized.TestCase):
    @parameterized.parameters(*MODELS)
    @torch.no_grad()
    @pytest.mark.quick_cases(1)
    def test_scores_greedy_answers_and_four_beams_are_the_model_s(self, name):
        folder = model_folder(name)
        files = files_of(name)
        translator = ctranslate2.Translator(str(files), compute_type="default")
        reference = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        num_compared = 0
        for prompt in PROMPTS:
            for num_beams in (1, 4):
                (written,) = translator.translate_batch([tokens_of(prompt)], beam_size=num_beams, max_decoding_length=8)
                ids = reference.generate(
                    torch.tensor([prompt]), max_new_tokens=8, do_sample=False, num_beams=num_beams
                )[0, 1:].tolist()
                expected = ids[: ids.index(1)] if 1 in ids else ids
                if max(expected, default=0) < len(TOKENIZER):  # rows that only fill the matrix have no piece
                    self.assertEqual(TOKENIZER.convert_tokens_to_ids(written.hypotheses[0]), expected)
                    num_compared += 1
            answer = PROMPTS[1][:-1]
            (scored,) = translator.score_batch([tokens_of(prompt)], [tokens_of(answer)])
            loss = reference(torch.tensor([prompt]), labels=torch.tensor([[*answer, 1]])).loss
            self.assertAlmostEqual(sum(scored.log_probs), -float(loss) * (len(answer) + 1), delta=1e-3)
        self.assertGreaterEqual(num_compared, 8)
        figures = card_of(files)["check"]
        self.assertEqual((figures["greedy_equal"], figures["beams_equal"]), (figures["prompts"], figures["prompts"]))
        self.assertLess(figures["score_difference"], 1e-3)
        self.assertLess(figures["score_difference_relative"], 1e-5)

    @parameterized.parameters(1.001, float("nan"))
    def test_files_that_score_otherwise_are_refused(self, factor):
        folder = model_folder("tied T5")
        factors = mock.patch.object(ScaledTranslator, "factor", factor)
        with factors, mock.patch.object(ctranslate2, "Translator", ScaledTranslator), exits_with(74, "differ"):
            export(folder)

    @torch.no_grad()
    def test_a_text_of_more_than_1024_tokens_is_read_to_its_end(self):
        place = Path(tempfile.mkdtemp())
        text = "good " * 1030 + "song " * 200
        ids = TOKENIZER(text)["input_ids"]
        reference = AutoModelForSeq2SeqLM.from_pretrained(model_folder("tied T5")).eval()
        whole, beginning = (
            TOKENIZER.decode(reference.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)[0, 1:])
            for prompt in (ids, [*ids[:1023], 1])
        )
        self.assertNotEqual(whole, beginning)
        (place / "rows.txt").write_text(text + "\n")
        words = ["--input", place / "rows.txt", "--raw", "--max_new_tokens", "8", "--max_source_length", "4096"]
        run_cli("predict", "--model_name_or_path", files_of("tied T5"), "--output", place / "answers.jsonl", *words)
        (line,) = read_rows(place / "answers.jsonl")
        self.assertEqual(line["prediction"], whole)

    def test_the_page_s_example_without_the_suite_answers_as_predict(self):
        place = Path(tempfile.mkdtemp())
        files = Path(shutil.copytree(files_of("tied T5"), place / "ct2"))
        card = json.loads(Path(folder_with_card(), "task.json").read_text())
        card |= {"max_source_length": 16, "max_answer_tokens": {"sentiment": 5}}
        (files / "task.json").write_text(json.dumps(card))
        page = (Path(__file__).parent.parent / "docs" / "serve.md").read_text(encoding="utf-8")
        (program,) = re.findall(r"```python\n(.*?)```", page, re.S)
        shown = "The lamp was lovely."
        sentences = [shown, "Good.", "very good film " * 9, "Über, not a film?"]
        rows = write_rows(place / "rows.jsonl", [{"sentence": sentence} for sentence in sentences])
        words = ["--input", rows, "--output", place / "answers.jsonl", "--use_cpu"]
        run_cli("predict", "--model_name_or_path", files, *words)
        expected = [line["prediction"] for line in read_rows(place / "answers.jsonl")]
        self.assertLen(set(expected), len(sentences))
        for sentence, answer in zip(sentences, expected, strict=True):
            with contextlib.chdir(place), contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(program.replace(shown, sentence), "docs/serve.md", "exec"), {})
            self.assertEqual(printed.getvalue(), answer + "\n")

    @torch.no_grad()
    def test_an_empty_answer_is_empty(self):
        place = Path(tempfile.mkdtemp())
        (place / "rows.txt").write_text("Nothing to correct.\n")
        model = tiny_model("t5-v1_1-small", T5)
        prompt = torch.tensor([TOKENIZER("Nothing to correct.")["input_ids"]])
        start = torch.tensor([[model.config.decoder_start_token_id]])
        states = model(input_ids=prompt, decoder_input_ids=start, output_hidden_states=True).decoder_hidden_states
        model.lm_head.weight[1] = 10 * states[-1][0, 0]  # the end is the likeliest first token
        folder = save_model(place / "model", model)
        files = export(folder)
        figures = card_of(files)["check"]
        self.assertEqual((figures["greedy_equal"], figures["beams_equal"]), (figures["prompts"], figures["prompts"]))
        for num_beams in (1, 4):
            for number, source in enumerate((folder, files)):
                output = place / f"answers-{num_beams}-{number}.jsonl"
                words = ["--input", place / "rows.txt", "--raw", "--num_beams", num_beams, "--output", output]
                run_cli("predict", "--model_name_or_path", source, *words, "--use_cpu", "--max_new_tokens", "8")
                (line,) = read_rows(output)
                self.assertEqual(line["prediction"], "")

    def test_settings_of_generation_that_files_do_not_heed_are_refused_and_beams_are_the_flag_s(self):
        files = Path(shutil.copytree(files_of("tied T5"), Path(tempfile.mkdtemp()) / "files"))
        place = files.parent
        (place / "rows.txt").write_text("a\n")
        words = ["--input", place / "rows.txt", "--raw", "--max_new_tokens", "2", "--output", place / "answers.jsonl"]
        settings = json.loads((files / "generation_config.json").read_text())
        (files / "generation_config.json").write_text(json.dumps({**settings, "num_beams": 4}))
        run_cli("predict", "--model_name_or_path", files, *words)
        (files / "generation_config.json").write_text(json.dumps({**settings, "no_repeat_ngram_size": 3}))
        with exits_with(78, "has no_repeat_ngram_size 3, which exported files ignore"):
            run_cli("predict", "--model_name_or_path", files, *words, "--overwrite")

    @pytest.mark.slow
    def test_the_converter_s_own_reading_of_an_untied_t5_is_found_and_nothing_is_written(self):
        folder = model_folder("untied T5")
        stock = ctranslate2.converters.TransformersConverter(str(folder))

        def convert_alone(converter, output_dir, **settings):
            return ctranslate2.converters.Converter.convert_as_before(stock, output_dir, **settings)

        converter = ctranslate2.converters.Converter
        # The day that this scores right, the model need not be handed over.
        self.enter_context(mock.patch.object(converter, "convert_as_before", converter.convert, create=True))
        self.enter_context(mock.patch.object(converter, "convert", convert_alone))
        output = Path(tempfile.mkdtemp()) / "exported"
        words = ["export", "--format", "ctranslate2", "--check", "--model_name_or_path", folder, "--output_dir", output]
        with exits_with(74, "an answer's score differs by"):
            run_cli(*words, "--allow_untested_libraries")
        self.assertFalse(output.exists())

    def test_types_without_a_loader_are_refused_with_those_that_have_one(self):
        sizes = {f"{part}_{name}": size for part in ("encoder", "decoder")
                 for name, size in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 32))}  # fmt: skip
        config = LEDConfig(vocab_size=640, d_model=32, attention_window=[8], pad_token_id=0, eos_token_id=1, **sizes)
        folder = save_model(tempfile.mkdtemp(), LEDForConditionalGeneration(config))
        with exits_with(78, "'led' are not written; these are: mt5, t5, umt5"):
            export(folder)

    @pytest.mark.slow
    def test_the_command_writes_integers_that_are_near_and_what_belongs_to_the_model(self):
        folder = model_folder("tied T5")
        whole, integers = files_of("tied T5"), export(folder, "--quantize", "int8")
        for files in (whole, integers):
            self.assertContainsSubset(
                {"model.bin", "shared_vocabulary.json", "tokenizer_config.json"}, card_of(files)["files"]
            )
            self.assertEqual(card_of(files)["files"]["model.bin"], (files / "model.bin").stat().st_size)
        sizes = [(files / "model.bin").stat().st_size for files in (whole, integers)]
        self.assertLess(sizes[1], 0.5 * sizes[0])
        self.assertBetween(card_of(integers)["check_quantized"]["score_difference"], 1e-3, 4.0)
        self.assertEqual(card_of(integers)["check"], card_of(whole)["check"])
        with exits_with(78, "--dtype float16: such files hold float32"):
            export(folder, "--dtype", "float16")
