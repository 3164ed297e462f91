"""`t5suite predict` answers from ONNX files and CTranslate2's as from the model that they were made of."""

import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from absl.testing import parameterized
from support import command_flags
from tiny_predictor import LENGTHS, mini_rows, model_folder, predictor

from t5suite import load_task
from t5suite.export.exporting import export_model
from t5suite.inference.exported import ExportedPredictor
from t5suite.inference.running import load_predictor
from t5suite.inference.settings import Decoding
from t5suite.testing import exits_with

SENTIMENT = load_task("mini", "sentiment")
TEXTS = [SENTIMENT.examples(row)[0].inputs[: 8 + 6 * i] for i, row in enumerate(mini_rows())]


def exported(family: str, kind: str):
    place = Path(tempfile.mkdtemp()) / "exported"
    export_model(command_flags("export", format=kind, model_name_or_path=model_folder(family), output_dir=place))
    source = command_flags("predict", "use_cpu", model_name_or_path=place)
    return load_predictor(source, lengths=LENGTHS, batch_size=4, tasks=(SENTIMENT,))


class ExportedTest(parameterized.TestCase):
    @parameterized.parameters(("seq2seq", "onnx"), ("causal", "onnx"), ("seq2seq", "ctranslate2"))
    @pytest.mark.slow
    def test_texts_and_shares_are_the_model_s(self, family, kind):
        found, own = exported(family, kind), predictor(family)
        for beams in (1, 4) if kind == "ctranslate2" else (1,):
            answers = [each.answers(TEXTS, Decoding(num_beams=beams), 8) for each in (found, own)]
            self.assertEqual(*[[(a.text, a.truncated) for (a,) in each] for each in answers])
        self.assertGreater(len({a.text for (a,) in answers[0]}), 5)
        words = [["negative", "positive", "it was bad"][: 2 + i % 2] for i in range(len(TEXTS))]
        shares = [[list(v.shares.values()) for v in each.choices(TEXTS, words)] for each in (found, own)]
        for one, other in zip(*shares, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-3, atol=1e-6)

    @parameterized.parameters("masked", "encoder")
    @pytest.mark.slow
    def test_a_head_s_answers_are_the_model_s(self, family):
        segments = [(text,) for text in TEXTS]
        found, own = (each.classes(segments) for each in (exported(family, "onnx"), predictor(family)))
        self.assertEqual([v.text for v in found], [v.text for v in own])
        for one, other in zip(found, own, strict=True):
            np.testing.assert_allclose(list(one.shares.values()), list(other.shares.values()), rtol=1e-3)

    @parameterized.parameters(
        ({"num_beams": 4}, "--num_beams: .* holds ONNX files, which cannot"), ({"scores": True}, "--scores: "),
        ({"device_map": "auto"}, "--device_map: "), ({"do_sample": True}, "--do_sample: "),
    )  # fmt: skip
    def test_what_files_cannot_do_is_refused_by_flag(self, flags, message):
        folder = tempfile.mkdtemp()
        (Path(folder) / "model.onnx").touch()
        with exits_with(78, message):
            load_predictor(command_flags("predict", model_name_or_path=folder, **flags), lengths=LENGTHS, batch_size=4)

    def test_settings_of_generation_that_files_do_not_heed_are_refused_for_free_text(self):
        files = SimpleNamespace(write=lambda prompts, *_: [[3, 1]] * len(prompts))
        found = ExportedPredictor(
            files, predictor().encoding, 4, {"no_repeat_ngram_size": 3, "num_beams": 1, "top_k": 9}
        )
        with exits_with(78, "has no_repeat_ngram_size 3, which exported files ignore"):
            found.answers(["a"], Decoding(), 4)
        self.assertFalse(found.answers(["a"], Decoding(), 4, plain=True)[0][0].truncated)
