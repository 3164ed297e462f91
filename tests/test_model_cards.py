"""Model cards: the hub reads them, their numbers are the results', they tell no secrets, and their code runs."""

import contextlib
import dataclasses
import functools
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import pytest
import torch
import yaml
from absl.testing import parameterized
from hub_repositories import files_of, nllb_repository
from hub_server import Fault, HubServer, failing
from huggingface_hub import ModelCard, parse_eval_result_entries
from odd_tokenizers import byte_tokenizer, line_end_tokenizer, word_tokenizer
from PIL import Image
from report_runs import reported
from support import folder as new_folder
from tiny_predictor import TINY, random_model, saved
from transformers import ByT5Tokenizer

import fine_tune_t5
import pre_train_t5
from t5suite import FineTuner, load_task
from t5suite.constants import DATASET_VALS, MIXTURES
from t5suite.models.adapter_kinds import ADAPTERS
from t5suite.reports import card_usage, cards, learning_curves, shared_files
from t5suite.tasks.formatters import FORMATTERS
from t5suite.tasks.languages import Languages
from t5suite.tasks.task_card import HEADED
from t5suite.testing import example_row, make_task, read_rows, run_cli, save_model, tiny_model, tiny_run, write_rows

ROOT = Path(__file__).parent.parent
TOKEN = "hf_TokenOfNobodyAtAllForThisTestOnly"
# The hub's names of metrics, where ours differ.
HUB_METRICS = {"pearson": "pearsonr", "spearman": "spearmanr", "mean_3class_f1": "f1", "bleu": "sacrebleu"}
PAIRS = [{"sentence1": f"It rains {i}.", "sentence2": f"It is wet {i % 3}."} for i in range(12)]
GLUE_ROWS = {
    "rte": [{**pair, "label": i % 2} for i, pair in enumerate(PAIRS)],
    "stsb": [{**pair, "label": i % 5 + 0.25} for i, pair in enumerate(PAIRS)],
}


def printed_by(folder, python: str) -> str:
    """What a block of a card prints where its model is."""
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as output:
        exec(python, {})
    return output.getvalue()


def card_of(directory) -> ModelCard:
    return ModelCard((Path(directory) / "README.md").read_text())


def score_rows(card: ModelCard, column: int = 4) -> dict:
    """`{(name, metric): value}` of a card's table, or what another column has."""
    body = card.text.split("## Scores")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in body.splitlines() if line.startswith("| ")]
    return {(row[0], row[3]): row[column] for row in rows[1:]}


def indexed_scores(card: ModelCard) -> dict:
    """`{(task, the hub's name of the metric): value}` of a card's metadata."""
    return {(each.task_name, each.metric_type): each.metric_value for each in card.data.eval_results or []}


def expected_index(results: dict) -> dict:
    """What the metadata must say of `results.json`, which has null for a NaN."""
    return {
        (task, HUB_METRICS.get(metric, metric)): value
        for task, metrics in results["tasks"].items()
        for metric, value in metrics.items()
        if value is not None
    }


def finished(model=None, data=None, **flags):
    """A run of one update, for its card."""
    few = {"max_steps": 1, "max_train_samples": 8, "max_eval_samples": 8, "eval_method": "loss"}
    return tiny_run(model, data, **{**few, "save_strategy": "no", **flags})


def unscored(model=None, **flags):
    """Such a run without an evaluation."""
    return finished(model, **{**flags, "eval_strategy": "no"})


def with_facts(model=None, **flags):
    """Such a run, and the facts from which its card is made."""
    with mock.patch.object(cards, "write_card", wraps=cards.write_card) as write_card:
        run = finished(model, **flags)
    return run, write_card.call_args.args[1]


@functools.cache
def cached_model() -> str:
    """A model in a folder of the hub's cache."""
    return str(save_model(new_folder() / "models--google--t5-v1_1-small" / "snapshots" / "73fb5d"))


@functools.cache
def mirror_run():
    """A run on GLUE's rows in a mirror."""
    data = new_folder()
    for name, rows in GLUE_ROWS.items():
        for split in ("train", "validation"):
            write_rows(data / "glue" / name / f"{split}.jsonl", rows)
    flags = {"benchmark": "glue", "dataset_name": "rte,stsb", "data_dir": str(data), "eval_method": "score"}
    return finished(cached_model(), **flags)


@functools.cache
def file_run():
    """A run on files, with a secret in the first row, from a model in a folder whose name could be one of the hub."""
    place = new_folder()
    first, *others = GLUE_ROWS["rte"]
    path = write_rows(place / "mine.jsonl", [{**first, "sentence1": f"It rains {TOKEN}."}, *others])
    files = {"train_file": str(path), "validation_file": str(path), "teacher": str(save_model(place / "teacher"))}
    files |= {"run_name": f"{TOKEN}\x1b[2J\x9b"}
    task = {"benchmark": "glue", "dataset_name": "rte"}
    with contextlib.chdir(place):
        save_model(place / "owner" / "name")
        return finished("owner/name", **task, **files, share_rows=True)


class MetadataTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_the_index_has_data_and_numbers_as_they_are(self):
        run = mirror_run()
        data = card_of(run.directory).data
        self.assertEqual((data.base_model, data.to_dict()["base_model_relation"]), ("google/t5-v1_1-small", "finetune"))
        self.assertEqual((data.language, data.license, data.datasets), (["en"], "unknown", ["nyu-mll/glue"]))
        self.assertEqual(data.library_name, "transformers")
        sources = {(each.dataset_type, each.dataset_config, each.dataset_split) for each in data.eval_results}
        expected = {("nyu-mll/glue", name, "validation") for name in GLUE_ROWS}
        self.assertEqual(sources, expected)

    @pytest.mark.slow
    def test_the_base_of_a_model_in_a_folder_is_the_one_that_its_card_names(self):
        base, _, facts = run_from_a_folder()
        (base / "README.md").write_text("---\nbase_model: google/mt5-small\n---\n# mT5, trimmed\n")
        directory = new_folder()
        cards.write_card(directory, facts)
        data = card_of(directory).data
        self.assertEqual((data.base_model, data.to_dict()["base_model_relation"]), ("google/mt5-small", "finetune"))

    @pytest.mark.slow
    def test_an_adapter_is_one_of_its_base(self):
        data = card_of(tiny_run(cached_model(), dataset_name="sentiment", adapter="lora", max_steps=1).directory).data
        relation = data.to_dict()["base_model_relation"]
        self.assertEqual((data.library_name, data.base_model, relation), ("peft", "google/t5-v1_1-small", "adapter"))

    @pytest.mark.slow
    def test_every_number_is_that_of_the_results(self):
        run = mirror_run()
        results = json.loads((run.directory / "results.json").read_text())
        card = card_of(run.directory)
        self.assertEqual(indexed_scores(card), expected_index(results))
        values = {
            (task, metric): value for task, of_task in results["tasks"].items() for metric, value in of_task.items()
        }
        ((name, average),) = results["averages"].items()
        table = score_rows(card)
        averages = [value for (row, metric), value in table.items() if metric == "average" and name in row]
        self.assertEqual(averages, [f"{average:.2f}"])
        shown = {key: value for key, value in table.items() if key[1] != "average"}
        self.assertEqual(shown, {key: "nan" if value is None else f"{value:.2f}" for key, value in values.items()})
        self.assertIn(("stsb", "pearson"), shown)

    @pytest.mark.slow
    def test_rows_of_a_file_and_a_model_in_a_folder_are_not_the_hubs(self):
        data = card_of(file_run().directory).data
        self.assertEqual((data.eval_results[0].dataset_type, data.datasets), ("glue-rte", None))
        self.assertIsNone(data.base_model)

    def test_each_half_of_mnli_is_named_by_its_own_split(self):
        pairs = [
            {"premise": pair["sentence1"], "hypothesis": pair["sentence2"], "label": i % 3}
            for i, pair in enumerate(PAIRS)
        ]
        data = new_folder()
        for split in ("train", "validation_matched", "validation_mismatched"):
            write_rows(data / "glue" / "mnli" / f"{split}.jsonl", pairs)
        run = finished(benchmark="glue", dataset_name="mnli", data_dir=str(data), eval_method="score")
        results = card_of(run.directory).data.eval_results
        splits = {result.task_name: result.dataset_split for result in results}
        self.assertEqual(splits, {f"mnli_{half}": f"validation_{half}" for half in ("matched", "mismatched")})

    def test_a_file_in_place_of_several_splits_is_not_the_hubs(self):
        pairs = [
            {"premise": pair["sentence1"], "hypothesis": pair["sentence2"], "label": i % 3}
            for i, pair in enumerate(PAIRS)
        ]
        path = str(write_rows(new_folder() / "mine.jsonl", pairs))
        run = finished(benchmark="glue", dataset_name="mnli", train_file=path, validation_file=path)
        data = card_of(run.directory).data
        self.assertEqual((data.eval_results[0].dataset_type, data.datasets), ("glue-mnli", None))


@functools.cache
def scored_facts():
    """Of the card of a run on bundled rows."""
    return with_facts(dataset_name="sentiment")[1]


def rewritten(facts, settings=(), directory=None, **changes) -> ModelCard:
    """The card of a run as it would be of other facts; `settings` and changes of the manifest by name."""
    manifest = {**facts.manifest, "settings": {**facts.settings, **dict(settings)}, **changes}
    directory = directory or new_folder()
    cards.write_card(directory, dataclasses.replace(facts, manifest=manifest))
    return card_of(directory)


class DataSetTest(parameterized.TestCase):
    """The hub's data sets on a card: what was trained on, and what each score is of. One run, other facts."""

    FROM_HUB = {"data_format": "hub", "hub_path": "ada/reviews", "hub_name": "en"}

    @parameterized.parameters(
        (FROM_HUB, ["ada/reviews"], ("ada/reviews", "en")),
        ({**FROM_HUB, "validation_file": "mine.csv"}, ["ada/reviews"], ("mini-sentiment", None)),
        ({**FROM_HUB, "train_file": "mine.csv"}, None, ("ada/reviews", "en")),
        ({**FROM_HUB, "hub_path": str(ROOT)}, None, ("mini-sentiment", None)),
    )
    @pytest.mark.quick_cases(4)
    def test_data_sets_are_those_trained_on_and_a_folder_is_none(self, settings, trained_on, scored):
        card = rewritten(scored_facts(), settings)
        self.assertEqual(card.data.datasets, trained_on)
        self.assertEqual({(each.dataset_type, each.dataset_config) for each in card.data.eval_results}, {scored})
        self.assertNotIn(str(ROOT), card.data.to_yaml())

    def test_the_hubs_data_sets_of_pre_training_are_named_without_the_held_out_ones(self):
        files = {"train": ["hub:ada/books@abc:en:train", "notes.txt"], "validation": ["hub:ada/held_out"]}
        data = {name: {"sources": [{"name": file} for file in group]} for name, group in files.items()}
        facts = dataclasses.replace(scored_facts(), objective="span_corruption (T5)")
        card = rewritten(facts, {"train_file": ["hub:ada/news:de"]}, tasks={}, data=data)
        self.assertEqual(card.data.datasets, ["ada/books", "ada/news"])

    def test_two_tasks_of_one_split_have_an_entry_each_in_the_index(self):
        facts = scored_facts()
        (entry,) = facts.tasks.values()
        (scored,) = facts.scored.values()
        tasks = {name: {**entry, "hub_path": "ada/reviews"} for name in ("stars", "topic")}
        results = {**facts.results, "tasks": {"stars": {"accuracy": 25.0}, "topic": {"accuracy": 75.0}}}
        scores = {name: dataclasses.replace(scored, task=name) for name in tasks}
        card = rewritten(dataclasses.replace(facts, results=results, scored=scores), tasks=tasks)
        self.assertEqual(indexed_scores(card), expected_index(results))


class VerifyLineTest(parameterized.TestCase):
    @parameterized.parameters(
        ({}, [], True),
        ({}, ["evaluate:./word_overlap"], False),
        ({"trust_remote_code": True}, [], False),
    )
    @pytest.mark.quick_cases(3)
    def test_a_card_promises_no_verification_that_needs_code_of_the_author(self, settings, metrics, is_promised):
        facts = scored_facts()
        ((name, entry),) = facts.tasks.items()
        directory = new_folder()
        (directory / "config.json").write_text('{"auto_map": {"AutoModel": "modeling_own.OwnModel"}}')
        tasks = {name: {**entry, "metric_names": [*entry["metric_names"], *metrics]}}
        text = rewritten(facts, settings, directory, tasks=tasks).text
        self.assertEqual("t5suite verify ." in text, is_promised)


TRANSLATIONS = [{"translation": {"en": f"It rains {i}.", "de": f"Es regnet {i}."}} for i in range(8)]
OWN_ROWS = [{"text": f"It rains {i}.", "label": f"wet {i % 3}"} for i in range(8)]


@functools.cache
def own_rows() -> dict:
    """Flags of rows of one's own, whose language nobody has said."""
    path = str(write_rows(new_folder() / "rows.jsonl", OWN_ROWS))
    columns = {"text_column": "text", "target_column": "label"}
    return {"data_format": "jsonl", "train_file": path, "validation_file": path, **columns}


class TaskTest(parameterized.TestCase):
    """The hub's task and the languages are those of the run's settings; what no setting names is left out."""

    def assert_task(self, run, tag, languages):
        data = card_of(run.directory).data
        self.assertEqual((data.pipeline_tag, data.language), (tag, languages))

    @parameterized.parameters(
        ({"prefix": "translate English to German: "}, "translation"),
        ({"prefix": "summarize what is translated: "}, "text-generation"),
        ({"prefix": "summarize: "}, "summarization"),
        ({}, "text-generation"),
    )
    @pytest.mark.quick_cases(1)
    def test_own_rows_have_the_task_of_t5s_prefixes_and_no_language(self, flags, tag):
        self.assert_task(unscored(**own_rows(), **flags), tag, None)

    @parameterized.parameters(
        ({"source_id": "en", "target_id": "de"}, ["en", "de"]), ({"target_id": "de"}, None), ({}, None)
    )
    @pytest.mark.quick_cases(1)
    def test_own_translations_have_the_languages_that_flags_name(self, named, languages):
        source, target = named.get("source_id", "s"), named.get("target_id", "t")
        rows = [{"translation": {source: f"It rains {i}.", target: f"Es regnet {i}."}} for i in range(8)]
        path = str(write_rows(new_folder() / "rows.jsonl", rows))
        files = {"data_format": "translation", "train_file": path, "validation_file": path}
        self.assert_task(unscored(**files, **named), "translation", languages)

    def test_a_direction_of_wmt_has_its_two_languages(self):
        data = new_folder()
        for split in ("train", "validation"):
            write_rows(data / "translation" / "wmt14_en_de" / f"{split}.jsonl", TRANSLATIONS)
        run = unscored(benchmark="translation", dataset_name="wmt14_en_de", data_dir=str(data))
        self.assert_task(run, "translation", ["en", "de"])

    def test_what_a_t5_writes_is_text_and_the_language_of_a_file_is_not_known(self):
        self.assert_task(mirror_run(), "text-generation", ["en"])
        self.assert_task(file_run(), "text-generation", None)

    @pytest.mark.slow
    def test_the_language_of_a_benchmark_is_not_that_of_a_file_in_its_place(self):
        rows = [{"sentence": f"Es regnet {i}.", "label": i % 2} for i in range(8)]
        path = str(write_rows(new_folder() / "rows.jsonl", rows))
        _, of_benchmark, _ = run_from_a_folder()
        of_file = unscored(dataset_name="sentiment", train_file=path)
        for run, languages in ((of_benchmark, ["en"]), (of_file, None)):
            self.assertEqual(card_of(run.directory).data.language, languages)

    @pytest.mark.slow
    def test_languages_of_a_model_of_many_are_those_of_the_flags(self):
        place = new_folder()
        for name, content in nllb_repository().items():
            (place / name).write_bytes(content)
        codes = {"source_lang": "eng_Latn", "target_lang": "deu_Latn"}
        self.assert_task(tiny_run(str(place), **own_rows(), **codes, max_steps=1), "translation", ["eng", "deu"])

    @parameterized.parameters(({"target_lang": "deu_Latn"}, ["eng", "deu"]), ({"target_lang_column": "lang"}, None))
    @pytest.mark.quick_cases(2)
    def test_languages_of_a_column_are_not_known(self, target, languages):
        card = rewritten(scored_facts(), {"source_lang": "eng_Latn", **target})
        self.assertEqual(card.data.language, languages)


APACHE = {"license": "apache-2.0"}
OTHER = {"license": "other", "license_name": "gemma", "license_link": "LICENSE"}
WHOLE_LINK = "https://huggingface.co/lab/t5/blob/main/LICENSE"
COMMIT = "a" * 40


@contextlib.contextmanager
def empty_cache():
    """Without a network: the folder from which the hub's client reads in the block."""
    cache = new_folder()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch("huggingface_hub.constants.HF_HUB_CACHE", str(cache)))
        stack.enter_context(mock.patch("datasets.config.HF_DATASETS_CACHE", new_folder()))
        stack.enter_context(mock.patch.dict(os.environ, HF_HUB_OFFLINE="1"))
        yield cache


def add_repository(cache: Path, kind: str, name: str, files=()) -> Path:
    """The folder of a repository's newest commit in a cache."""
    place = cache / f"{kind}s--{name.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(COMMIT)
    snapshot = place / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for file, content in dict(files).items():
        (snapshot / file).write_bytes(content)
    return snapshot


class LicenceTest(parameterized.TestCase):
    """Cards of one run, written again over other statements of its base."""

    @parameterized.parameters(
        (APACHE, APACHE),
        (OTHER, {**OTHER, "license_link": WHOLE_LINK}),
        ({"language": "en"}, {"license": "unknown"}),
    )
    def test_the_licence_of_a_model_of_the_hub_is_carried(self, stated, expected):
        with empty_cache() as cache:
            base = add_repository(cache, "model", "lab/t5")
            (base / "README.md").write_text(f"---\n{yaml.safe_dump(stated)}---\n# T5\n")
            directory = new_folder()
            cards.write_card(directory, facts_from_the_hub())
        data = card_of(directory).data.to_dict()
        carried = {name: value for name, value in data.items() if name.startswith("license")}
        self.assertEqual((data["base_model"], carried), ("lab/t5", expected))
        text = card_of(directory).text
        self.assertEqual(
            f"The licence above, `{stated.get('license')}`, is that of the base" in text, "license" in stated
        )

    @parameterized.parameters(("---\nlicense: mit\n---\n", "mit"), ("---\nlicense: [\n---\n", "unknown"))
    def test_a_folder_states_its_licence_and_no_name(self, card, licence):
        base, _, facts = run_from_a_folder()
        (base / "README.md").write_text(card)
        directory = new_folder()
        cards.write_card(directory, facts)
        data = card_of(directory).data
        self.assertEqual((data.license, data.base_model), (licence, None))


@functools.cache
def facts_from_the_hub():
    """Of a run from a model of the hub."""
    with empty_cache() as cache:
        save_model(add_repository(cache, "model", "lab/t5"))
        return with_facts("lab/t5", dataset_name="sentiment", eval_strategy="no")[1]


@functools.cache
def run_from_a_folder():
    """`(a model's folder, a run from it, the facts of the run's card)`."""
    base = save_model(new_folder() / "t5")
    return base, *with_facts(str(base), dataset_name="sentiment", eval_strategy="no")


MODEL = "google/t5-v1_1-small"
SCROLLS = "tau/scrolls"
NARRATIVES = {"id": "narrative_qa", "config": "narrative_qa", "split": "validation"}


def scrolls_files(*defined) -> dict[str, bytes]:
    """A data set of the hub with rows of narrative_qa, and the tasks that its `eval.yaml` defines."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for split in ("train", "validation", "test"):
            rows = [{"id": f"q{i}", "pid": f"q{i}", "input": f"Q{i}? A story.", "output": f"it {i}"} for i in range(6)]
            archive.writestr(f"narrative_qa/{split}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    files = {"narrative_qa.zip": content.getvalue(), "README.md": b"---\nlanguage: en\n---\n"}
    if defined:
        files["eval.yaml"] = yaml.safe_dump({"name": "SCROLLS", "tasks": list(defined)}).encode()
    return files


def entries_in(directory) -> list:
    """What huggingface_hub reads in `.eval_results`."""
    files = sorted((directory / ".eval_results").glob("*.yaml"))
    return [entry for file in files for entry in parse_eval_result_entries(yaml.safe_load(file.read_text()))]


def trained_on_scrolls(**flags):
    """A run on a data set of the hub that defines its task, with the facts of its card."""
    task = {"benchmark": "scrolls", "dataset_name": "narrative_qa", "max_source_length": 32}
    whole_split = {"max_eval_samples": None, "eval_method": "generate"}
    with empty_cache() as cache:
        add_repository(cache, "dataset", SCROLLS, scrolls_files({**NARRATIVES, "split": "test", "id": "x"}, NARRATIVES))
        return with_facts(**{**task, **whole_split, **flags})


@functools.cache
def whole_split_scored():
    return trained_on_scrolls()


class EvalResultsTest(parameterized.TestCase):
    """`.eval_results/*.yaml` as huggingface_hub reads it."""

    def test_a_task_that_the_data_set_defines_has_its_figure_and_commit(self):
        run, _ = whole_split_scored()
        (entry,) = entries_in(run.directory)
        figure = json.loads((run.directory / "results.json").read_text())["tasks"]["narrative_qa"]["f1"]
        self.assertEqual((entry.dataset_id, entry.task_id, entry.value), (SCROLLS, "narrative_qa", figure))
        self.assertEqual(entry.dataset_revision, COMMIT)
        self.assertIn("f1, in points; answers by generate", entry.notes)

    @parameterized.named_parameters(
        ("no_definition", ()),
        ("another_split", ({**NARRATIVES, "split": "test"},)),
        ("another_configuration", ({**NARRATIVES, "config": "qasper"},)),
    )
    def test_a_task_that_the_data_set_does_not_define_has_none(self, defined):
        """The same run, over other definitions."""
        _, facts = whole_split_scored()
        for definitions, num_entries in (((NARRATIVES,), 1), (defined, 0)):
            directory = new_folder()
            with empty_cache() as cache:
                add_repository(cache, "dataset", SCROLLS, scrolls_files(*definitions))
                cards.write_card(directory, facts)
            self.assertLen(entries_in(directory), num_entries)

    def test_a_score_of_other_weights_than_the_model_s_is_no_entry(self):
        """The same run, had the task been scored at its own best step (`--select per_task`)."""
        _, facts = whole_split_scored()
        for marks, num_entries in (((), 1), (("step 1",), 0)):
            scored = {name: dataclasses.replace(result, marks=marks) for name, result in facts.scored.items()}
            directory = new_folder()
            with empty_cache() as cache:
                add_repository(cache, "dataset", SCROLLS, scrolls_files(NARRATIVES))
                cards.write_card(directory, dataclasses.replace(facts, scored=scored))
            self.assertLen(entries_in(directory), num_entries)

    @parameterized.named_parameters(
        ("part_of_the_split", {"max_eval_samples": 2}),
        ("no_figure", {"eval_method": "loss"}),
    )
    @pytest.mark.quick_cases(1)
    def test_what_is_not_the_whole_of_a_defined_task_has_none(self, flags):
        run, _ = trained_on_scrolls(**flags)
        self.assertEmpty(entries_in(run.directory))

    @pytest.mark.slow
    def test_a_file_of_ones_own_has_none(self):
        rows = [{"id": f"q{i}", "pid": f"q{i}", "input": f"Q{i}?", "output": f"it {i}"} for i in range(4)]
        path = str(write_rows(new_folder() / "mine.jsonl", rows))
        run, _ = trained_on_scrolls(validation_file=path)
        self.assertEmpty(entries_in(run.directory))


@pytest.mark.slow
class StandInHubTest(parameterized.TestCase):
    """The same from a hub, asked by the real client in a process of its own."""

    def setUp(self):
        super().setUp()
        self.hub = self.enter_context(HubServer())
        card = b"---\nlicense: apache-2.0\n---\n"
        self.hub.commit("model", MODEL, {**files_of("model", MODEL), "README.md": card})
        self.commit = self.hub.commit("dataset", SCROLLS, scrolls_files(NARRATIVES))

    def trained(self):
        folder = new_folder() / "run"
        settings = {**SMALL, "benchmark": "scrolls", "dataset_name": "narrative_qa", "model_name_or_path": MODEL}
        del settings["max_eval_samples"]
        words = [f"--{name}={value}" for name, value in {**settings, "output_dir": folder}.items()]
        environment = {**os.environ, **self.hub.environment(new_folder()), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(ROOT / "fine_tune_t5.py"), *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        return folder

    def test_a_clean_cache_is_filled_with_what_the_card_states(self):
        folder = self.trained()
        data = card_of(folder).data
        self.assertEqual((data.base_model, data.license, data.datasets), (MODEL, "apache-2.0", [SCROLLS]))
        (entry,) = parse_eval_result_entries(yaml.safe_load((folder / ".eval_results/tau--scrolls.yaml").read_text()))
        self.assertEqual((entry.task_id, entry.dataset_revision), ("narrative_qa", self.commit))

    def test_a_hub_that_does_not_give_them_stops_no_run(self):
        self.hub.faults += [Fault(f"{MODEL}/resolve/{self.commit_of_model()}/README.md", failing(500))]
        self.hub.faults += [Fault("eval.yaml", failing(500))]
        folder = self.trained()
        self.assertEqual(card_of(folder).data.license, "unknown")
        self.assertFalse((folder / ".eval_results").exists())

    def commit_of_model(self) -> str:
        return self.hub.repositories["model", MODEL].refs["main"]


def made_up_rows(task) -> list[dict]:
    """Rows of a task with what groups and names them in some benchmarks."""
    rows = [{"category": "x", "id": str(i), "idx": i, **example_row(task)} for i in range(4)]
    if task.name == "multirc":
        rows = [{**row, "idx": {"paragraph": 0, "question": row["idx"], "answer": 0}} for row in rows]
    return rows


@pytest.mark.slow
class EveryTaskTest(parameterized.TestCase):
    def check_card(self, benchmark, names, **flags):
        run = tiny_run(benchmark=benchmark, dataset_name=names, max_steps=1, max_source_length=64, **flags)
        results = json.loads((run.directory / "results.json").read_text())
        self.assertEqual(indexed_scores(card_of(run.directory)), expected_index(results), names)
        return results

    @parameterized.parameters(*(benchmark for benchmark in MIXTURES if "all" in MIXTURES[benchmark]))
    def test_the_hub_reads_what_is_said_of_all_tasks_of_a_benchmark(self, benchmark):
        data = new_folder()
        for name in DATASET_VALS[benchmark]:
            task = load_task(benchmark, name)
            for role in ("train", "validation", "test"):
                for split in task.splits(role).values():
                    write_rows(data / benchmark / name / f"{split}.jsonl", made_up_rows(task))
        results = self.check_card(benchmark, "all", data_dir=str(data))
        scored = {name.removesuffix("_matched").removesuffix("_mismatched") for name in results["tasks"]}
        self.assertContainsSubset(scored, MIXTURES[benchmark]["all"]["evaluate"])

    @parameterized.parameters(*DATASET_VALS)
    def test_the_hub_reads_what_is_said_of_the_others(self, benchmark):
        together = MIXTURES.get(benchmark, {}).get("all", {}).get("evaluate", [])
        for name in DATASET_VALS[benchmark].keys() - set(together):
            task = load_task(benchmark, name)
            path = str(write_rows(new_folder() / "rows.jsonl", made_up_rows(task)))
            role = "validation" if task.splits("validation") else "test"
            if task.splits("train"):
                self.check_card(benchmark, name, **{"train_file": path, f"{role}_file": path})


class TextTest(parameterized.TestCase):
    @parameterized.parameters(
        (["/home/ada/fine_tune_t5.py", "--train_file=/home/ada/my data/a.csv"], "t5suite fine_tune '--train_file=…/a.csv'"),
        (
            ["/home/ada/train.py", "FineTuner(train_file='/home/ada/my data/a.csv', labels=['bad', 'good'])"],
            "FineTuner(train_file='…/a.csv', labels=['bad', 'good'])  # in …/train.py",
        ),
        (["", "FineTuner(data=..., train_file='/home/ada/a.csv')"], "FineTuner(data=..., train_file='…/a.csv')"),
    )  # fmt: skip
    def test_the_command_is_as_it_was_given_without_folders(self, command, expected):
        self.assertEqual(cards.command_text({"command": command}), expected)

    @parameterized.parameters(
        (["fine_tune_t5.py"], "--model_revision t5-small=1a2b --data_revision glue=3c4d"),
        (["train.py", "FineTuner(seed=7)"], "model_revision='t5-small=1a2b', data_revision='glue=3c4d'"),
    )
    def test_the_commits_that_were_read_are_given_as_the_command_takes_them(self, command, revisions):
        read = lambda name, commit: {name: {"revision": None, "commit": commit}}
        hub = {"models": read("t5-small", "1a2b"), "datasets": read("glue", "3c4d")}
        text = rewritten(scored_facts(), command=command, hub=hub).text
        self.assertIn(f"below with `{revisions}` reads", text)

    def test_no_secret_no_folder_of_the_machine_and_nothing_that_steers_a_terminal_is_in_a_card(self):
        for run in (mirror_run(), file_run()):
            text = (run.directory / "README.md").read_text()
            self.assertNotIn(f"{tempfile.gettempdir()}/", text)
            self.assertNotIn(TOKEN, text)
            self.assertNotRegex(text, "[\x1b\x9b]")
        self.assertIn("sentence1: It rains ***.", text)
        self.assertIn("mine.jsonl", text)
        self.assertIn("…/teacher", text)

    def test_settings_of_a_teacher_or_a_mixture_are_those_of_a_run_that_has_one(self):
        """The mirror's run is a mixture without a teacher; that of a file has a teacher, and one task."""
        of_teacher = {"distillation_alpha", "distillation_temperature"}
        of_mixture = {"mixing", "mixing_temperature"}
        for run, expected in ((mirror_run(), of_mixture), (file_run(), of_teacher)):
            names = set(re.findall(r"^\| (\w+) \|", card_of(run.directory).text, re.MULTILINE))
            self.assertEqual(names & (of_teacher | of_mixture), expected)

    def test_proportions_stand_in_place_of_the_rates_that_were_not_used(self):
        of_rates = {"mixing", "mixing_temperature", "data_sampling_proportion"}
        rates = {"cola": 3.0, "rte": 1.0}
        text = rewritten(scored_facts(), settings={"data_sampling_proportion": [3.0, 1.0]}, mixing_rates=rates).text
        names = re.findall(r"^\| (\w+) \| (.*) \|$", text, re.MULTILINE)
        self.assertEqual([row for row in names if row[0] in of_rates], [("data_sampling_proportion", "[3.0, 1.0]")])

    def test_settings_of_zero_are_shown_and_flags_that_are_off_are_not(self):
        zeros = {"seed": 0, "dropout_rate": 0.0, "max_grad_norm": 0.0, "warmup_steps": 0}
        text = rewritten(scored_facts(), settings={**zeros, "bf16": False, "freeze": None, "max_steps": -1}).text
        values = dict(re.findall(r"^\| (\w+) \| (.*) \|$", text, re.MULTILINE))
        self.assertEqual({name: float(values[name]) for name in zeros}, zeros)
        self.assertNoCommonElements(values, ["bf16", "freeze", "max_steps"])

    def test_the_text_format_is_the_one_that_tokenization_uses(self):
        text = card_of(mirror_run().directory).text
        for name, rows in GLUE_ROWS.items():
            (form,) = re.findall(rf"\*\*{name}\*\* reads `(.*?)` and writes", text)
            self.assertEqual(form.format(**rows[0]), load_task("glue", name).examples(rows[0])[0].inputs)

    @parameterized.parameters(
        ("topic: ", "text"), ("topic: ", ["text"]), (["topic: "], "text"), (["topic: "], ["text"])
    )
    def test_one_prefix_and_one_column_are_shown_in_a_list_as_without(self, prefix, column):
        task = make_task(prefix=prefix, text_column_name=column)
        row = {"text": "a film", "label": 0}
        self.assertEqual(cards.input_template(task.entry).format(**row), task.examples(row)[0].inputs)

    @parameterized.parameters(
        (
            "wide, warm",
            "micro_f1,macro_f1",
            "a row's labels, each once, in the order of the alphabet, commas between them",
        ),
        (0.25, "pearson", "a number"),
        ("a shoe", "rouge", "free text"),
    )
    @pytest.mark.quick_cases(1)
    def test_a_card_describes_answers_and_shows_an_example_if_rows_are_shared(self, answer, metrics, described):
        rows = [{"text": f"shoes {number}", "answer": answer} for number in range(8)]
        data = {"train": rows, "validation": rows}
        run = finished(data=data, text_column="text", target_column="answer", metrics=metrics, share_rows=True)
        target = "warm, wide" if answer == "wide, warm" else str(answer)
        self.assertIn(
            f"* **data** reads `{{text}}` and writes {described}.\n  Such as `shoes 0` → `{target}`.",
            card_of(run.directory).text,
        )

    @parameterized.parameters(False, True)
    def test_a_card_shows_rows_of_ones_own_only_if_they_are_shared(self, share_rows):
        rows = [{"guest": {"name": f"Ida {i}"}, "place": "Oslo"} for i in range(8)]
        flags = {"text_column": "guest.name", "target_column": "place", "metrics": "rouge", "eval_method": "generate"}
        run = finished(data={"train": rows, "validation": rows}, **flags, share_rows=share_rows)
        text = card_of(run.directory).text
        self.assertEqual(["Ida" in text, "Oslo" in text], [share_rows, share_rows])
        row = {"guest": {"name": "Ida 0" if share_rows else "..."}}
        self.assertIn(f"<<'ROWS'\n{json.dumps(row)}\nROWS", text)

    def test_the_card_of_a_pre_trained_model_shows_no_text_of_ones_own(self):
        place = new_folder()
        path = write_rows(place / "notes.jsonl", [{"text": f"Ida wrote from Oslo, letter {i}."} for i in range(40)])
        flags = {**TINY_T5, "train_file": path, "inputs_length": 16, "max_steps": 1, "use_cpu": True}
        argv = [f"--{name}={value}" for name, value in {**flags, "output_dir": place / "run"}.items()]
        with contextlib.redirect_stdout(io.StringIO()):
            pre_train_t5.main(argv)
        ((_, python),) = blocks(place / "run", "python")
        self.assertIn("tokenizer('...', return_tensors", python)
        self.assertIn('{"inputs": "..."}', blocks(place / "run", "bash")[0][1])

    @parameterized.parameters(
        ({}, True),
        ({"train_file": ["hub:allenai/c4@1588ec4:en:train"]}, True),
        ({"train_file": ["hub:ada/notes"]}, False),
        ({"train_file": ["hub:allenai/c4:en:train"], "validation_file": ["hub:ada/notes:default:test"]}, False),
        ({"train_file": ["hub:allenai/c4:en:train", "hub:ada/notes"]}, False),
        ({"train_corpus": ["corpora/c4"]}, False),
    )
    @pytest.mark.quick_cases(6)
    def test_of_text_to_pre_train_on_a_card_shows_the_bundled_one_and_c4_alone(self, settings, is_shown):
        self.assertEqual(shared_files.has_public_text(settings), is_shown)

    def test_every_value_of_a_card_has_its_own_unit(self):
        units = {metric: unit for run in (mirror_run(), file_run())
                 for (_, metric), unit in score_rows(card_of(run.directory), column=5).items()}  # fmt: skip
        for metric, unit in {"accuracy": "points", "pearson": "points", "loss": "nats"}.items():
            self.assertStartsWith(units[metric], unit)


class PictureTest(parameterized.TestCase):
    @parameterized.parameters(
        (
            ("train/loss", "eval/loss", "eval/pearson", "eval/neg_mean_absolute_error", "eval/share", "eval/average"),
            {
                "loss": ["training loss", "held-out loss"],
                "points": ["pearson"],
                "the targets' unit": ["neg_mean_absolute_error"],
                "as its metric returns it": ["share"],
            },
        ),
        (
            ("eval/a/neg_mean_absolute_error", "eval/b/neg_mean_absolute_error", "eval/average"),
            {"the targets' unit": ["a neg_mean_absolute_error", "b neg_mean_absolute_error"]},
        ),
        (("eval/a/accuracy", "eval/b/f1", "eval/average"), {"points": ["a accuracy", "b f1", "average"]}),
        (
            ("train/loss", "eval/loss", "eval/nll", "eval/accuracy"),
            {"nats a target token": ["training loss", "held-out NLL"], "points": ["accuracy"]},
        ),
    )
    def test_curves_of_one_unit_share_axes(self, names, expected):
        panels = learning_curves.card_panels({name: [[1, 0.5], [2, 0.7]] for name in names})
        self.assertEqual({unit: [*lines] for unit, lines in panels.items()}, expected)

    def test_a_curve_has_a_gap_and_a_cross_where_a_score_is_not_a_number(self):
        figures = []
        directory = new_folder()
        scores = enumerate([5, None, 7, 8, None])
        write_rows(directory / "metrics.jsonl", [{"step": step, "eval/pearson": score} for step, score in scores])
        paint = lambda canvas, path: figures.append(canvas.figure) or Path(path).touch()
        with mock.patch("matplotlib.backends.backend_agg.FigureCanvasAgg.print_png", paint):
            learning_curves.write_learning_curves(directory)
        ((axes,),) = [figure.axes for figure in figures]
        curve, crosses = axes.lines
        self.assertEqual(str(curve.get_ydata(orig=False).tolist()), "[5.0, nan, 7.0, 8.0, nan]")
        self.assertEqual(list(crosses.get_xdata()), [1, 4])
        self.assertLess(max(crosses.get_ydata()), 0.1)
        self.assertGreater(axes.get_xlim()[1], 4)
        self.assertLen(axes.get_legend().get_texts(), 1)

    @pytest.mark.pictures
    @pytest.mark.slow
    def test_the_card_shows_the_picture_that_is_there(self):
        self.assertFalse((mirror_run().directory / "learning_curves.png").exists())
        self.assertNotIn("![", card_of(mirror_run().directory).text)
        directory = finished(max_steps=2).directory
        with Image.open(directory / "learning_curves.png") as picture:
            self.assertGreater(len(picture.convert("RGB").getcolors(1 << 20)), 2)
        self.assertIn("![losses and scores over the updates](learning_curves.png)", card_of(directory).text)


SMALL = {"max_train_samples": 32, "max_eval_samples": 8, "max_steps": 2, "per_device_train_batch_size": 8,
         "disable_tqdm": True, "use_cpu": True}  # fmt: skip
TINY_T5 = {"config_overrides": "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2"}
TINY_GPT2 = {"config_name": "gpt2", "config_overrides": "n_embd=32,n_layer=1,n_head=2"}
SIZES = "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=32"
TINY_BERT = {"config_name": "bert", "config_overrides": SIZES}


def trained(**settings):
    output_dir = Path(tempfile.mkdtemp()) / "run"
    argv = [f"--{name}={value}" for name, value in {**SMALL, **settings}.items()]
    with contextlib.redirect_stdout(io.StringIO()):
        fine_tune_t5.main([*argv, f"--output_dir={output_dir}"])
    return output_dir


def blocks(folder, language):
    return re.findall(rf"^(`{{3,}}){language}\n(.*?)\n\1$", (folder / "README.md").read_text(), re.S | re.M)


WORD_LABELS = """
words:
  names:
    prefix: 'names: '
    text_column_name: tokens
    label_column_name: tags
    labels: [other, name]
    formatter: token_labels
    metric_names: [token_accuracy]
    metric_to_optimize: token_accuracy
    splits: {train: train, validation: validation}
"""
VARIANTS = {
    "several_tasks": {"dataset_name": "all", **TINY_T5},
    "decoder_only": TINY_GPT2,
    "encoder_only": {"dataset_name": "entailment", **TINY_BERT},
    "adapter": {"adapter": "lora", "model_name_or_path": "{base}"},
    "own_class": {"model_class": "plug_in_modules:OwnT5", **TINY_T5},
    "own_encoder": {"model_class": "plug_in_modules:Reader", "model_family": "masked"},
}


def labelled_words(more_words: Sequence[str] = ()) -> dict:
    """The flags of a task with a label for each word, and its rows."""
    place = new_folder()
    (place / "tasks.yaml").write_text(WORD_LABELS)
    words = ["Ann", "sings", *more_words]
    rows = [{"tokens": [*words, f"it{i}"], "tags": [1] + [0] * len(words)} for i in range(16)]
    path = write_rows(place / "rows.jsonl", rows)
    task = {"task_file": place / "tasks.yaml", "benchmark": "words", "dataset_name": "names"}
    return {**task, "train_file": path, "validation_file": path}


class HeadTest(parameterized.TestCase):
    @parameterized.parameters(
        (lambda: {"dataset_name": "entailment"}, "SequenceClassification", "{premise} | {hypothesis}"),
        (labelled_words, "TokenClassification", "{tokens}"),
    )
    def test_the_python_of_a_head_loads_the_class_that_was_saved(self, make_task, head, columns):
        folder = trained(**make_task(), **TINY_BERT, max_steps=1, max_train_samples=8, save_strategy="no")
        ((_, python),) = blocks(folder, "python")
        self.assertIn(f"AutoModelFor{head}.from_pretrained", python)
        self.assertEqual(json.loads((folder / "config.json").read_text())["architectures"], [f"BertFor{head}"])
        # It reads no prefix, so the card and a report show none.
        self.assertIn(f" reads `{columns}` and writes ", (folder / "README.md").read_text())
        samples = [json.loads(line) for line in (folder / "samples.jsonl").open()]
        (part,) = reported(folder).data["examples"]
        shown = {example["inputs"] for example in part["examples"]}
        self.assertContainsSubset({sample["input"].replace(" [SEP] ", " | ") for sample in samples}, shown)


class EvaluatedAnswerTest(parameterized.TestCase):
    @parameterized.parameters("seq2seq", "causal")
    def test_the_python_of_a_card_prints_the_evaluated_answer_whatever_the_model_was_used_for(self, family):
        model = random_model(family)
        settings = {"do_sample": True, "temperature": 9.0, "no_repeat_ngram_size": 1, "suppress_tokens": [5, 6, 7]}
        for name, setting in settings.items():
            setattr(model.generation_config, name, setting)
        flags = {"eval_method": "generate", "generation_max_length": 7, "generation_num_beams": 2}
        run = finished(saved(model), dataset_name="sentiment", **flags, learning_rate=1e-9, share_rows=True)
        (answer, *_) = read_rows(run.directory / "predictions" / "sentiment.validation.jsonl")
        python = blocks(run.directory, "python")[0][1]
        expected = re.sub("<extra_id_[0-9]+>", " ", answer["prediction"]).split()
        self.assertEqual(printed_by(run.directory, python).split(), expected)
        self.assertNotEmpty(expected)

    @parameterized.parameters(None, "lora")
    def test_sets_of_labels_are_written_whatever_the_model_was_used_for(self, adapter):
        """In the evaluation, in the Python of its card and by `predict`; an adapter's settings are its base's."""
        rows = [{"text": f"It came late {number}.", "faults": "late, broken"} for number in range(8)]
        file = write_rows(new_folder() / "rows.jsonl", rows)
        columns = {"text_column": "text", "target_column": "faults", "metrics": "micro_f1"}
        files = {"data_format": "jsonl", "train_file": str(file), "validation_file": str(file), **columns}
        how = {"eval_method": "generate", "generation_max_length": 9, "learning_rate": 1e-9, "share_rows": True}
        model = random_model()
        answers = []
        for settings in ({}, {"min_length": 9, "no_repeat_ngram_size": 1, "suppress_tokens": [5, 6, 7]}):
            model.generation_config.update(**settings)
            run = finished(saved(model), **files, **how, adapter=adapter)
            (answer, *_) = read_rows(next((run.directory / "predictions").glob("*.jsonl")))
            predicted = FineTuner(run.directory, use_cpu=True, quiet=True).predict(rows[:1], max_new_tokens=9)
            printed = printed_by(run.directory, blocks(run.directory, "python")[0][1])
            answers += [answer["prediction"].split(), predicted[0].split(), printed.split()]
        in_words = [re.sub("<extra_id_[0-9]+>", " ", " ".join(words)).split() for words in answers]
        self.assertNotEmpty(in_words[0])
        self.assertEqual(in_words, in_words[:1] * 6)


def commanded_by(folder) -> str:
    """What the command of a card answers where its model is."""
    (block,) = [block for _, block in blocks(folder, "bash") if block.startswith("t5suite predict")]
    command, *rows, _ = block.splitlines()
    place = new_folder()
    (place / "rows.jsonl").write_text("\n".join(rows))
    files = ["--input", place / "rows.jsonl", "--output", place / "answers.jsonl", "--use_cpu"]
    with contextlib.chdir(folder):
        run_cli(*shlex.split(command.partition(" --input ")[0])[1:], *files)
    (answer,) = read_rows(place / "answers.jsonl")
    return answer["prediction"]


class PrintedAnswerTest(parameterized.TestCase):
    """The Python of a card prints what its command answers."""

    def assert_the_same(self, folder):
        python = blocks(folder, "python")[0][1]
        self.assertEqual("no pipeline" in card_of(folder).text, "ModelForSeq2SeqLM" in python)
        answers = [printed_by(folder, python), commanded_by(folder)]
        printed, commanded = (re.sub("<extra_id_[0-9]+>", " ", answer).split() for answer in answers)
        self.assertNotEmpty(printed)
        self.assertEqual(printed, commanded)

    def check(self, family: str, adapter: str | None, **flags):
        """For a model that writes, or chooses a class."""
        model = saved(random_model(family))
        few = {"model_family": family, "adapter": adapter, "learning_rate": 1e-9, "share_rows": True}
        if family not in HEADED:
            few |= {"generation_num_beams": 3, "generation_max_length": 7}
        run = finished(model, dataset_name="sentiment", **few, **{"eval_method": "generate", **flags})
        self.assert_the_same(run.directory)

    @parameterized.parameters(
        ("encoder", None), ("encoder", "lora"), ("seq2seq", "prefix"), ("causal", "prompt_tuning")
    )
    @pytest.mark.quick_cases(4)
    def test_answers_of_models_that_transformers_and_peft_alone_cannot_load(self, family, adapter):
        self.check(family, adapter)

    @parameterized.product(family=(*TINY,), adapter=(None, *ADAPTERS))
    @pytest.mark.slow
    def test_answers_of_every_family_with_every_adapter(self, family, adapter):
        if adapter == "prefix" and family in HEADED:
            self.skipTest("heads take no prefixes")
        self.check(family, adapter)

    @parameterized.parameters("It was good.", "")
    def test_a_prompt_is_read_as_in_training(self, text):
        """Its text and its separator apart; an empty text has no separator."""
        tokenizer = line_end_tokenizer()
        model = tiny_model("gpt2", "n_embd=32,n_layer=2,n_head=2,n_positions=128", tokenizer=tokenizer, scale=4.0)
        rows = [{"input": each, "output": "wet"} for each in (text, *"abcdefg")]
        flags = {"eval_method": "generate", "learning_rate": 1e-9, "share_rows": True, "metrics": "rouge"}
        run = finished(str(save_model(new_folder(), model, tokenizer)), {"train": rows, "validation": rows}, **flags)
        self.assert_the_same(run.directory)

    @parameterized.parameters("seq2seq", "causal")
    @pytest.mark.quick_cases(2)
    def test_the_row_is_a_short_one_that_is_read_whole_and_is_shown_as_it_is(self, family):
        long, cut, whole = "It came late. " * 90, "It came late. " * 30, "`It` " + "the " * 79
        rows = [{"input": text, "output": "wet"} for text in (long, cut, whole, whole)]
        flags = {"eval_method": "generate", "learning_rate": 1e-9, "share_rows": True, "metrics": "rouge"}
        flags |= {"max_source_length": 100, "generation_max_length": 7}
        if family == "causal":
            flags["answer_separator"] = ""
        folder = finished(saved(random_model(family)), {"train": rows, "validation": rows}, **flags).directory
        self.assert_the_same(folder)
        shown = [blocks(folder, "python")[0][1], blocks(folder, "bash")[0][1]]
        self.assertEqual([whole.strip() in text for text in shown], [True, True])

    @parameterized.parameters("seq2seq", "causal", "masked")
    @pytest.mark.quick_cases(3)
    def test_no_row_is_shown_where_none_is_short_and_read_whole(self, family):
        rows = [{"sentence": "It came late. " * (30 + 70 * number), "label": number % 2} for number in range(8)]
        files = dict.fromkeys(("train_file", "validation_file"), str(write_rows(new_folder() / "rows.jsonl", rows)))
        flags = {"model_family": family, "learning_rate": 1e-9, "share_rows": True, "max_source_length": 40}
        run = finished(saved(random_model(family)), dataset_name="sentiment", **files, eval_method="generate", **flags)
        python = blocks(run.directory, "python")[0][1]
        self.assertNotIn("came late", python + blocks(run.directory, "bash")[0][1])
        printed_by(run.directory, python)
        commanded_by(run.directory)

    @parameterized.parameters(-7.0, 3.0, 7.0)
    @pytest.mark.quick_cases(3)
    def test_a_number_is_clipped_to_the_range_of_its_task(self, bias):
        """That of `similarity` is 0 to 5."""
        model = random_model("masked", "similarity")
        torch.nn.init.constant_(model.classifier.bias, bias)
        flags = {"dataset_name": "similarity", "learning_rate": 1e-9, "share_rows": True, "eval_method": "generate"}
        folder = finished(saved(model), **flags).directory
        printed = float(printed_by(folder, blocks(folder, "python")[0][1]))
        self.assertAlmostEqual(printed, float(commanded_by(folder)), delta=1e-5)

    @parameterized.parameters(word_tokenizer, byte_tokenizer, ByT5Tokenizer)
    @pytest.mark.quick_cases(3)
    def test_words_are_read_as_in_training(self, make_tokenizer):
        tokenizer = make_tokenizer()
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        model = tiny_model("bert", TINY["masked"][1], tokenizer=tokenizer, family="masked", scale=4.0)
        rows = labelled_words(("it", "rains", "and", "is", "'s", "wet"))
        base = str(save_model(new_folder(), model, tokenizer))
        flags = {"eval_method": "generate", "learning_rate": 1e-9, "share_rows": True}
        self.assert_the_same(finished(base, **rows, **flags).directory)

    def test_of_every_kind_of_task_a_row_whose_texts_are_not_shown_is_answered(self):
        """One of a run that evaluated nothing, and one of rows that are not shared."""
        folder = unscored(saved(random_model("causal")), dataset_name="sentiment").directory
        card = json.loads((folder / "task.json").read_text())
        all_tasks = [load_task(benchmark, name) for benchmark, entries in DATASET_VALS.items() for name in entries]
        task_of_kind = {(task.entry.get("formatter"), len(task.text_columns)): task for task in all_tasks}
        for task in task_of_kind.values():
            benchmark, name = task.benchmark, task.name
            tasks = {"benchmark": benchmark, "tasks": {name: task.entry}, "max_answer_tokens": {name: 1}}
            (folder / "task.json").write_text(json.dumps({**card, **tasks}))
            tuner = FineTuner(folder, use_cpu=True, quiet=True)
            manifest = {"settings": {"benchmark": benchmark}, "tasks": tasks["tasks"], "model": {}}
            python = card_usage.usage_lines(None, "causal", None, manifest, {})
            with mock.patch("t5suite.FineTuner", lambda _, tuner=tuner: tuner):
                printed_by(folder, "\n".join(python))
            tuner.predict(card_usage.hidden_row(example_row(task), task, Languages()))

    @parameterized.parameters("causal", "seq2seq")
    @pytest.mark.quick_cases(1)
    def test_the_python_of_a_run_that_evaluated_nothing_has_the_functions_of_its_task(self, family):
        place = new_folder()
        entry = {**DATASET_VALS["mini"]["sentiment"], "formatter": "shouted"}
        (place / "tasks.py").write_text(
            "from t5suite.tasks.formatters import FORMATTERS, columns\n"
            "FORMATTERS['shouted'] = lambda row, entry, split: columns({**row, 'sentence': row['sentence'].upper()}, entry, split)\n"
            f"DATASET_VALS = {{'mine': {{'films': {entry!r}}}}}\n"
        )
        rows = write_rows(place / "rows.jsonl", [{"sentence": f"It rains {i}.", "label": i % 2} for i in range(8)])
        task = {"task_file": str(place / "tasks.py"), "benchmark": "mine", "dataset_name": "films"}
        adapter = "prefix" if family == "seq2seq" else None
        with mock.patch.dict(FORMATTERS):
            run = unscored(saved(random_model(family)), **task, train_file=str(rows), adapter=adapter)
        shutil.copy(place / "tasks.py", run.directory)  # the card says that it is needed
        with mock.patch.dict(FORMATTERS):
            printed_by(run.directory, blocks(run.directory, "python")[0][1])
        self.assertIn("`tasks.py` must be there", card_of(run.directory).text)

    @parameterized.parameters("causal", "masked", "encoder")
    @pytest.mark.quick_cases(1)
    def test_the_python_of_a_run_that_evaluated_nothing_answers(self, family):
        run = unscored(saved(random_model(family)), dataset_name="sentiment", model_family=family)
        self.assertNotEmpty(printed_by(run.directory, blocks(run.directory, "python")[0][1]).split())


@pytest.mark.slow
class BlocksTest(parameterized.TestCase):
    """What a card shows is run as it stands, by a shell that knows nothing of the checkout."""

    def run_block(self, folder, command, **variables):
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **variables}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment["PYTHONPATH"] = str(Path(__file__).parent)
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    @parameterized.named_parameters((name, settings) for name, settings in VARIANTS.items())
    def test_python_and_command_run_as_written(self, settings):
        base = str(trained(**TINY_T5)) if "{base}" in settings.values() else None
        folder = trained(**{name: value.replace("{base}", base or "") for name, value in settings.items()})
        data = card_of(folder).data
        is_head = "encoder" in self._testMethodName
        self.assertEqual(data.pipeline_tag, "text-classification" if is_head else "text-generation")
        if base is not None:
            self.assertEqual((data.library_name, data.base_model), ("peft", None))
        self.run_block(folder, [sys.executable, "-c", blocks(folder, "python")[0][1]])
        commands = [block for _, block in blocks(folder, "bash") if block.startswith("t5suite predict")]
        self.assertLen(commands, 1)
        for command in commands:
            self.assertLen(self.run_block(folder, ["bash", "-c", command]).splitlines(), 1)

    def test_an_adapter_over_a_base_of_its_own_runs_where_its_folder_was_moved(self):
        folder = new_folder() / "moved"
        shutil.move(trained(adapter="lora", **TINY_T5), folder)
        python = blocks(folder, "python")[0][1]
        printed = self.run_block(folder, [sys.executable, "-c", python])
        with HubServer() as hub:
            files = [path for path in folder.rglob("*") if path.is_file()]
            hub.commit("model", "ada/x", {path.relative_to(folder).as_posix(): path.read_bytes() for path in files})
            place = re.search("of a model on the hub: (.*)", python)[1].replace("OWNER/NAME", "ada/x")
            from_hub = "import huggingface_hub\n" + python.replace('folder = "."', f"folder = {place}")
            environment = hub.environment(new_folder())
            self.assertEqual(self.run_block(new_folder(), [sys.executable, "-c", from_hub], **environment), printed)

    @parameterized.parameters(None, "lora")
    def test_labels_of_words_are_printed(self, adapter):
        model = TINY_BERT
        if adapter:
            model = {"adapter": adapter, "model_name_or_path": trained(**TINY_BERT)}
        folder = trained(**labelled_words(), **model)
        self.assertEqual(card_of(folder).data.pipeline_tag, "token-classification")
        printed = self.run_block(folder, [sys.executable, "-c", blocks(folder, "python")[0][1]])
        self.assertContainsSubset(set(printed.split()), {"other", "name"})

    @parameterized.parameters("span_corruption", "masked_lm", "causal_lm")
    def test_pre_trained_models_have_cards_that_run(self, objective):
        folder = Path(tempfile.mkdtemp()) / "run"
        config = {"span_corruption": TINY_T5, "masked_lm": TINY_BERT, "causal_lm": TINY_GPT2}[objective]
        argv = [f"--{name}={value}" for name, value in {**config, "max_steps": 2, "use_cpu": True}.items()]
        if objective == "masked_lm":
            word_tokenizer().save_pretrained(folder.parent / "words")
            argv.append(f"--tokenizer_name={folder.parent / 'words'}")
        with contextlib.redirect_stdout(io.StringIO()):
            pre_train_t5.main([*argv, f"--objective={objective}", f"--output_dir={folder}"])
        results = json.loads((folder / "results.json").read_text())
        self.assertEqual(indexed_scores(card_of(folder)), expected_index(results))
        units = {metric: unit for (_, metric), unit in score_rows(card_of(folder), column=5).items()}
        self.assertContainsSubset({"nll": "nats a target token", "perplexity": "no unit", "accuracy": "points"}, units)
        python = blocks(folder, "python")[0][1]
        self.assertNotIn("'...'", python, "the bundled text may be shown")
        self.assertTrue(self.run_block(folder, [sys.executable, "-c", python]))
        commands = [block for _, block in blocks(folder, "bash") if block.startswith("t5suite predict")]
        self.assertLen(commands, objective != "masked_lm", "what writes nothing predicts nothing")
        for command in commands:
            (line,) = self.run_block(folder, ["bash", "-c", command]).splitlines()
            self.assertIn("prediction", json.loads(line))
        (tuning,) = [block for _, block in blocks(folder, "bash") if block.startswith("python -m fine_tune_t5 ")]
        self.run_block(folder, ["bash", "-c", tuning.replace("--max_steps 100", "--max_steps 2 --max_eval_samples 8")])
        self.assertTrue((folder.parent / "fine_tuned" / "results.json").is_file())

    def test_a_run_that_grows_has_a_new_card(self):
        folder = trained(**TINY_T5)
        before = (folder / "README.md").read_text()
        argv = [f"--{name}={value}" for name, value in {**SMALL, **TINY_T5, "max_steps": 3}.items()]
        with contextlib.redirect_stdout(io.StringIO()):
            fine_tune_t5.main([*argv, "--extend", f"--output_dir={folder}"])
        after = (folder / "README.md").read_text()
        self.assertIn("| updates made | 2 |", before)
        self.assertIn("| updates made | 3 |", after)
        seconds = json.loads((folder / "manifest.json").read_text())["training"]["train_runtime"]
        self.assertIn(f"| seconds of training | {seconds:.1f} |", after)
