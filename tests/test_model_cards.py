"""Model cards: the hub reads them, their numbers are the results', they tell no secrets, and their code runs."""

import contextlib
import io
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from absl.testing import parameterized
from huggingface_hub import ModelCard
from odd_tokenizers import word_tokenizer

import fine_tune_t5
import pre_train_t5
from t5suite import load_task
from t5suite.constants import DATASET_VALS
from t5suite.reports.cards import CardFacts, Scored, card_text, template, write_card

TOKEN = "hf_TokenOfNobodyAtAllForThisTestOnly"
SETTINGS = {"model_name_or_path": "google/t5-v1_1-small", "data_revision": "main", "learning_rate": 0.001, "seed": 42}


def facts(names=("rte",), benchmark="glue", results=None, origin=None, settings=None, **manifest):
    tasks = {name: load_task(benchmark, name).entry for name in names}
    origins = {name: origin or f"{entry.get('hub_path')} {name}" for name, entry in tasks.items()}
    manifest = {
        "settings": {**SETTINGS, "benchmark": benchmark, **(settings or {})},
        "versions": {"t5suite": "0.1.0"},
        "tasks": tasks,
        "data": {
            f"{name}.validation": {"origin": of, "fingerprint": f"sha256:{'a' * 64}"} for name, of in origins.items()
        },
        "model": {"class": "T5ForConditionalGeneration", "parameters": 1000, "trainable": 1000},
        "command": ["fine_tune_t5.py", "--output_dir", "/home/ada/runs/x"],
        **manifest,
    }
    results = results or {name: {"accuracy": 71.123456789012, "invalid_rate": 0.0} for name in names}
    scored = {name: Scored(name, "validation", 7, "generate", ("subset",)) for name in results}
    return CardFacts("a model", {"tasks": results, "averages": {}}, manifest, scored, usage=["pass"])


def score_rows(text, column=4):
    """`{(name, metric): value}` of a card's table, or what another column has."""
    body = text.split("## Scores")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in body.splitlines() if line.startswith("| ")]
    return {(row[0], row[3]): row[column] for row in rows[1:]}


class MetadataTest(parameterized.TestCase):
    @parameterized.parameters(*DATASET_VALS)
    def test_the_hub_reads_what_is_said_of_every_task(self, benchmark):
        for name, entry in DATASET_VALS[benchmark].items():
            results = {name: {metric: 12.25 for metric in entry["metric_names"]}}
            found = ModelCard(card_text(facts([name], benchmark, results=results or None))).data
            values = [result.metric_value for result in found.eval_results or []]
            self.assertEqual(values, [12.25] * len(entry["metric_names"]), name)

    def test_the_index_has_data_and_numbers_as_they_are(self):
        found = ModelCard(card_text(facts())).data
        result = found.eval_results[0]
        self.assertEqual(
            (found.base_model, found.to_dict()["base_model_relation"]), ("google/t5-v1_1-small", "finetune")
        )
        self.assertEqual((found.language, found.license, found.datasets), (["en"], "unknown", ["nyu-mll/glue"]))
        self.assertEqual((result.dataset_type, result.dataset_config), ("nyu-mll/glue", "rte"))
        self.assertEqual((result.dataset_split, result.metric_value), ("validation", 71.123456789012))
        model = {"adapter": "lora", "base": "google/t5-v1_1-small", "class": "T5", "parameters": 9, "trainable": 1}
        found = ModelCard(card_text(facts(model=model))).data
        self.assertEqual((found.library_name, found.to_dict()["base_model_relation"]), ("peft", "adapter"))

    def test_rows_of_a_mirror_are_the_hubs_and_those_of_a_file_are_not(self):
        found = ModelCard(card_text(facts(origin="/data/glue/rte/validation.jsonl"))).data
        self.assertEqual(found.eval_results[0].dataset_type, "nyu-mll/glue")
        found = ModelCard(card_text(facts(settings={"validation_file": "mine.jsonl"}, origin="mine.jsonl"))).data
        self.assertEqual((found.eval_results[0].dataset_type, found.datasets), ("glue-rte", None))

    def test_every_number_is_that_of_the_results(self):
        results = {"rte": {"accuracy": 71.123, "invalid_rate": 0.5}, "stsb": {"pearson": 88.888, "spearman": math.nan}}
        made = facts(["rte", "stsb"], results=results)
        made.results["averages"] = {"glue": 80.006}
        text = card_text(made)
        expected = {
            ("rte", "accuracy"): "71.12", ("rte", "invalid_rate"): "0.50", ("stsb", "pearson"): "88.89",
            ("stsb", "spearman"): "nan", ("average glue", "average"): "80.01",
        }  # fmt: skip
        self.assertEqual(score_rows(text), expected)
        found = ModelCard(text).data.eval_results
        index = {(result.task_name, result.metric_type): result.metric_value for result in found}
        theirs = {("rte", "accuracy"): 71.123, ("rte", "invalid_rate"): 0.5, ("stsb", "pearsonr"): 88.888}
        self.assertEqual(index, theirs)

    def test_folders_are_no_models_of_the_hub(self):
        hub = {"/c/models--google--mt5-small/snapshots/73fb5d/": "google/mt5-small"}
        for name in ("/home/ada/best", "./here and there", "a/b/c", "", *hub):
            found = ModelCard(card_text(facts(settings={"model_name_or_path": name}))).data
            self.assertEqual(found.base_model, hub.get(name))


class TextTest(parameterized.TestCase):
    def test_no_secret_no_folder_of_the_machine_and_nothing_that_steers_a_terminal_is_in_a_card(self):
        command = ["fine_tune_t5.py", f"--note={TOKEN}\x1b[2J\x9b", "--data_dir", "/home/ada/data"]
        settings = {"deepspeed": "/home/ada/zero.json"}
        text = card_text(facts(command=command, settings=settings, origin="/home/ada/rows.jsonl"))
        self.assertNotIn("/home", text)
        self.assertNotIn(TOKEN, text)
        self.assertIn("***", text)
        self.assertNotRegex(text, "[\x1b\x9b]")

    def test_the_text_format_is_the_one_that_tokenization_uses(self):
        task = load_task("glue", "rte")
        made = task.examples({"sentence1": "A.", "sentence2": "B.", "label": 0})[0].inputs
        self.assertEqual(template(task.entry).format(sentence1="A.", sentence2="B."), made)


class PictureTest(parameterized.TestCase):
    def test_the_card_shows_the_picture_that_is_there(self):
        folder = Path(tempfile.mkdtemp())
        write_card(folder, facts())
        self.assertNotIn("![", (folder / "README.md").read_text())
        (folder / "learning_curves.png").touch()
        write_card(folder, facts())
        self.assertIn("![losses and scores over the updates](learning_curves.png)", (folder / "README.md").read_text())


class UnitsTest(parameterized.TestCase):
    def test_every_value_of_a_card_has_its_own_unit(self):
        results = {"rte": {"f1": 70.4678, "nll": 2.34567, "perplexity": 11.23456}}
        rows = score_rows(card_text(facts(results=results)), column=5)
        units = {"f1": "points", "nll": "nats", "perplexity": "no unit"}
        for (_, metric), unit in rows.items():
            self.assertStartsWith(unit, units[metric])


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


VARIANTS = {
    "several_tasks": {"dataset_name": "all", **TINY_T5},
    "decoder_only": TINY_GPT2,
    "encoder_only": {"dataset_name": "entailment", **TINY_BERT},
    "adapter": {"adapter": "lora", "model_name_or_path": "{base}"},
    "own_class": {"model_class": "plug_in_modules:OwnT5", **TINY_T5},
    "own_encoder": {"model_class": "plug_in_modules:Reader", "model_family": "masked"},
}


@pytest.mark.slow
class BlocksTest(parameterized.TestCase):
    """What a card shows is run as it stands, by a shell that knows nothing of the checkout."""

    def run_block(self, folder, command):
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment["PYTHONPATH"] = str(Path(__file__).parent)
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    @parameterized.named_parameters((name, settings) for name, settings in VARIANTS.items())
    def test_python_and_command_run_as_written(self, settings):
        base = str(trained(**TINY_T5)) if "{base}" in settings.values() else None
        folder = trained(**{name: value.replace("{base}", base or "") for name, value in settings.items()})
        ModelCard((folder / "README.md").read_text())
        self.run_block(folder, [sys.executable, "-c", blocks(folder, "python")[0][1]])
        commands = [found for _, found in blocks(folder, "bash") if found.startswith("t5suite predict")]
        self.assertLen(commands, 1)
        for command in commands:
            self.assertLen(self.run_block(folder, ["bash", "-c", command]).splitlines(), 1)

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
        found = ModelCard((folder / "README.md").read_text()).data
        results = json.loads((folder / "results.json").read_text())["tasks"]["pre_train"]
        self.assertEqual({result.metric_type: result.metric_value for result in found.eval_results}, results)
        self.assertTrue(self.run_block(folder, [sys.executable, "-c", blocks(folder, "python")[0][1]]))
        commands = [found for _, found in blocks(folder, "bash") if found.startswith("t5suite predict")]
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
        self.assertIn("(since update 2, where it resumed)", after)
