"""`t5suite predict` answers from ONNX files and CTranslate2's as from the model that they were made of."""

import itertools
import json
import shutil
import tempfile
from pathlib import Path

import hand_made_onnx
import numpy as np
import pytest
import torch
from absl.testing import parameterized
from tiny_predictor import (
    SOURCE_LENGTH,
    TINY,
    answers,
    mini_rows,
    model_folder,
    predict_words,
    random_model,
    rows_file,
    saved,
)

from t5suite.testing import exits_with, run_cli, save_model, tiny_model, tiny_tokenizer, tiny_tuner, write_rows


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

    @parameterized.parameters(("masked", "roberta", TINY["masked"][1]), ("encoder", *TINY["seq2seq"]))
    @pytest.mark.slow
    def test_the_answers_of_an_encoder_s_adapter_are_those_of_its_files(self, family, config_name, overrides):
        base = save_model(tempfile.mkdtemp(), tiny_model(config_name, overrides, scale=1.0))
        tuner = tiny_tuner(str(base), "mini/sentiment", adapter="lora", model_family=family)
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in tuner.model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter) * parameter.requires_grad)
        adapter = tuner.save(Path(tempfile.mkdtemp()) / "adapter")
        rows = rows_of_many_lengths()
        lines, expected = (answers(rows=rows, model=place) for place in (exported(adapter, "onnx"), adapter))
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

    @parameterized.parameters("onnx", "ctranslate2")
    @pytest.mark.slow
    def test_settings_of_generation_that_files_do_not_heed_are_refused_for_free_text(self, kind):
        model = random_model()
        model.generation_config.no_repeat_ngram_size = 3
        rows = rows_file(count=2)
        files = exported(saved(model), kind)
        texts = Path(tempfile.mkdtemp()) / "rows.txt"
        texts.write_text("a\n")
        with exits_with(78, "has no_repeat_ngram_size 3, which exported files ignore"):
            answers("--raw --max_new_tokens 4", rows=texts, model=files)
        labelled = exported(saved(model, "sentiment"), kind)
        expected = answers(rows=rows, model=saved(model, "sentiment"))
        self.assertEqual(answers(rows=rows, model=labelled), expected)


TEXTS = ["It is good.", "A film that", "bad", "It was a long and happy day, and we sang."]
PAD, EOS = 0, 1


class HandMadeFilesTest(parameterized.TestCase):
    """Files whose answers NumPy gives, too; rows of several lengths in one batch."""

    def setUp(self):
        super().setUp()
        self.ids = tiny_tokenizer()(TEXTS)["input_ids"]

    def folder_of(self, family: str, write, *more) -> Path:
        """A saved model's folder with these files in place of its weights."""
        folder = Path(shutil.copytree(model_folder(family), Path(tempfile.mkdtemp()) / "exported"))
        (folder / "model.safetensors").unlink()
        self.tables = hand_made_onnx.Tables(len(tiny_tokenizer()))
        write(folder, self.tables, *more)
        return folder

    def folder_and_sources(self, family: str) -> tuple[Path, list[list[int]]]:
        """Files made by hand, and the ids that they read of each text."""
        write = {"seq2seq": hand_made_onnx.write_seq2seq, "causal": hand_made_onnx.write_causal}[family]
        sources = self.ids
        if family == "causal":
            sources = [[*ids[:-1], *tiny_tokenizer()("\nanswer:")["input_ids"][:-1]] for ids in self.ids]
        return self.folder_of(family, write), sources

    def answers(self, folder: Path, *flags: str) -> list[dict]:
        texts = Path(tempfile.mkdtemp()) / "rows.txt"
        texts.write_text("".join(text + "\n" for text in TEXTS))
        return answers("--raw", *flags, rows=texts, model=folder)

    @parameterized.parameters(("seq2seq", [PAD]), ("causal", []))
    def test_texts_and_shares_are_those_of_the_tables(self, family, start):
        folder, sources = self.folder_and_sources(family)
        written = [self.tables.written(source, start, 5, EOS) for source in sources]
        expected = [tiny_tokenizer().decode([token for token in ids if token != EOS]) for ids in written]
        lines = self.answers(folder, "--max_new_tokens 5")
        self.assertEqual([line["prediction"] for line in lines], expected)
        lines = self.answers(folder, "--labels good,bad,it", "--batch_size 3")
        candidates = [tiny_tokenizer()(word)["input_ids"] for word in ("good", "bad", "it")]
        for line, source in zip(lines, sources, strict=True):
            log_p = np.array([self.tables.log_probability(source, start, ids) for ids in candidates])
            shares = np.exp(log_p - log_p.max())
            np.testing.assert_allclose(
                list(line["probabilities"].values()), shares / shares.sum(), rtol=1e-4, atol=1e-6
            )
            self.assertEqual(line["prediction"], ("good", "bad", "it")[log_p.argmax()])

    @parameterized.parameters(("seq2seq", [PAD]), ("causal", []))
    def test_an_answer_ends_at_each_end_of_the_configuration(self, family, start):
        folder, sources = self.folder_and_sources(family)
        written = [self.tables.written(source, start, 5, EOS) for source in sources]
        end = written[0][0]
        for file in ("config.json", "generation_config.json"):
            settings = json.loads((folder / file).read_text())
            (folder / file).write_text(json.dumps({**settings, "eos_token_id": [EOS, end]}))
        lines = self.answers(folder, "--max_new_tokens 5")
        for line, ids in zip(lines, written, strict=True):
            before_end = list(itertools.takewhile(lambda token: token not in (EOS, end), ids))
            self.assertEqual(line["prediction"], tiny_tokenizer().decode(before_end))
            self.assertEqual(line.get("truncated", False), len(before_end) == 5)
        self.assertEqual(lines[0]["prediction"], "")

    @parameterized.parameters(("seq2seq", [PAD]), ("causal", []))
    def test_the_ends_of_generation_config_json_go_before_those_of_config_json(self, family, start):
        folder, sources = self.folder_and_sources(family)
        written = [self.tables.written(source, start, 5, EOS) for source in sources]
        one_end, other_end = written[0][0], written[1][0]

        def texts_up_to(end: int) -> list[str]:
            ids_of_texts = [itertools.takewhile(lambda token: token not in (EOS, end), ids) for ids in written]
            return [tiny_tokenizer().decode(list(ids)) for ids in ids_of_texts]

        self.check_order_of_files(folder, "eos_token_id", one_end, other_end, texts_up_to)

    def test_the_start_of_generation_config_json_goes_before_that_of_config_json(self):
        folder, sources = self.folder_and_sources("seq2seq")

        def texts_after(start: int) -> list[str]:
            ids_of_texts = [self.tables.written(source, [start], 5, EOS) for source in sources]
            return [tiny_tokenizer().decode([token for token in ids if token != EOS]) for ids in ids_of_texts]

        self.check_order_of_files(folder, "decoder_start_token_id", 7, 8, texts_after)

    def check_order_of_files(self, folder: Path, name: str, one: int, other: int, texts_with):
        """Answers are those of generation_config.json's token, or of config.json's where it has none."""
        self.assertNotEqual(texts_with(one), texts_with(other))
        for in_config, in_generation, token in (
            ({name: one}, {name: other}, other),
            ({name: one}, {name: None}, one),
            ({name: one}, {}, one),
            ({}, {name: other}, other),
        ):
            for file, setting in (("config.json", in_config), ("generation_config.json", in_generation)):
                settings = json.loads((folder / file).read_text())
                settings.pop(name, None)
                (folder / file).write_text(json.dumps({**settings, **setting}))
            lines = self.answers(folder, "--max_new_tokens 5")
            self.assertEqual([line["prediction"] for line in lines], texts_with(token), (in_config, in_generation))

    @parameterized.parameters("seq2seq", "encoder")
    def test_a_line_says_how_many_tokens_were_cut(self, family):
        write, *more = {"seq2seq": (hand_made_onnx.write_seq2seq,), "encoder": (hand_made_onnx.write_classifier, 2)}[
            family
        ]
        rows = write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", ["the " * 100, "the"])
        flags = "--raw --max_new_tokens 2" if family == "seq2seq" else "--raw"
        lines = answers(flags, rows=rows, model=self.folder_of(family, write, *more))
        num_tokens = len(tiny_tokenizer()("the " * 100)["input_ids"])
        self.assertEqual([line.get("cut_tokens") for line in lines], [num_tokens - SOURCE_LENGTH, None])

    @parameterized.parameters("--source_lang en --target_lang de", "--source_lang_column language")
    def test_languages_of_a_model_without_languages_are_refused(self, flags):
        folder, _ = self.folder_and_sources("seq2seq")
        rows = write_rows(folder.parent / "rows.jsonl", [{"input": "a film", "language": "en"}])
        flag, code = flags.split()[:2]
        with exits_with(78, f"{flag} {code}: .* has no languages"):
            answers("--raw", flags, rows=rows, model=folder)

    @parameterized.parameters(
        ("causal", "n_positions", "--max_new_tokens 5"),
        ("causal", "n_positions", "--labels good,bad"),
        ("masked", "max_position_embeddings", ""),
    )
    def test_what_is_longer_than_the_model_s_positions_is_refused_as_by_the_model(self, family, setting, flags):
        """These tables have no positions and would answer; the graphs of such a model fail within."""
        if family == "causal":
            folder, _ = self.folder_and_sources(family)
        else:
            folder = self.folder_of(family, hand_made_onnx.write_classifier, 2)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, setting: 8}))
        with exits_with(78, "--max_(source_length|new_tokens) [0-9]+: a model of type .* has positions for 8 tokens"):
            self.answers(folder, flags)

    def test_a_head_s_shares_are_those_of_the_table(self):
        folder = self.folder_of("encoder", hand_made_onnx.write_classifier, 2)
        for line, ids in zip(self.answers(folder), self.ids, strict=True):
            logits = self.tables.seen_VV[ids, :2].sum(axis=0).astype(np.float64)
            shares = np.exp(logits) / np.exp(logits).sum()
            np.testing.assert_allclose(list(line["probabilities"].values()), shares, rtol=1e-4, atol=1e-6)
            self.assertEqual(line["prediction"], ("negative", "positive")[logits.argmax()])

    def folder_of_hub_head(self, **settings) -> Path:
        """As of a classifier that was trained elsewhere: no file says its task; transformers' own training names the
        kind of problem, and no classes.
        """
        folder = self.folder_of("masked", hand_made_onnx.write_classifier, 2)
        (folder / "task.json").unlink()
        config = json.loads((folder / "config.json").read_text())
        unnamed = {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}}
        (folder / "config.json").write_text(json.dumps({**config, **unnamed, **settings}))
        return folder

    @parameterized.named_parameters(
        ("names of a task", {}, "--benchmark mini --dataset_name sentiment", ("negative", "positive")),
        (
            "without a kind of problem",
            {"problem_type": None},
            "--benchmark mini --dataset_name sentiment",
            ("negative", "positive"),
        ),
        ("own names", {"id2label": {"0": "yes", "1": "no"}, "label2id": {"yes": 0, "no": 1}}, "", ("yes", "no")),
    )
    def test_a_head_that_was_trained_elsewhere_answers(self, settings, flags, words):
        folder = self.folder_of_hub_head(**settings)
        for line, ids in zip(self.answers(folder, flags), self.ids, strict=True):
            self.assertEqual(line["prediction"], words[self.tables.seen_VV[ids, :2].sum(axis=0).argmax()])

    @parameterized.parameters(
        ({}, "", "the classes of its head have no names; --benchmark and --dataset_name"),
        ({"problem_type": None}, "", "the classes of its head have no names; --benchmark and --dataset_name"),
        (
            {"problem_type": "multi_label_classification", "id2label": {"0": "joy", "1": "fear"}},
            "",
            "its head gives a text several labels at once",
        ),
        (
            {},
            "--benchmark mini --dataset_name similarity",
            "its head gives one of LABEL_0, LABEL_1; the task is a number",
        ),
        ({"architectures": ["BertForMaskedLM"]}, "", "this encoder has no head for labels"),
    )
    def test_a_head_that_does_not_answer_the_task_is_refused(self, settings, flags, message):
        with exits_with(78, message):
            self.answers(self.folder_of_hub_head(**settings), flags)
