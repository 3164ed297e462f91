"""`t5suite predict` answers from ONNX files and CTranslate2's as from the model that they were made of."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from absl.testing import parameterized
from tiny_predictor import answers, mini_rows, model_folder, predict_words, random_model, rows_file, saved

from t5suite.testing import exits_with, run_cli, write_rows


def exported(model, kind: str) -> Path:
    folder = Path(tempfile.mkdtemp()) / "exported"
    run_cli("export", "--format", kind, "--model_name_or_path", model, "--output_dir", folder)
    return folder


def rows_of_many_lengths() -> Path:
    rows = [{**row, "sentence": row["sentence"][: 8 + 6 * number]} for number, row in enumerate(mini_rows())]
    return write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", rows)


def shares_of(lines: list[dict]) -> list[list[float]]:
    return [list(line["probabilities"].values()) for line in lines]


class ExportedTest(parameterized.TestCase):
    @parameterized.parameters(("seq2seq", "onnx"), ("causal", "onnx"), ("seq2seq", "ctranslate2"))
    @pytest.mark.slow
    def test_texts_and_shares_are_the_model_s(self, family, kind):
        model, rows = model_folder(family), rows_of_many_lengths()
        files = exported(model, kind)
        for flags in ("--max_new_tokens 8", "--max_new_tokens 8 --num_beams 4")[: 2 if kind == "ctranslate2" else 1]:
            expected = answers(flags, rows=rows, model=model)
            self.assertEqual(answers(flags, rows=rows, model=files), expected)
        self.assertGreater(len({line["prediction"] for line in expected}), 5)
        for flags in ("--labels", "--labels negative,bad,it"):
            shares = [shares_of(answers(flags, rows=rows, model=place)) for place in (files, model)]
            np.testing.assert_allclose(*shares, rtol=2e-3, atol=2e-6)

    @parameterized.parameters("masked", "encoder")
    @pytest.mark.slow
    def test_a_head_s_answers_are_the_model_s(self, family):
        rows = rows_of_many_lengths()
        lines, expected = (
            answers(rows=rows, model=place) for place in (exported(model_folder(family), "onnx"), model_folder(family))
        )
        self.assertEqual([line["prediction"] for line in lines], [line["prediction"] for line in expected])
        np.testing.assert_allclose(shares_of(lines), shares_of(expected), rtol=1e-3, atol=1e-6)

    @parameterized.parameters(
        ("--num_beams 4", "--num_beams: .* holds ONNX files, which cannot"), ("--scores", "--scores: "),
        ("--device_map auto", "--device_map: "), ("--do_sample", "--do_sample: "),
    )  # fmt: skip
    def test_what_files_cannot_do_is_refused_by_flag(self, flags, message):
        folder = Path(shutil.copytree(model_folder(), Path(tempfile.mkdtemp()) / "exported"))
        (folder / "model.safetensors").rename(folder / "model.onnx")
        path = folder.parent / "answers.jsonl"
        with exits_with(78, message):
            run_cli(*predict_words(flags, rows=rows_file(count=1), model=folder, output=path))
        self.assertFalse(path.exists() and path.read_bytes())

    @pytest.mark.slow
    def test_settings_of_generation_that_files_do_not_heed_are_refused_for_free_text(self):
        model = random_model()
        model.generation_config.no_repeat_ngram_size = 3
        rows = rows_file(count=2)
        files = exported(saved(model), "onnx")
        texts = Path(tempfile.mkdtemp()) / "rows.txt"
        texts.write_text("a\n")
        with exits_with(78, "has no_repeat_ngram_size 3, which exported files ignore"):
            answers("--raw --max_new_tokens 4", rows=texts, model=files)
        labelled = exported(saved(model, "sentiment"), "onnx")
        expected = answers(rows=rows, model=saved(model, "sentiment"))
        self.assertEqual(answers(rows=rows, model=labelled), expected)
