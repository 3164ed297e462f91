"""Languages of mBART, M2M100, NLLB and Marian: ids, loss and answers are transformers' own, also row by row."""

import functools
import json
import tempfile
from pathlib import Path

import pytest
import sentencepiece
import torch
import transformers
from absl.testing import parameterized
from support import later_wins
from transformers import AutoConfig, AutoModelForSeq2SeqLM, GenerationConfig, set_seed

import fine_tune_t5
from t5suite import Task, load_task
from t5suite.data.batches.collators import Seq2SeqCollator
from t5suite.data.batches.encodings import LanguageEncoding, TextEncoding
from t5suite.models.answering import answerer_for
from t5suite.models.loading import encoding_for
from t5suite.tasks.registry import Languages, Lengths
from t5suite.testing import exits_with, read_rows, run_cli, tiny_tokenizer, write_rows

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
BART = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64, "dropout": 0.0, "vocab_size": 400,
    "forced_eos_token_id": None,
}  # fmt: skip
# By tokenizer: the model's type, two languages, and what transformers' tokenizer is given of the first text.
KINDS = {
    "MBartTokenizer": ("mbart", "en_XX", "de_DE", "good thing"), "NllbTokenizer": ("m2m_100", "eng_Latn", "deu_Latn", "good thing"),
    "MBart50Tokenizer": ("mbart", "en_XX", "de_DE", "good thing"), "M2M100Tokenizer": ("m2m_100", "en", "de", "good thing"),
    "MarianTokenizer": ("marian", None, "de", ">>de<< good thing"),
}  # fmt: skip
LENGTHS = Lengths(32, 32)


@functools.cache
def tokenizer(kind: str):
    """A tokenizer of a few words, with all languages of its kind."""
    folder, lines = tempfile.mkdtemp(), (f"good thing {i}, bad thing, gut und schlecht {7 * i}" for i in range(99))
    Path(folder, "text").write_text("\n".join(lines))
    sentencepiece.SentencePieceTrainer.train(
        input=f"{folder}/text", model_prefix=f"{folder}/m", vocab_size=60, hard_vocab_limit=False, minloglevel=2
    )
    model = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/m.model")
    pieces = [model.id_to_piece(i) for i in range(3, model.vocab_size())]
    begin = ["</s>", "<unk>", ">>de<<", ">>fr<<", "<pad>"] if kind == "MarianTokenizer" else SPECIAL
    ids = {piece: i for i, piece in enumerate([*begin, *pieces])}
    Path(folder, "vocab.json").write_text(json.dumps(ids))
    make = getattr(transformers, kind)
    if kind.startswith("MBart"):
        return make(vocab=[(piece, 0.0) for piece in ids])
    if kind == "NllbTokenizer":
        return make(vocab={**ids, **{c: len(ids) + i for i, c in enumerate("dghtu") if c not in ids}}, merges=[])
    files = [f"{folder}/m.model"] * 2 + [f"{folder}/vocab.json"]
    return make(*files) if kind == "MarianTokenizer" else make(files[2], files[0])


def encoded(kind: str, *languages):
    """`(model, encoding)` in languages, by default the kind's two."""
    made, (model_type, source, target, _) = tokenizer(kind), KINDS[kind]
    set_seed(0)
    start = made.pad_token_id if kind == "MarianTokenizer" else made.eos_token_id
    ids = {f"{name}_token_id": getattr(made, f"{name}_token_id") for name in ("pad", "eos", "bos")}
    model = AutoModelForSeq2SeqLM.from_config(
        AutoConfig.for_model(model_type, **BART, **ids, decoder_start_token_id=start)
    )
    for parameter in model.parameters():
        parameter.data.mul_(4 if parameter.ndim > 1 else 1)  # answers differ from row to row
    return model.eval(), encoding_for(model, made, LENGTHS, None, Languages(*(languages or (source, target))))


def answers(model, encoding, texts, languages=None, count: int = 5) -> list:
    answerer = answerer_for(model, encoding.tokenizer)
    answerer.given = encoding.given
    config = GenerationConfig(max_new_tokens=count, do_sample=False, num_beams=1)
    labels = encoding.answers([""] * len(texts), languages)
    return [ids for ((ids, _),) in answerer.generate(encoding.prompts(texts, languages), config, labels=labels)]


class OneLanguageTest(parameterized.TestCase):
    @parameterized.parameters(*KINDS)
    def test_ids_logits_and_answers_are_transformers_own(self, kind):
        model, encoding = encoded(kind)
        made, (_, source, target, text) = encoding.tokenizer, KINDS[kind]
        batch = Seq2SeqCollator(made.pad_token_id, model.config.decoder_start_token_id)(
            [{"input_ids": encoding.prompts(["good thing"])[0], "labels": encoding.answers(["gut und"])[0]}]
        )
        made.src_lang, made.tgt_lang = source, target
        theirs = made(text, text_target="gut und", return_tensors="pt")
        self.assertEqual(batch["input_ids"].tolist(), theirs["input_ids"].tolist())
        self.assertEqual(batch["labels"].tolist(), theirs["labels"].tolist())
        labels = batch.pop("labels")
        torch.testing.assert_close(model(**batch).logits, model(**theirs).logits, rtol=0, atol=0)
        self.assertEqual(encoding.texts(labels.tolist())[0].split(" ", encoding.given)[-1], "gut und")
        found = answers(model, encoding, ["good thing"])[0]
        del theirs["labels"]  # what a saved model's settings make plain transformers write
        written = model.generate(**theirs, max_new_tokens=5 + encoding.given, do_sample=False, num_beams=1)[0].tolist()
        self.assertEqual(found, written[1 + encoding.given :])


class LanguagesOfRowsTest(parameterized.TestCase):
    def test_every_row_is_read_and_answered_as_it_is_alone(self):
        rows = {"text": ["good", "bad thing", "good"], "lang": ["deu_Latn", "fra_Latn", "fra_Latn"]}
        entry = {**load_task("mini", "sentiment").entry, "text_column_name": "text", "prefix": "", "labels": None}
        task = Task("own", "x", entry | {"label_column_name": "text", "metric_names": [], "metric_to_optimize": None})
        model, encoding = encoded("NllbTokenizer", "eng_Latn", None, None, "lang")
        found = encoding.rows(rows, task, "train")
        alone = [
            LanguageEncoding(encoding.tokenizer, LENGTHS, languages=Languages("eng_Latn", c)) for c in rows["lang"]
        ]
        for i, (text, one) in enumerate(zip(rows["text"], alone, strict=True)):
            self.assertEqual([found["input_ids"][i]], one.prompts([text]))
            self.assertEqual([found["labels"][i]], one.answers([text]))
        pairs = [("eng_Latn", code) for code in rows["lang"]]
        together = answers(model, encoding, rows["text"], pairs)
        self.assertEqual(together, [answers(model, one, [text])[0] for text, one in zip(rows["text"], alone)])
        self.assertIsNone(model.generation_config.forced_bos_token_id)
        with exits_with(65, "--target_lang_column lang: a row has no such column; it has text"):
            encoding.rows({"text": ["good"]}, task, "train")
        with exits_with(78, "--target_lang: unknown language .*'xx'"):
            encoding.rows({"text": ["good"], "lang": ["xx"]}, task, "train")
        with exits_with(78, "choices must be in one language"):
            encoding.choices(["good", "bad"])

    @parameterized.parameters(
        ("NllbTokenizer", ("eng_Latn", "deu_Lat"), "--target_lang: .*'deu_Lat'; did you mean deu_Latn"),
        ("MBartTokenizer", ("en_XX", None, None, "lang"), "writes one language: --target_lang"),
    )
    def test_what_a_tokenizer_cannot_is_refused(self, kind, languages, message):
        with exits_with(78, message):
            encoded(kind, *languages)

    def test_a_t5_has_no_languages(self):
        model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model("t5", d_model=8, d_kv=4, d_ff=8, num_layers=1))
        self.assertIs(type(encoding_for(model, tiny_tokenizer(), LENGTHS)), TextEncoding)
        with exits_with(78, "--target_lang de: T5Tokenizer has no languages"):
            encoding_for(model, tiny_tokenizer(), LENGTHS, None, Languages(target_lang="de"))

    @pytest.mark.slow
    def test_a_run_learns_what_to_write_in_which_language_and_keeps_how(self):
        place = Path(tempfile.mkdtemp())
        tokenizer("NllbTokenizer").save_pretrained(place / "nllb")
        words = {"deu_Latn": "gut und", "eng_Latn": "good thing"}
        rows = [{"text": f"good {i}", "lang": code, "to": word} for i in range(8) for code, word in words.items()]
        write_rows(place / "rows.jsonl", rows)
        shape = ",".join(
            f"{name}={value}" for name, value in BART.items() if name not in ("vocab_size", "forced_eos_token_id")
        )
        flags = (
            f"--config_name=m2m_100 --config_overrides={shape} --tokenizer_name={place / 'nllb'} --data_format=jsonl "
            f"--train_file={place / 'rows.jsonl'} --validation_file={place / 'rows.jsonl'} --text_column=text "
            f"--target_column=to --metrics=exact_match --source_lang=eng_Latn --target_lang_column=lang --max_steps=90 "
            f"--learning_rate=1e-2 --eval_strategy=no --use_cpu --disable_tqdm=True --output_dir={place / 'run'}"
        )
        fine_tune_t5.main(flags.split())
        again = ["--eval_only"]
        model = [f"--model_name_or_path={place / 'run'}", f"--output_dir={place / 'again'}"]
        kept = [
            flag
            for flag in flags.split()[2:-1]
            if "max_steps" not in flag
            and "rate" not in flag
            and "config" not in flag
            and "source_lang" not in flag
            and "tokenizer" not in flag
        ]
        self.assertEqual(fine_tune_t5.main(later_wins(kept, again, model))["tasks"]["rows"], {"exact_match": 100.0})
        asked = [f"--input={place / 'rows.jsonl'}", f"--output={place / 'out.jsonl'}", "--use_cpu"]
        run_cli("predict", model[0], *asked, "--dataset_name=rows")
        self.assertEqual([line["prediction"] for line in read_rows(place / "out.jsonl")], [row["to"] for row in rows])
