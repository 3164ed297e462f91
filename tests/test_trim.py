"""`t5suite trim`: fewer pieces, the same model over those that are left, on every kind of vocabulary that is claimed."""

import contextlib
import functools
import io
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import pyarrow.parquet
import pytest
import shared_data
import torch
from absl.testing import parameterized
from safetensors.torch import load_file, save_file
from sentencepiece import SentencePieceProcessor
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig, PreTrainedModel, T5Tokenizer
from vocabulary_folders import MODELS, make_folder

import t5suite
from t5suite.testing import exits_with, run_cli, save_model, tiny_model, tiny_rows, tiny_run, tiny_tuner, write_rows

SPIECE_FILES = ("spiece.model", "sentencepiece.bpe.model")
# The first five have every form of file, of pieces and of output layer; the others combine them otherwise.
VOCABULARIES = ("T5", "mT5", "mBART", "NLLB", "T5Gemma", "T5 v1.1", "umT5", "mBART-50")
# Codes of languages, as the tokenizers' classes have them.
CODES = {"mBART": ("en_XX", "ro_RO"), "mBART-50": ("en_XX", "uk_UA"), "NLLB": ("eng_Latn", "zul_Latn")}


@functools.cache
def lines() -> list[str]:
    """Sentences of words that are made of syllables, frequent ones and rare ones, with words of other alphabets."""
    draw = random.Random(0)
    syllables = [start + middle for start in "bdfgklmnprstvz" for middle in ("a", "e", "i", "o", "un", "ar", "est")]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(2000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    sentences = [" ".join(draw.choices(words, weights, k=12)).capitalize() + "." for _ in range(1500)]
    return [*sentences, *["Straße, naïve façade; déjà vu ¿qué? Übergrößenträger"] * 9, *["Привет, мир! 你好世界"] * 9]


@functools.cache
def source(name: str) -> Path:
    """A folder with a model of a type, whose vocabulary has pieces that a few lines do not use."""
    return make_folder(name, Path(tempfile.mkdtemp()) / "source", lines(), 1500)


def trim_and_check(folder) -> Path:
    """The folder that the command makes of another one, with `--check`."""
    place = Path(tempfile.mkdtemp())
    text = place / "own.txt"
    text.write_text("\n".join(own_text()) + "\n", encoding="utf-8")
    words = ["--model_name_or_path", folder, "--text", text, "--output_dir", place / "trimmed", "--check"]
    run_cli("trim", *words)
    return place / "trimmed"


@functools.cache
def trimmed(name: str) -> Path:
    """`source(name)`, trimmed; only read it."""
    return trim_and_check(source(name))


@functools.cache
def trimmed_tokenizer(name: str):
    """As plain transformers loads it."""
    return AutoTokenizer.from_pretrained(trimmed(name))


@functools.cache
def tuned() -> Path:
    """The folder of a tiny run."""
    return tiny_run(max_steps=1, max_eval_samples=2).directory


@functools.cache
def trimmed_run() -> Path:
    """`tuned()`, trimmed; only read it."""
    return trim_and_check(tuned())


@functools.cache
def untrimmed_tokenizer(name: str):
    """mT5 has no file that transformers 5 reads as t5suite and SentencePiece do: what `t5suite export` writes."""
    folder = source(name)
    if name == "mT5":
        folder = Path(tempfile.mkdtemp()) / "exported"
        run_cli("export", "--model_name_or_path", source(name), "--output_dir", folder)
    return AutoTokenizer.from_pretrained(folder)


def read_json(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))


def own_text() -> list[str]:
    """What models are trimmed to: some lines, and characters that no vocabulary has."""
    return [*lines()[:4], "Straße, naïve façade", "Привет, мир!", "snow ☃ and  two spaces", "........ ......"]


def segmented(tokenizer, texts) -> list[list[str]]:
    return [tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"]) for text in texts]


class TestCase(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.output = self.folder / "trimmed"
        self.text = self.folder / "own.txt"
        self.text.write_text("\n".join(own_text()) + "\n", encoding="utf-8")

    def figures(self, folder, *words) -> dict:
        """What a dry run prints: see `test_a_dry_run_has_the_same_figures_without_the_weights_and_writes_nothing`."""
        words = ["--model_name_or_path", folder, "--text", self.text, "--dry_run", "--json", *words]
        return json.loads(t5suite.testing.cli_output("trim", *words))

    def trim(self, folder, *words) -> dict:
        """What the command writes into `trim.json`."""
        run_cli("trim", "--model_name_or_path", folder, "--text", self.text, "--output_dir", self.output, *words)
        return json.loads((self.output / "trim.json").read_text())

    def kept_ids(self) -> list[int]:
        return json.loads((self.output / "kept_ids.json").read_text())


class EveryVocabularyTest(TestCase):
    def test_every_vocabulary_is_named(self):
        self.assertSameElements(VOCABULARIES, MODELS)

    @parameterized.parameters(*VOCABULARIES)
    @pytest.mark.quick_cases(2)
    def test_the_trimmed_model_is_the_untrimmed_one_on_its_pieces(self, name):
        record = read_json(trimmed(name) / "trim.json")
        self.assertLess(record["pieces"], record["rows_before"] - 100)
        self.assertEqual(record["check"]["segmentation"]["equal"], len(own_text()))
        self.assertEqual(record["check"]["model"]["answers_that_differ"], 0)
        # The same, by plain transformers and by hand.
        kept = torch.tensor(read_json(trimmed(name) / "kept_ids.json"))
        tokenizer = trimmed_tokenizer(name)
        self.assertEqual(segmented(tokenizer, own_text()), segmented(untrimmed_tokenizer(name), own_text()))
        before, after = (AutoModelForSeq2SeqLM.from_pretrained(place).eval() for place in (source(name), trimmed(name)))
        ids = torch.tensor([tokenizer(own_text()[0])["input_ids"][:20]])
        with torch.no_grad():
            logits = before(input_ids=kept[ids], decoder_input_ids=kept[ids]).logits[..., kept]
            torch.testing.assert_close(after(input_ids=ids, decoder_input_ids=ids).logits, logits, atol=1e-5, rtol=1e-5)
        self.assertEqual(after.config.get_text_config().vocab_size, len(kept))
        self.assertEqual(len(tokenizer), len(kept))

    def test_special_tokens_of_a_chain_of_processors_get_their_new_ids(self):
        folder = self.folder / "chain"
        shutil.copytree(source("mBART"), folder)
        # Of transformers' own classes this one alone takes the processors as the file has them.
        settings = {**read_json(folder / "tokenizer_config.json"), "tokenizer_class": "TokenizersBackend"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
        settings = read_json(folder / "tokenizer.json")
        settings["post_processor"] = {"type": "Sequence", "processors": [settings["post_processor"]]}
        (folder / "tokenizer.json").write_text(json.dumps(settings), encoding="utf-8")
        self.trim(folder)
        before, after = (AutoTokenizer.from_pretrained(place) for place in (folder, self.output))
        self.assertNotEqual(after.get_vocab()["en_XX"], before.get_vocab()["en_XX"])
        self.assertEqual(segmented(after, own_text()[:4]), segmented(before, own_text()[:4]))

    @parameterized.parameters(*VOCABULARIES)
    @pytest.mark.slow
    def test_characters_bytes_special_tokens_and_codes_stay_in_their_order(self, name):
        before = untrimmed_tokenizer(name).get_vocab()
        vocabulary = trimmed_tokenizer(name).get_vocab()
        needed = {piece for piece in before if len(piece) == 1 or piece.startswith(("<", "▁<extra"))}
        needed |= set(CODES.get(name, ()))
        self.assertEqual(needed - vocabulary.keys(), set())
        ordered = sorted(vocabulary, key=vocabulary.__getitem__)
        self.assertEqual(ordered, sorted(ordered, key=before.__getitem__))
        self.assertEqual(sorted(vocabulary.values()), list(range(len(vocabulary))))
        if name == "T5":
            self.assertEqual(ordered[:3], ["<pad>", "</s>", "<unk>"])
            self.assertEqual(ordered[-100:], [f"<extra_id_{number}>" for number in range(99, -1, -1)])

    @parameterized.parameters("T5", "mT5", "mBART", "NLLB", "umT5")
    @pytest.mark.quick_cases(1)
    def test_sentencepieces_file_segments_as_before(self, name):
        (file,) = [file for file in SPIECE_FILES if (source(name) / file).is_file()]
        places = (source(name), trimmed(name))
        before, after = (SentencePieceProcessor(model_file=str(place / file)) for place in places)
        for text in own_text():
            self.assertEqual(after.encode(text, out_type=str), before.encode(text, out_type=str))
        self.assertLess(after.get_piece_size(), before.get_piece_size() - 100)
        for token in ("pad", "eos", "unk", "bos"):
            ids = [getattr(processor, f"{token}_id")() for processor in (before, after)]
            self.assertEqual(ids[0], ids[1])
        if name == "T5":  # the ids of the file are those of tokenizer.json
            tokenizer = trimmed_tokenizer(name)
            self.assertEqual(after.encode("Straße bada"), tokenizer("Straße bada")["input_ids"][:-1])

    @pytest.mark.slow
    def test_every_id_of_the_settings_keeps_its_piece_and_merges_that_are_left_segment_as_before(self):
        folder = make_folder("NLLB", self.folder / "nllb", lines()[:20], 400)
        before = AutoTokenizer.from_pretrained(folder)
        vocabulary = before.get_vocab()
        ordinary = range(100, 400)
        settings = GenerationConfig.from_pretrained(folder)
        settings.forced_bos_token_id = vocabulary["zul_Latn"]
        settings.eos_token_id = [2, vocabulary["eng_Latn"]]
        settings.suppress_tokens = [*ordinary]
        settings.bad_words_ids = [[number, 2] for number in ordinary]
        settings.sequence_bias = [[[2, number], -1.5] for number in ordinary]
        settings.save_pretrained(folder)
        record = self.trim(folder)
        new_ids = {old: new for new, old in enumerate(self.kept_ids())}
        left = [new_ids[number] for number in ordinary if number in new_ids]
        self.assertBetween(len(left), 1, len(ordinary) - 1)
        after = json.loads((self.output / "generation_config.json").read_text())
        self.assertEqual(after["forced_bos_token_id"], new_ids[vocabulary["zul_Latn"]])
        self.assertEqual(after["eos_token_id"], [2, new_ids[vocabulary["eng_Latn"]]])
        self.assertEqual(after["suppress_tokens"], left)
        self.assertEqual(after["bad_words_ids"], [[number, 2] for number in left])
        self.assertEqual(after["sequence_bias"], [[[2, number], -1.5] for number in left])
        tokenizer = AutoTokenizer.from_pretrained(self.output)
        self.assertEqual(segmented(tokenizer, own_text()), segmented(before, own_text()))
        pieces = {piece: new_ids[number] for piece, number in vocabulary.items() if number in new_ids}
        self.assertEqual(tokenizer.get_vocab(), pieces)
        merges = read_json(self.output / "tokenizer.json")["model"]["merges"]
        self.assertTrue(all({first, second, first + second} <= pieces.keys() for first, second in merges))
        self.assertGreater(record["kept"]["on the way of merges"], 0)

    @pytest.mark.slow
    def test_bfloat16_stays_bfloat16(self):
        folder = Path(shutil.copytree(source("T5"), self.folder / "t5"))
        AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)
        self.trim(folder, "--check")
        weights, before = (load_file(place / "model.safetensors") for place in (self.output, folder))
        self.assertTrue(torch.equal(weights["shared.weight"], before["shared.weight"][self.kept_ids()]))
        self.assertEqual(weights["shared.weight"].dtype, torch.bfloat16)


class FiguresTest(TestCase):
    def test_rows_are_pieces_in_multiples_of_128_and_parameters_those_of_the_file(self):
        record = read_json(trimmed("mT5") / "trim.json")
        self.assertEqual(record["pieces"] % 128, 0)
        self.assertEqual(sum(record["kept"].values()), record["pieces"])
        for place, name in ((source("mT5"), "parameters_before"), (trimmed("mT5"), "parameters")):
            weights = load_file(place / "model.safetensors")
            self.assertEqual(record[name], sum(weight.numel() for weight in weights.values()))

    @parameterized.parameters(*VOCABULARIES)
    @pytest.mark.quick_cases(3)
    def test_a_dry_run_has_the_same_figures_without_the_weights_and_writes_nothing(self, name):
        record = read_json(trimmed(name) / "trim.json") | {"source": None, "text": None}
        folder = Path(shutil.copytree(source(name), self.folder / "source"))
        (folder / "model.safetensors").write_bytes(b"no weights")
        line = self.figures(folder) | {"source": None, "text": None}
        self.assertEqual({name: record[name] for name in line}, line)
        self.assertEqual(sorted(os.listdir(self.folder)), ["own.txt", "source"])

    def test_unseen_text_is_measured_by_both_tokenizers(self):
        unseen = " ".join(lines()[100:120]).split()[:60]
        file = self.folder / "unseen.txt"
        file.write_text("\n".join(unseen) + "\n", encoding="utf-8")
        figures = self.figures(source("T5"), "--validation_file", file)["unseen"]
        before, after = (
            segmented(tokenizer, unseen) for tokenizer in (untrimmed_tokenizer("T5"), trimmed_tokenizer("T5"))
        )
        equal = sum(old == new for old, new in zip(before, after, strict=True))
        self.assertEqual((figures["texts"], figures["equal"]), (60, equal))
        self.assertBetween(equal, 1, 59)
        self.assertEqual(figures["tokens_before"], sum(map(len, before)) - 60)  # without the ends
        self.assertEqual(figures["tokens"], sum(map(len, after)) - 60)
        self.assertGreater(figures["tokens"], figures["tokens_before"])

    def test_rows_that_are_left_take_the_likeliest_of_the_pieces_that_no_text_needs(self):
        vocabulary = json.loads(untrimmed_tokenizer("T5").backend_tokenizer.to_str())["model"]["vocab"]
        words = {piece: score for piece, score in vocabulary if len(piece) > 1 and piece[0] != "<"}
        words_of_text = set(itertools.chain(*segmented(untrimmed_tokenizer("T5"), own_text())))
        at_ends = {min(words, key=words.get), max(words, key=words.get)}
        unneeded = [piece for piece in words if piece not in words_of_text | at_ends]
        trimmed_vocabulary = trimmed_tokenizer("T5").get_vocab()
        scores_of_fillers = [words[piece] for piece in unneeded if piece in trimmed_vocabulary]
        scores_of_dropped = [words[piece] for piece in unneeded if piece not in trimmed_vocabulary]
        self.assertGreaterEqual(min(scores_of_fillers), max(scores_of_dropped))

    def test_a_tenth_of_the_text_is_measured_with_the_pieces_of_the_rest(self):
        """A text for each of sixty pieces: no other one has it."""
        pieces = [piece for piece in untrimmed_tokenizer("T5").get_vocab() if len(piece) > 5 and piece[1:].isalpha()]
        words = [piece[1:] for piece in sorted(pieces) if piece[0] == "▁"][:60]
        self.text.write_text("\n".join(words) + "\n", encoding="utf-8")
        figures = self.figures(source("T5"))["unseen"]
        self.assertBetween(figures["texts"], 1, 30)
        self.assertEqual((figures["equal"], figures["tokens_before"]), (0, figures["texts"]))
        self.assertGreaterEqual(figures["tokens"], 2 * figures["texts"])
        named = self.folder / "pieces.txt"
        named.write_text("\n".join(f"▁{word}" for word in words) + "\n", encoding="utf-8")
        figures = self.figures(source("T5"), "--keep_pieces", named)["unseen"]
        self.assertEqual((figures["equal"], figures["tokens"]), (figures["texts"], figures["texts"]))

    @pytest.mark.slow
    def test_rare_pieces_go_and_named_ones_stay(self):
        texts = [*own_text(), *lines()[4:10]]
        self.text.write_text("\n".join(texts) + "\n", encoding="utf-8")
        kept_ids = read_json(trimmed("T5") / "kept_ids.json")
        vocabulary = untrimmed_tokenizer("T5").get_vocab()
        dropped = sorted(set(range(len(vocabulary))) - set(kept_ids))[-2:]
        names = [piece for piece, number in vocabulary.items() if number in dropped]
        (self.folder / "pieces.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
        words = ["--keep_pieces", self.folder / "pieces.txt", "--min_count", "3", "--check"]
        record = self.trim(source("T5"), *words)
        self.assertLess(record["pieces"], self.figures(source("T5"))["pieces"])
        self.assertContainsSubset(dropped, self.kept_ids())
        self.assertLess(record["check"]["segmentation"]["equal"], len(texts))  # a figure, no error

    def test_several_columns_of_a_table_are_read_and_the_others_named(self):
        rows = [{"id": str(number), "source": text, "target": text[::-1]} for number, text in enumerate(own_text())]
        tables = [write_rows(self.folder / "rows.jsonl", rows), self.folder / "rows.parquet"]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tables[1])
        self.text.write_text("\n".join(row[name] for name in ("source", "target") for row in rows) + "\n")
        expected = self.figures(source("T5"))
        for self.text in tables:
            with self.subTest(self.text.name), contextlib.redirect_stderr(io.StringIO()) as log:
                record = self.figures(source("T5"), "--text_column_name", "source", "target")
                for name in ("texts", "kept", "pieces", "unseen"):
                    self.assertEqual(record[name], expected[name])
                self.assertIn("columns read are source, target (--text_column_name); not read: id\n", log.getvalue())

    def test_a_text_file_is_read_once_whatever_the_columns(self):
        record = self.figures(source("T5"), "--text_column_name", "source", "target")
        self.assertEqual(record["texts"], len(own_text()))

    def test_settings_of_generation_licence_and_base_are_carried(self):
        folder = Path(shutil.copytree(source("T5"), self.folder / "t5"))
        settings = read_json(folder / "generation_config.json") | {"length_penalty": 2.0, "temperature": 0.9}
        (folder / "generation_config.json").write_text(json.dumps(settings))
        (folder / "README.md").write_text("---\nlicense: gemma\nbase_model: google/flan-t5-small\n---\nText.\n")
        (folder / "LICENSE").write_text("Terms.")
        self.trim(folder)
        self.assertEqual(read_json(self.output / "generation_config.json"), settings)
        card = (self.output / "README.md").read_text()
        self.assertIn("license: gemma\n", card)
        self.assertIn("base_model: google/flan-t5-small\n", card)
        self.assertEqual((self.output / "LICENSE").read_text(), "Terms.")
        sentence, modified = (self.output / "NOTICE").read_text().splitlines()  # section 3.1 of Gemma's terms
        self.assertStartsWith(sentence, "Gemma is provided under and subject to the Gemma Terms of Use")
        self.assertStartsWith(modified, "The files of this folder were modified: ")


class CheckTest(TestCase):
    @parameterized.parameters("shared.weight", "decoder.block.0.layer.0.SelfAttention.q.weight")
    @pytest.mark.quick_cases(1)
    def test_weights_that_are_written_wrongly_are_found(self, tensor):
        save_pretrained = PreTrainedModel.save_pretrained

        def damaging(model, folder, **settings):
            save_pretrained(model, folder, **settings)
            file = Path(folder) / "model.safetensors"
            weights = load_file(file)
            weights[tensor] = weights[tensor].roll(1, 0)
            save_file(weights, file, metadata={"format": "pt"})

        with mock.patch.object(PreTrainedModel, "save_pretrained", damaging), exits_with(74, "logits_difference"):
            self.trim(source("T5"), "--check", "--allow_untested_libraries")
        self.assertFalse(self.output.exists())

    def test_the_mass_of_dropped_pieces_is_their_share_of_the_softmax(self):
        check = read_json(trimmed("T5") / "trim.json")["check"]["model"]
        kept_ids = torch.tensor(read_json(trimmed("T5") / "kept_ids.json"))
        tokenizer = trimmed_tokenizer("T5")
        model = AutoModelForSeq2SeqLM.from_pretrained(source("T5"), dtype=torch.float64).eval()
        masses = []
        for text in own_text():
            ids = kept_ids[tokenizer([text], truncation=True, max_length=64, return_tensors="pt").input_ids]
            with torch.no_grad():
                shares = model(input_ids=ids, labels=ids).logits[0].softmax(-1)
            masses.append(1 - shares[:, kept_ids].sum(-1))
        masses = torch.cat(masses)
        self.assertEqual(check["target_tokens"], len(masses))
        self.assertAlmostEqual(check["dropped_mass_mean"], float(masses.mean()), places=6)
        self.assertAlmostEqual(check["dropped_mass_most"], float(masses.max()), places=6)


class UseTest(TestCase):
    @pytest.mark.slow
    def test_a_run_is_trimmed_with_its_tasks_words_and_goes_on(self):
        words = ["sentiment: positive negative"]
        before, after = (AutoTokenizer.from_pretrained(place) for place in (tuned(), trimmed_run()))
        self.assertEqual(segmented(after, words), segmented(before, words))
        rows = write_rows(self.folder / "rows.jsonl", [{"sentence": "the film was good"}])
        answers = self.folder / "answers.jsonl"
        run_cli("predict", "--model_name_or_path", trimmed_run(), "--input", rows, "--output", answers)
        self.assertIn("prediction", json.loads(answers.read_text()))
        tuner = tiny_tuner(str(trimmed_run()), "mini/sentiment", max_train_samples=8, max_steps=1)
        tuner.train(valid=False)
        self.assertTrue((Path(tuner.args.output_dir) / "model.safetensors").is_file())

    @pytest.mark.slow
    def test_the_words_of_a_runs_templates_are_kept(self):
        run = Path(shutil.copytree(tuned(), self.folder / "run"))
        before, after = (AutoTokenizer.from_pretrained(place) for place in (run, trimmed_run()))
        dropped = [
            piece[1:] for piece in before.get_vocab() if piece.startswith("▁") and piece not in after.get_vocab()
        ]
        words = sorted(word for word in dropped if len(word) > 2)
        card = read_json(run / "task.json")
        entry = next(iter(card["tasks"].values()))
        entry.update(input_format=f"{words[0]} __input__", output_format=f"{words[1]} __output__")
        (run / "task.json").write_text(json.dumps(card))
        self.trim(run)
        after = AutoTokenizer.from_pretrained(self.output)
        for word in words[:2]:
            self.assertEqual(segmented(after, [word]), segmented(before, [word]))

    @parameterized.parameters(("T5", "onnx"), ("T5", "ctranslate2"), ("mT5", "onnx"), ("mBART", "onnx"))
    @pytest.mark.slow
    def test_it_is_exported_as_the_untrimmed_one_is(self, name, form):
        output = self.folder / "exported"
        run_cli("export", "--model_name_or_path", trimmed(name), "--output_dir", output, "--format", form, "--check")
        self.assertTrue((output / "export.json").is_file())

    @pytest.mark.slow
    def test_an_onnx_export_of_a_trimmed_run_answers_as_the_run_does(self):
        run = tiny_run(max_steps=20).directory
        sentences = [{"sentence": row["sentence"]} for row in tiny_rows()[:30]]
        self.text.write_text("\n".join(row["sentence"] for row in sentences) + "\n", encoding="utf-8")
        self.trim(run)
        exported = self.folder / "onnx"
        run_cli("export", "--model_name_or_path", self.output, "--output_dir", exported, "--format", "onnx", "--check")
        rows = write_rows(self.folder / "rows.jsonl", sentences)
        answers = []
        for place in (run, self.output, exported):
            words = ["--model_name_or_path", place, "--input", rows, "--labels"]
            predictions = t5suite.testing.cli_output("predict", *words).splitlines()
            answers.append([json.loads(line)["prediction"] for line in predictions])
        self.assertLen(answers[0], 30)
        self.assertEqual(answers[1], answers[0])
        self.assertEqual(answers[2], answers[0])
        # The run's own tokenizer gives other ids than these files read.
        with exits_with(78, "--exported .*: its tokenizer is not the run's: it had .* pieces, and this one has"):
            run_cli("verify", run, "--exported", exported)

    @pytest.mark.slow
    def test_t5s_own_vocabulary(self):
        if not shared_data.has("tokenizer/t5/spiece.model"):
            self.skipTest(shared_data.MISSING)
        folder = self.folder / "t5"
        folder.mkdir()
        spiece = (shared_data.SHARED_DATA / "tokenizer/t5/spiece.model").read_bytes()
        (folder / "spiece.model").write_bytes(spiece)
        tokenizer = T5Tokenizer.from_pretrained(folder)
        save_model(folder, tiny_model(tokenizer=tokenizer), tokenizer)
        rows = shared_data.read_rows("seq2seq/wmt_newstest2019_en-de/test.jsonl")
        self.text.write_text("\n".join(" ".join(row["translation"].values()) for row in rows) + "\n", encoding="utf-8")
        record = self.trim(folder, "--check")
        self.assertEqual((record["rows_before"], record["pieces_before"]), (32128, 32100))
        self.assertEqual(record["check"]["segmentation"]["equal"], 500)


BAD = {
    "no text": (["--text", "{folder}/none.txt"], 65, "none.txt"),
    "empty text": (["--text", "{folder}/empty.txt"], 65, "no document"),
    "another encoding": (["--text", "{folder}/latin.txt"], 65, "latin.txt:1: not UTF-8"),
    "no such column": (
        ["--text", "{folder}/rows.jsonl", "--text_column_name", "source", "taregt"],
        65,
        "no column 'taregt' .*did you mean target",
    ),
    "a column of lists": (
        ["--text", "{folder}/rows.jsonl", "--text_column_name", "source", "labels"],
        65,
        r"column 'labels' holds \['a'\] \(list\), not text",
    ),
    "no output": ([], 78, "give --output_dir, or --dry_run"),
    "an output that is there": (["--output_dir", "{folder}"], 78, "is not empty"),
    "a check without a model": (["--dry_run", "--check"], 78, "--check has no effect with --dry_run"),
    "a count of none": (["--min_count", "0", "--dry_run"], 78, "--min_count 0: must be at least 1"),
    "no pieces file": (["--keep_pieces", "{folder}/none", "--dry_run"], 65, "--keep_pieces .*none: cannot be read"),
    "no piece in it": (["--keep_pieces", "{folder}/empty.txt", "--dry_run"], 65, "it has no piece"),
    "no model": (["--model_name_or_path", "{folder}/none/at/all", "--dry_run"], 78, "no such folder"),
    "an encoder": (["--model_name_or_path", "{folder}/bert", "--dry_run"], 78, "type 'bert' are not trimmed; those"),
    "an encoder of a T5": (
        ["--model_name_or_path", "{folder}/encoder", "--dry_run"],
        78,
        "T5EncoderForSequenceClassification is not trimmed: it writes no text",
    ),
    "M2M100": (["--model_name_or_path", "{folder}/m2m", "--dry_run"], 78, "M2M100's vocabulary .* NLLB"),
    "ByT5": (["--model_name_or_path", "{folder}/byt5", "--dry_run"], 78, "reads bytes"),
    "an unknown flag": (["--min_cuont", "2"], 78, "did you mean --min_count"),
}
# Found before torch is imported: all but what is in the text.
LATE = ("empty text",)
REFUSED = {
    "bert": ("bert", "BertTokenizer", "BertForMaskedLM"),
    "encoder": ("t5", "T5Tokenizer", "T5EncoderForSequenceClassification"),
    "m2m": ("m2m_100", "M2M100Tokenizer", "M2M100ForConditionalGeneration"),
    "byt5": ("t5", "ByT5Tokenizer", "T5ForConditionalGeneration"),
}
IN_A_PROCESS = """
import json, sys
from t5suite.testing import run_cli
for words in json.load(sys.stdin):
    try:
        run_cli(*words)
    except ValueError:
        pass
    assert "torch" not in sys.modules, words
"""


class BadInputTest(TestCase):
    def words(self, name: str) -> list[str]:
        (self.folder / "empty.txt").write_text("")
        write_rows(self.folder / "rows.jsonl", [{"source": "a", "target": "b", "labels": ["a"]}])
        (self.folder / "latin.txt").write_bytes("für\n".encode("latin-1"))
        for folder, (model_type, tokenizer_class, model_class) in REFUSED.items():
            place = self.folder / folder
            place.mkdir(exist_ok=True)
            (place / "config.json").write_text(json.dumps({"model_type": model_type, "architectures": [model_class]}))
            (place / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": tokenizer_class}))
        words = [word.format(folder=self.folder) for word in BAD[name][0]]
        defaults = {"--model_name_or_path": source("T5"), "--text": self.text}
        if "--text" in words:
            defaults["--output_dir"] = self.output
        for flag, value in defaults.items():
            if flag not in words:
                words += [flag, str(value)]
        return ["trim", *words]

    @parameterized.parameters(*BAD)
    def test_one_message(self, name):
        _, code, pattern = BAD[name]
        with exits_with(code, pattern):
            run_cli(*self.words(name))
        self.assertFalse(self.output.exists())

    def test_before_torch_is_imported(self):
        commands = [self.words(name) for name in BAD if name not in LATE]
        subprocess.run([sys.executable, "-c", IN_A_PROCESS], input=json.dumps(commands), text=True, check=True)

    def test_a_piece_that_the_vocabulary_lacks(self):
        vocabulary = untrimmed_tokenizer("T5").get_vocab()
        word = next(
            piece[1:] for piece in vocabulary if piece[0] == "▁" and len(piece) > 5 and piece[1:] not in vocabulary
        )
        pieces = self.folder / "pieces.txt"
        pieces.write_text(f"▁{word}\n{word}\n", encoding="utf-8-sig")
        with exits_with(65, rf"pieces.txt:2: '{word}' is no piece of the model's vocabulary; did you mean ▁{word}\?"):
            self.trim(source("T5"), "--keep_pieces", pieces)

    def test_a_setting_without_a_piece(self):
        folder = Path(shutil.copytree(source("T5"), self.folder / "t5"))
        settings = json.loads((folder / "generation_config.json").read_text())
        settings["decoder_start_token_id"] = 1520
        (folder / "generation_config.json").write_text(json.dumps(settings))
        with exits_with(78, "1520, for which the tokenizer has no piece"):
            self.trim(folder)

    def test_a_tokenizer_of_another_kind(self):
        from odd_tokenizers import word_tokenizer

        folder = Path(shutil.copytree(source("mBART"), self.folder / "words"))
        for file in (*folder.glob("tokenizer*"), *folder.glob("*.model")):
            file.unlink()
        word_tokenizer().save_pretrained(folder)
        with exits_with(78, "WordLevel"):
            self.trim(folder)
