"""Languages of mBART, M2M100, NLLB and Marian: ids, loss and answers are transformers' own, also row by row."""

import contextlib
import functools
import io
import json
import re
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch
import transformers
from absl.testing import parameterized
from support import later_wins
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, set_seed

import fine_tune_t5
from t5suite import FineTuner
from t5suite.testing import encode_rows, exits_with, make_task, read_rows, run_cli, served_model, tiny_model, write_rows

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
BART = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64, "dropout": 0.0, "vocab_size": 400,
    "forced_eos_token_id": None,
}  # fmt: skip
DROPS_NOTHING = {"attention_dropout": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
# By tokenizer: the model's type, two languages, and what transformers' tokenizer is given of the first text.
KINDS = {
    "MBartTokenizer": ("mbart", "en_XX", "de_DE", "good thing"), "NllbTokenizer": ("m2m_100", "eng_Latn", "deu_Latn", "good thing"),
    "MBart50Tokenizer": ("mbart", "en_XX", "de_DE", "good thing"), "M2M100Tokenizer": ("m2m_100", "en", "de", "good thing"),
    "MarianTokenizer": ("marian", None, "de", ">>de<< good thing"),
}  # fmt: skip
TEXTS = make_task("texts", prefix="", labels=None, metric_names=[], metric_to_optimize=None)


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


def model_of(kind: str):
    """A model with random weights for the kind's tokenizer."""
    its_tokenizer, model_type = tokenizer(kind), KINDS[kind][0]
    set_seed(0)
    start = its_tokenizer.pad_token_id if kind == "MarianTokenizer" else its_tokenizer.eos_token_id
    sizes = {"vocab_size": len(its_tokenizer)} if kind == "MarianTokenizer" else {}  # it reads no other ids
    ids = {f"{name}_token_id": getattr(its_tokenizer, f"{name}_token_id") for name in ("pad", "eos", "bos")}
    model = AutoModelForSeq2SeqLM.from_config(
        AutoConfig.for_model(model_type, **{**BART, **DROPS_NOTHING, **ids, **sizes}, decoder_start_token_id=start)
    )
    for parameter in model.parameters():
        parameter.data.mul_(4 if parameter.ndim > 1 else 1)  # answers differ from row to row
    return model.eval()


def encode(kind: str, rows, model=None, **languages) -> list[dict]:
    model = model_of(kind) if model is None else model
    return encode_rows(rows, TEXTS, model=model, tokenizer=tokenizer(kind), **languages)


def tuner_of(kind: str, rows, model=None, **flags) -> FineTuner:
    """A run of rows with the columns text and label, one row a step."""
    settings = {
        "text_column": "text", "target_column": "label", "metrics": "none", "output_dir": tempfile.mkdtemp() + "/run",
        "per_device_train_batch_size": 1, "max_steps": 1, "learning_rate": 0.0, "logging_steps": 1, "use_cpu": True,
        "quiet": True, "no_eval": True, "save_strategy": "no",
    }  # fmt: skip
    model = model_of(kind) if model is None else model
    return FineTuner(model, rows, tokenizer=tokenizer(kind), **{**settings, **flags})


class OneLanguageTest(parameterized.TestCase):
    ROWS = [{"text": "good thing", "label": "gut und"}]

    def of_transformers(self, kind):
        """What transformers' tokenizer makes of the row."""
        its_tokenizer, (_, source, target, text) = tokenizer(kind), KINDS[kind]
        if source is not None:  # Marian's has no such attributes
            its_tokenizer.src_lang, its_tokenizer.tgt_lang = source, target
        return its_tokenizer(text, text_target="gut und", return_tensors="pt")

    def languages(self, kind) -> dict:
        _, source, target, _ = KINDS[kind]
        return {"target_lang": target} | ({"source_lang": source} if source else {})

    @parameterized.parameters(*KINDS)
    def test_ids_are_transformers_own(self, kind):
        theirs = self.of_transformers(kind)
        (example,) = encode(kind, self.ROWS, **self.languages(kind))
        self.assertEqual([example["input_ids"]], theirs["input_ids"].tolist())
        self.assertEqual([example["labels"]], theirs["labels"].tolist())

    @parameterized.parameters(*KINDS)
    @pytest.mark.quick_cases(1)
    def test_answers_are_transformers_own(self, kind):
        """What a saved model's settings make plain transformers write, without the mark of the language."""
        its_tokenizer, model = tokenizer(kind), model_of(kind)
        (answer,) = tuner_of(kind, self.ROWS, model, **self.languages(kind)).predict(["good thing"], max_new_tokens=5)
        theirs = self.of_transformers(kind)
        del theirs["labels"]
        language = its_tokenizer.convert_tokens_to_ids(KINDS[kind][2])
        is_marked = model.generation_config.forced_bos_token_id is not None
        count = 5 + is_marked
        (written,) = model.eval().generate(**theirs, max_new_tokens=count, do_sample=False, num_beams=1).tolist()
        if is_marked:
            self.assertIn(written[1], (language, model.generation_config.forced_bos_token_id))
        ids = written[1 + is_marked :]
        ids = ids[: ids.index(its_tokenizer.eos_token_id)] if its_tokenizer.eos_token_id in ids else ids
        dropped = (its_tokenizer.pad_token_id, its_tokenizer.bos_token_id)
        text = its_tokenizer.decode([i for i in ids if i not in dropped], clean_up_tokenization_spaces=False)
        self.assertEqual(answer, text)

    @parameterized.parameters("NllbTokenizer", "MBart50Tokenizer", "M2M100Tokenizer", "MBartTokenizer")
    @pytest.mark.quick_cases(1)
    @torch.no_grad()
    def test_the_score_of_an_answer_is_its_log_probability_after_its_language(self, kind):
        model, theirs = model_of(kind), self.of_transformers(kind)
        labels = theirs.pop("labels")
        tuner = tuner_of(kind, self.ROWS, model, **self.languages(kind))
        beams = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 5}
        (answers,) = tuner.predict(["good thing"], return_scores=True, **beams)
        start = model.generation_config.decoder_start_token_id or model.config.decoder_start_token_id
        lead = [start] if kind == "MBartTokenizer" else [start, int(labels[0, 0])]
        rows = model.eval().generate(**theirs, decoder_input_ids=torch.tensor([lead]), **beams).tolist()
        expected = []
        for row in rows:
            ids = row[: row.index(2, len(lead)) + 1] if 2 in row[len(lead) :] else row
            log_probs_TV = model(**theirs, decoder_input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
            steps = range(len(lead), len(ids))
            expected.append(sum(log_probs_TV[place - 1, ids[place]].item() for place in steps))
        np.testing.assert_allclose([answer.score for answer in answers], expected, atol=1e-3)

    @parameterized.parameters(*KINDS)
    @pytest.mark.quick_cases(1)
    def test_the_loss_is_transformers_own(self, kind):
        model, theirs = model_of(kind), self.of_transformers(kind)
        with torch.no_grad():
            expected = float(model_of(kind)(**theirs).loss)
        tuner = tuner_of(kind, self.ROWS, model, **self.languages(kind))
        tuner.train()
        (loss,) = (line["train/loss"] for line in tuner.history if "train/loss" in line)
        self.assertAlmostEqual(loss / expected, 1.0, delta=2e-6)

    @parameterized.parameters(*(kind for kind in KINDS if kind != "MarianTokenizer"))
    @pytest.mark.quick_cases(1)
    def test_the_tokenizer_of_a_run_reads_in_plain_transformers_as_it_was_trained(self, kind):
        """Its source is not the language that the tokenizer reads without settings."""
        _, default, source, text = KINDS[kind]
        tuner = tuner_of(kind, self.ROWS, source_lang=source, target_lang=default)
        tuner.train()
        self.addCleanup(setattr, tokenizer(kind), "src_lang", default)
        expected, its_tokenizer = tokenizer(kind), AutoTokenizer.from_pretrained(tuner.args.output_dir)
        for code in (default, source):
            expected.src_lang = code
            self.assertEqual(its_tokenizer(text) == expected(text), code == source)

    @parameterized.product(kind=("M2M100Tokenizer", "NllbTokenizer", "MBart50Tokenizer"), share_rows=(False, True))
    @pytest.mark.quick_cases(1)
    def test_the_python_of_a_card_reads_and_writes_the_languages_of_the_first_row(self, kind, share_rows):
        """Their codes are there, also where a card shows no row."""
        _, english, german, text = KINDS[kind]
        rows = [{"text": text, "label": "gut und", "from": german, "to": english}] * 2
        columns = {"source_lang_column": "from", "target_lang_column": "to", "share_rows": share_rows}
        tokenizer(kind).src_lang = english
        tuner = tuner_of(kind, {"train": rows, "validation": rows}, no_eval=False, **columns)
        tuner.train()
        folder = Path(tuner.args.output_dir)
        (python,) = re.findall(r"^```python\n(.*?)^```", (folder / "README.md").read_text(), re.S | re.M)
        names = {}
        with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
            exec(python, names)
        its_tokenizer, inputs = tokenizer(kind), names["inputs"]
        its_tokenizer.src_lang = german
        self.assertEqual(inputs["input_ids"].tolist(), [its_tokenizer(text if share_rows else "...")["input_ids"]])
        its_tokenizer.src_lang = english
        language = next(i for i in its_tokenizer("")["input_ids"] if i != its_tokenizer.eos_token_id)
        self.assertEqual(names["model"].generate(**inputs, max_new_tokens=2)[0, 1].item(), language)


def plain_text(answer: str, kind: str) -> str:
    """An answer without what plain transformers leaves out: languages' codes, and pieces that are not known."""
    its_tokenizer = tokenizer(kind)
    codes = getattr(its_tokenizer, "lang_code_to_token", {}).values()
    for left_out in (*its_tokenizer.all_special_tokens, *codes):
        answer = answer.replace(left_out, " ")
    return " ".join(answer.split())


class AdapterTest(parameterized.TestCase):
    """The folder of an adapter has no settings of generation: its base is another's, and names no language."""

    @parameterized.product(kind=(*KINDS,), evaluates=(False, True))
    @pytest.mark.quick_cases(3)
    def test_its_card_and_its_export_write_the_language_that_predict_does(self, kind, evaluates):
        _, source, target, text = KINDS[kind]
        config = model_of(kind).config
        config.tie_word_embeddings = False  # answers have several pieces
        set_seed(1)
        model = AutoModelForSeq2SeqLM.from_config(config)
        for parameter in model.parameters():
            parameter.data.mul_(6 if parameter.ndim > 1 else 1)
        base, exported = tempfile.mkdtemp(), tempfile.mkdtemp() + "/exported"
        model.save_pretrained(base)
        tokenizer(kind).save_pretrained(base)
        rows = [{"text": text.removeprefix(">>de<< "), "label": "gut und"}] * 2
        flags = {"target_lang": target, "no_eval": not evaluates, "generation_max_length": 5, "share_rows": True}
        flags |= {"source_lang": source} if source else {}
        tuner = tuner_of(kind, {"train": rows, "validation": rows}, base, adapter="lora", **flags)
        tuner.train()
        folder = tuner.args.output_dir
        run_cli("export", "--model_name_or_path", folder, "--output_dir", exported)
        expected = plain_text(FineTuner(folder, quiet=True, use_cpu=True).predict(rows[0], max_new_tokens=5), kind)
        self.assertNotEmpty(expected)
        python = re.search(r"^```python\n(.*?)^```", Path(folder, "README.md").read_text(), re.S | re.M)[1]
        with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(python.replace("'...'", repr(text)), {})
        self.assertStartsWith(plain_text(printed.getvalue(), kind), expected)
        plain, its_tokenizer = AutoModelForSeq2SeqLM.from_pretrained(exported), AutoTokenizer.from_pretrained(exported)
        ids = plain.generate(**its_tokenizer(text, return_tensors="pt"), max_new_tokens=20, do_sample=False)[0]
        answer = plain_text(its_tokenizer.decode(ids, skip_special_tokens=True), kind)
        self.assertStartsWith(answer, expected)

    def test_its_export_needs_no_flags_of_languages_where_its_training_had_none(self):
        base = str(tuner_of("NllbTokenizer", OneLanguageTest.ROWS, target_lang="fra_Latn").save(tempfile.mkdtemp()))
        tuner = tuner_of("NllbTokenizer", OneLanguageTest.ROWS, base, adapter="lora")
        tuner.train()
        exported = tempfile.mkdtemp() + "/exported"
        with contextlib.redirect_stderr(io.StringIO()) as messages:
            run_cli("export", "--model_name_or_path", tuner.args.output_dir, "--output_dir", exported)
        self.assertNotIn("--source_lang", messages.getvalue())
        settings = AutoModelForSeq2SeqLM.from_pretrained(exported).generation_config
        self.assertEqual(settings.forced_bos_token_id, tuner.model.generation_config.forced_bos_token_id)


class LanguagesOfRowsTest(parameterized.TestCase):
    ROWS = [
        {"text": text, "label": text, "lang": code}
        for text, code in (("good", "deu_Latn"), ("bad thing", "fra_Latn"), ("good", "fra_Latn"))
    ]
    COLUMN = {"source_lang": "eng_Latn", "target_lang_column": "lang"}

    def test_every_row_is_read_as_it_is_alone(self):
        alone = [
            encode("NllbTokenizer", [row], source_lang="eng_Latn", target_lang=row["lang"])[0] for row in self.ROWS
        ]
        self.assertEqual(encode("NllbTokenizer", self.ROWS, **self.COLUMN), alone)
        rows = [{**row, "meta": {"lang": row["lang"]}} for row in self.ROWS]
        self.assertEqual(encode("NllbTokenizer", rows, **self.COLUMN | {"target_lang_column": "meta.lang"}), alone)

    def test_every_row_is_answered_as_it_is_alone(self):
        model = model_of("NllbTokenizer")
        tuner = tuner_of("NllbTokenizer", self.ROWS, model, **self.COLUMN)
        together = tuner.predict(self.ROWS, max_new_tokens=5)
        self.assertIsNone(model.generation_config.forced_bos_token_id)
        with exits_with(78, "choices must be in one language"):
            tuner.predict_labels(self.ROWS, labels=["good", "bad"])
        alone = []
        for row in self.ROWS:
            one = tuner_of("NllbTokenizer", self.ROWS, source_lang="eng_Latn", target_lang=row["lang"])
            alone += one.predict([row], max_new_tokens=5)
        self.assertEqual(together, alone)

    def test_without_an_evaluated_row_there_is_no_python_that_would_need_its_language(self):
        tuner = tuner_of("NllbTokenizer", self.ROWS, adapter="prompt_tuning", **self.COLUMN)
        tuner.train()
        self.assertNotIn("```python", Path(tuner.args.output_dir, "README.md").read_text())

    @parameterized.parameters(
        ({}, 65, "--target_lang_column lang: a row has no such column; it has text"),
        ({"lang": None}, 65, "--target_lang_column lang: the column is empty in a row"),
        ({"lang": ""}, 65, "--target_lang_column lang: the column is empty in a row"),
        ({"lang": ["deu_Latn"]}, 65, "--target_lang_column lang: a row has .'deu_Latn'. there"),
        ({"lang": "deu_Lat"}, 65, "column 'lang' .--target_lang_column. holds 'deu_Lat', .*did you mean deu_Latn"),
    )
    def test_a_row_without_a_known_language_is_refused(self, language, code, message):
        with exits_with(code, message):
            encode("NllbTokenizer", [{"text": "good", "label": "gut", **language}], **self.COLUMN)

    def test_an_unknown_language_of_a_flag_is_refused_as_that_also_beside_a_column(self):
        with exits_with(78, "--target_lang: .*'german'"):
            encode("NllbTokenizer", self.ROWS, target_lang="german", **self.COLUMN)

    @parameterized.parameters("german", None)
    def test_the_place_of_a_row_without_a_known_language_is_named(self, code):
        """In training, in evaluation, and where rows are answered."""
        rows = [self.ROWS[0], {**self.ROWS[1], "lang": code}]
        with exits_with(65, "^train row 1: .*target_lang_column"):
            tuner_of("NllbTokenizer", rows, **self.COLUMN).train()
        splits = {"train": self.ROWS, "validation": rows}
        with exits_with(65, "^validation row 1: .*target_lang_column"):
            tuner_of("NllbTokenizer", splits, no_eval=False, **self.COLUMN).train()
        tuner = tuner_of("NllbTokenizer", self.ROWS, **self.COLUMN)
        with exits_with(65, "^row 1: .*target_lang_column"):
            tuner.predict(rows)
        model = tuner.save(Path(tempfile.mkdtemp()) / "model")
        flags = [f"--input={write_rows(model / 'rows.jsonl', rows)}", *(f"--{k}={v}" for k, v in self.COLUMN.items())]
        with exits_with(65, r"rows\.jsonl:2: .*target_lang_column"):
            run_cli("predict", f"--model_name_or_path={model}", "--use_cpu", *flags)

    @parameterized.parameters(
        ("NllbTokenizer", {"source_lang": "eng_Latn", "target_lang": "deu_Lat"},
         "--target_lang: .*'deu_Lat'; did you mean deu_Latn"),
        ("MBartTokenizer", {"source_lang": "en_XX", "target_lang_column": "lang"}, "writes one language: --target_lang"),
    )  # fmt: skip
    def test_what_a_tokenizer_cannot_is_refused(self, kind, languages, message):
        with exits_with(78, message):
            encode(kind, self.ROWS, **languages)

    @parameterized.parameters(*KINDS)
    @pytest.mark.quick_cases(1)
    def test_what_is_cut_of_a_text_is_counted_with_its_languages_tokens(self, kind):
        _, source, target, text = KINDS[kind]
        languages = {"target_lang": target} | ({"source_lang": source} if source else {})
        rows = [{"text": "good thing " * 9, "label": "gut"}, {"text": "good", "label": "gut"}]
        model = tuner_of(kind, rows, **languages).save(Path(tempfile.mkdtemp()) / "model")
        its_tokenizer = tokenizer(kind)
        if source is not None:
            its_tokenizer.src_lang, its_tokenizer.tgt_lang = source, target
        of_transformers = its_tokenizer(text.replace("good thing", "good thing " * 9))["input_ids"]
        write_rows(f"{model}/rows.jsonl", [{"text": row["text"]} for row in rows])
        files = [f"--input={model}/rows.jsonl", f"--output={model}/out.jsonl", "--use_cpu", "--max_new_tokens=1"]
        flags_of_languages = [f"--{name}={code}" for name, code in languages.items()]
        run_cli("predict", f"--model_name_or_path={model}", *files, "--max_source_length=12", *flags_of_languages)
        counts = [line.get("cut_tokens") for line in read_rows(f"{model}/out.jsonl")]
        self.assertEqual(counts, [len(of_transformers) - 12, None])

    def test_a_t5_has_no_languages(self):
        self.assertEqual(encode_rows(self.ROWS, TEXTS, model=tiny_model()), encode_rows(self.ROWS, TEXTS))
        with exits_with(78, "--target_lang de: T5Tokenizer has no languages"):
            encode_rows(self.ROWS, TEXTS, model=tiny_model(), target_lang="de")

    def test_a_server_of_a_model_with_columns_of_languages_answers_rows_and_says_so_to_prompts(self):
        tuner = tuner_of("NllbTokenizer", self.ROWS, **self.COLUMN)
        folder = tuner.save(Path(tempfile.mkdtemp()) / "model")
        flags = [f"--{name}={value}" for name, value in self.COLUMN.items()]
        with served_model(folder, "--use_cpu", *flags) as url:
            body = {"rows": self.ROWS, "max_new_tokens": 5}
            lines = json.load(urllib.request.urlopen(f"{url}/predict", json.dumps(body).encode()))["answers"]
            self.assertEqual([line["prediction"] for line in lines], tuner.predict(self.ROWS, max_new_tokens=5))
            with self.assertRaises(urllib.error.HTTPError) as refusal:
                urllib.request.urlopen(f"{url}/v1/completions", b'{"prompt": "good"}')
        self.assertEqual(refusal.exception.code, 400)
        self.assertEqual(
            json.load(refusal.exception)["error"]["message"],
            "this model reads a row's language from column lang: POST /predict with such rows",
        )

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
        flags_of_rows = [
            flag
            for flag in flags.split()[2:-1]
            if "max_steps" not in flag
            and "rate" not in flag
            and "config" not in flag
            and "source_lang" not in flag
            and "tokenizer" not in flag
        ]
        self.assertEqual(
            fine_tune_t5.main(later_wins(flags_of_rows, again, model))["tasks"]["rows"], {"exact_match": 100.0}
        )
        files = [f"--input={place / 'rows.jsonl'}", f"--output={place / 'out.jsonl'}", "--use_cpu"]
        run_cli("predict", model[0], *files, "--dataset_name=rows")
        self.assertEqual([line["prediction"] for line in read_rows(place / "out.jsonl")], [row["to"] for row in rows])
