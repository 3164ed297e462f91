"""A run reads commits of the hub: the same ones for model, tokenizer and rows, named by the manifest, read again by it.

Quick: without a network, from caches of the hub's client and of `datasets`, in which branches move. Slow: from a hub.
"""

import contextlib
import functools
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import datasets
import pytest
import torch
import transformers
import yaml
from absl.testing import parameterized
from hub_server import Fault, HubServer
from huggingface_hub import ModelCard
from safetensors.torch import load, load_file
from support import folder, later_wins

import fine_tune_t5
from t5suite import load_task
from t5suite.testing import (
    example_row,
    exits_with,
    load_rows,
    make_task,
    save_model,
    tiny_model,
    tiny_tuner,
    write_rows,
)

ROOT = Path(__file__).parent.parent
COMMIT = re.compile(r"[0-9a-f]{40}")
A, B, C = "a" * 40, "b" * 40, "c" * 40
SUPER_GLUE, DPR = "aps/super_glue", "community-datasets/definite_pronoun_resolution"
TINY = "d_model=16,d_kv=4,d_ff=24,num_layers=1,num_heads=2"
MODEL, ROWS = "lab/tiny-t5", "lab/reviews"
OTHER_ROWS = "lab/walks"
TASKS = """
lab:
""" + "".join(
    f"""
  {name}:
    hub_path: lab/{name}
    splits: {{train: train, validation: validation}}
    prefix: "{name}: "
    text_column_name: text
    label_column_name: label
    metric_to_optimize: accuracy
    metric_names: [accuracy]
    labels: [good, bad]
"""
    for name in ("reviews", "walks")
)
RUN = (
    f"--model_name_or_path {MODEL} --data_format hub --hub_path {ROWS} --text_column text --target_column label "
    "--labels good,bad --eval_method score --max_steps 4 --per_device_train_batch_size 4 --use_cpu --disable_tqdm True "
    "--max_target_length 8 --max_source_length 32 --learning_rate 1e-2"
).split()


MIXTURE = (
    "--eval_method score --max_steps 4 --per_device_train_batch_size 4 --use_cpu --disable_tqdm True "
    f"--max_target_length 8 --max_source_length 32 --learning_rate 1e-2 --config_overrides {TINY}"
).split()
STREAM = (
    "--streaming --max_steps 2 --per_device_train_batch_size 2 --use_cpu --disable_tqdm True --inputs_length 16 "
    f"--num_virtual_streams 1 --shuffle_buffer_size 4 --max_eval_samples 2 --validation_fraction 0.3 --config_overrides {TINY}"
).split()


def model_files(seed: int) -> dict[str, bytes]:
    """A tiny T5 with its tokenizer, as a repository holds them."""
    directory = folder()
    save_model(directory, tiny_model(config_overrides=TINY, seed=seed))
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def classifier_files(seed: int) -> dict[str, bytes]:
    """A tiny BERT with a head for two classes, with a tokenizer, as a repository holds them."""
    transformers.set_seed(seed)
    config = transformers.BertConfig(
        vocab_size=1000, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    directory = folder()
    transformers.BertForSequenceClassification(config).save_pretrained(directory)
    tokenizer_files = {name: content for name, content in model_files(seed).items() if "token" in name}
    return {**tokenizer_files, **{path.name: path.read_bytes() for path in directory.iterdir()}}


def row_files(word: str) -> dict[str, bytes]:
    """A data set of 16 training and 8 validation rows, without and with a card."""
    # Without a list of files `datasets` takes eval.yaml, of a benchmark's tasks, for a split's rows.
    files_of_splits = [{"split": split, "path": f"{split}.jsonl"} for split in ("train", "validation")]
    configurations = [{"config_name": "default", "data_files": files_of_splits}]
    header = yaml.safe_dump({"license": "mit", "language": ["en"], "configs": configurations})
    files = {"README.md": f"---\n{header}---\n".encode()}
    files["eval.yaml"] = b"tasks: [{id: reviews, config: default, split: validation}]\n"
    for split, count in (("train", 16), ("validation", 8)):
        rows = [{"text": f"{word} {i}", "label": i % 2} for i in range(count)]
        files[f"{split}.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return files


@pytest.mark.slow
class HubRunTest(parameterized.TestCase):
    """Runs that read model and rows from a hub whose main branches move."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = [model_files(seed) for seed in (1, 2)]
        cls.rows = [row_files(word) for word in ("a film", "another book")]

    def setUp(self):
        super().setUp()
        self.hub = self.enter_context(HubServer())
        self.commits = [self.hub.commit("model", MODEL, self.models[0]), self.hub.commit("dataset", ROWS, self.rows[0])]

    def move_main(self):
        """New weights and new rows; returns their commits."""
        return [self.hub.commit("model", MODEL, self.models[1]), self.hub.commit("dataset", ROWS, self.rows[1])]

    def run_script(
        self, cache, *flags, script="fine_tune_t5.py", base=RUN, offline=False, output=None, expected=0, ranks=1
    ):
        output = output or folder() / "run"
        environment = {**os.environ, **self.hub.environment(cache), "OMP_NUM_THREADS": "1"}
        if offline:
            environment |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
        words = later_wins(base, ["--output_dir", output], flags)
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)] if ranks > 1 else []
        command = [sys.executable, *launcher, str(ROOT / script), *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, expected, done.stderr[-3000:])
        return output if expected == 0 else done.stderr

    def manifest(self, output) -> dict:
        return json.loads((output / "manifest.json").read_text())

    def commits_read(self, output) -> list[str]:
        hub = self.manifest(output)["hub"]
        return [hub["models"][MODEL]["commit"], hub["datasets"][ROWS]["commit"]]

    @parameterized.parameters(model_files, classifier_files)
    def test_an_export_has_the_weights_of_the_commit_that_is_named(self, files_of_seed):
        repository = "lab/exported"
        earlier = files_of_seed(1)
        commit = self.hub.commit("model", repository, earlier)
        self.hub.commit("model", repository, files_of_seed(2))
        output = folder() / "exported"
        environment = {**os.environ, **self.hub.environment(folder()), "OMP_NUM_THREADS": "1"}
        words = ["--model_name_or_path", repository, "--model_revision", commit, "--output_dir", str(output)]
        subprocess.run([sys.executable, "-m", "t5suite", "export", *words], env=environment, check=True)
        expected = load(earlier["model.safetensors"])
        exported = load_file(output / "model.safetensors")
        self.assertEqual(exported.keys(), expected.keys())
        for name, weight in expected.items():
            self.assertTrue(torch.equal(exported[name], weight), name)

    def revisions(self, output) -> list[str]:
        """The flags that repeat a run, from its manifest."""
        model, rows = self.commits_read(output)
        return ["--model_revision", model, "--data_revision", rows]

    def test_the_manifests_commits_repeat_the_run_after_the_hub_has_moved(self):
        first = self.run_script(folder())
        self.assertEqual(self.commits_read(first), self.commits)
        hub = self.manifest(first)["hub"]
        self.assertEqual({hub["models"][MODEL]["revision"], hub["datasets"][ROWS]["revision"]}, {None})
        card = (first / "README.md").read_text()
        self.assertIn(f"--model_revision {MODEL}={self.commits[0]} --data_revision {ROWS}={self.commits[1]}", card)
        self.assertEqual(ModelCard(card).data.language, ["en"], "as the data set's card says")
        self.assertFalse((first / ".eval_results").exists(), "columns and metric are the user's choice")
        moved = self.move_main()
        again = self.run_script(folder(), *self.revisions(first))
        self.assertEqual(self.commits_read(again), self.commits)
        for name in ("model.safetensors", "results.json"):
            self.assertEqual((again / name).read_bytes(), (first / name).read_bytes(), name)
        self.assertIn("accuracy", json.loads((first / "results.json").read_text())["tasks"]["reviews"])
        named = self.run_script(folder(), "--model_revision", f"{MODEL}={self.commits[0]}",
                                "--data_revision", f"{ROWS}={self.commits[1]}")  # fmt: skip
        self.assertEqual((named / "model.safetensors").read_bytes(), (first / "model.safetensors").read_bytes())
        newest = self.run_script(folder())
        self.assertEqual(self.commits_read(newest), moved)
        self.assertNotEqual((newest / "model.safetensors").read_bytes(), (first / "model.safetensors").read_bytes())
        fingerprints = [
            self.manifest(output)["data"]["reviews.train"]["fingerprint"] for output in (first, again, newest)
        ]
        self.assertEqual(fingerprints[0], fingerprints[1])
        self.assertNotEqual(fingerprints[0], fingerprints[2])

    def test_without_a_network_the_commits_are_those_of_the_cache(self):
        cache = folder()
        first = self.run_script(cache)
        moved = self.move_main()
        newest = self.run_script(cache)
        self.assertEqual(self.commits_read(newest), moved)
        before = len(self.hub.requests)
        offline = self.run_script(cache, offline=True)
        self.assertEqual(self.commits_read(offline), moved)
        repeated = self.run_script(cache, *self.revisions(first), offline=True)
        self.assertLen(self.hub.requests, before, "the network was asked")
        self.assertEqual(self.commits_read(repeated), self.commits)
        for name in ("model.safetensors", "results.json"):
            self.assertEqual((repeated / name).read_bytes(), (first / name).read_bytes(), name)

    @parameterized.parameters("/reviews.py", "/tokenizer_config.json")
    def test_a_branch_that_moves_while_it_is_read_changes_nothing(self, next_file):
        """The hub moves when the first file after the look-up is asked for: of the rows, or of the model."""
        quiet = self.run_script(folder())

        def move(answer):
            self.move_main()
            return answer

        self.hub.faults.append(Fault(next_file, move, times=1))
        start = len(self.hub.requests)
        output = self.run_script(folder())
        by_branch = {asked.path for asked in self.hub.requests[start:] if not COMMIT.search(asked.path)}
        expected = {"/", f"/{MODEL}/resolve/main/config.json", f"/datasets/{ROWS}/resolve/main/README.md"}
        self.assertEqual(by_branch, expected)
        # The rows are looked up for the plan, the model after it: by then the hub may have moved.
        is_model_moved = next_file == "/reviews.py"
        model = self.hub.repositories["model", MODEL].refs["main"] if is_model_moved else self.commits[0]
        self.assertEqual(self.commits_read(output), [model, self.commits[1]])
        is_equal = (output / "model.safetensors").read_bytes() == (quiet / "model.safetensors").read_bytes()
        self.assertEqual(is_equal, not is_model_moved)

    def test_a_run_that_resumes_reads_its_first_commits(self):
        cache, output = folder(), folder() / "run"
        steps = ["--save_strategy=steps", "--save_steps=2", "--eval_strategy=no"]
        whole = self.run_script(cache, *steps)
        self.run_script(cache, *steps, "--max_steps=2", output=output)
        self.move_main()
        self.run_script(cache, *steps, "--extend", output=output)
        self.assertEqual(self.commits_read(output), self.commits)
        self.assertEqual(self.manifest(output)["training"]["from_step"], 2)
        rows = [self.manifest(run)["data"]["reviews.train"] for run in (whole, output)]
        self.assertEqual(rows[0]["commit"], self.commits[1])
        self.assertEqual(rows[0], rows[1])

    def test_a_mixture_of_two_repositories_is_repeated_by_a_list(self):
        self.hub.commit("dataset", OTHER_ROWS, row_files("a walk"))
        tasks = folder() / "tasks.yaml"
        tasks.write_text(TASKS)
        flags = [*f"--task_file {tasks} --benchmark lab --dataset_name reviews,walks".split(), *MIXTURE]
        first = self.run_script(folder(), base=flags)
        read = self.manifest(first)["hub"]["datasets"]
        self.assertEqual(set(read), {ROWS, OTHER_ROWS})
        self.move_main()
        self.hub.commit("dataset", OTHER_ROWS, row_files("a run"))
        revisions = ",".join(f"{name}={entry['commit']}" for name, entry in read.items())
        again = self.run_script(folder(), f"--data_revision={revisions}", base=flags)
        self.assertEqual({name: entry["commit"] for name, entry in self.manifest(again)["hub"]["datasets"].items()},
                         {name: entry["commit"] for name, entry in read.items()})  # fmt: skip
        for name in ("model.safetensors", "results.json"):
            self.assertEqual((again / name).read_bytes(), (first / name).read_bytes(), name)
        message = self.run_script(folder(), "--data_revision", self.commits[1], base=flags, expected=78)
        self.assertIn(f"a commit belongs to one repository, and this run reads {ROWS}, {OTHER_ROWS}", message)

    def test_a_streams_commit_is_in_the_manifest_and_in_its_name_repeats_the_run(self):
        first = self.run_script(folder(), "--train_file", f"hub:{ROWS}", script="pre_train_t5.py", base=STREAM)
        entry = self.manifest(first)["hub"]["datasets"][ROWS]
        self.assertEqual(entry, {"revision": None, "commit": self.commits[1]})
        self.move_main()
        name = f"hub:{ROWS}@{entry['commit']}"
        again = self.run_script(folder(), "--train_file", name, script="pre_train_t5.py", base=STREAM)
        self.assertEqual((again / "model.safetensors").read_bytes(), (first / "model.safetensors").read_bytes())

    def test_a_corpus_is_of_the_commit_that_its_manifest_names(self):
        flags = [
            word
            for word in STREAM
            if word not in ("--streaming", "--num_virtual_streams", "1", "--shuffle_buffer_size", "4")
        ]
        output = self.run_script(folder(), "--train_file", f"hub:{ROWS}", script="pre_train_t5.py", base=flags)
        manifest = json.loads((output / "corpus" / "train" / "corpus.json").read_text())
        self.assertEqual([source["commit"] for source in manifest["sources"]], [self.commits[1]])
        self.assertEqual(self.manifest(output)["hub"]["datasets"][ROWS]["commit"], self.commits[1])

    def test_a_repository_that_is_not_read_stops_the_run(self):
        message = self.run_script(folder(), "--data_revision", f"lab/others={A}", expected=78)
        self.assertIn(f"does not read 'lab/others' from the hub; it reads {ROWS}", message)
        self.assertNotIn("Traceback", message)

    def test_ranks_look_a_branch_up_once(self):
        output = self.run_script(folder(), "--per_device_train_batch_size=2", ranks=2)
        self.assertEqual(self.commits_read(output), self.commits)
        of_branches = [asked.path for asked in self.hub.requests if "/resolve/main/" in asked.path]
        alone = len(self.hub.requests)
        self.run_script(folder())
        of_branches_alone = [asked.path for asked in self.hub.requests[alone:] if "/resolve/main/" in asked.path]
        self.assertCountEqual(of_branches, of_branches_alone)

    def test_a_short_name_is_answered_with_the_whole_one(self):
        self.hub.renamed["dataset", "reviews"] = ROWS
        message = self.run_script(folder(), "--hub_path", "reviews", expected=78)
        self.assertIn(f"has an owner in its name; give {ROWS}", message)


# ---------------------------------------------------------------------------------------------------------------------
# Without a network: the caches, as the hub's client and `datasets` leave them


@functools.cache
def prepared_files(word: str) -> Path:
    """The folder in which `datasets` keeps 16 training and 8 validation rows of its own format."""
    source, files = folder(), {}
    for split, count in (("train", 16), ("validation", 8)):
        rows = [{"text": f"{word} {i}", "label": i % 2} for i in range(count)]
        files[split] = str(write_rows(source / f"{split}.jsonl", rows))
    datasets.load_dataset("json", data_files=files, cache_dir=str(source / "cache"))
    (info,) = (source / "cache").rglob("dataset_info.json")
    return info.parent


@functools.cache
def saved_files(commit: str) -> Path:
    """A tiny T5, another for each commit."""
    return save_model(folder(), tiny_model(config_overrides=TINY, seed=ord(commit[0])))


class OfflineTest(parameterized.TestCase):
    """Two commits of a model and of rows, of which A was read last; the main branch of the model stands for A."""

    def setUp(self):
        super().setUp()
        self.cache = folder()
        self.enter_context(mock.patch("huggingface_hub.constants.HF_HUB_CACHE", str(self.cache / "hub")))
        self.enter_context(mock.patch("datasets.config.HF_DATASETS_CACHE", self.cache / "datasets"))
        self.enter_context(mock.patch.dict(os.environ, HF_HUB_OFFLINE="1"))
        for time, commit in enumerate((B, A)):
            self.cache_model(MODEL, commit)
            self.cache_rows(ROWS, commit, time)
        self.move("model", MODEL, A)
        self.move("dataset", ROWS, A)

    def cache_model(self, name, commit):
        place = self.cache / "hub" / f"models--{name.replace('/', '--')}" / "snapshots" / commit
        shutil.copytree(saved_files(commit), place)

    def cache_rows(self, name, commit, time=0):
        owner, title = name.split("/")
        place = self.cache / "datasets" / f"{owner}___{title}" / "default" / "0.0.0" / commit
        shutil.copytree(prepared_files(commit[0]), place)
        for file in place.glob("json-*.arrow"):
            file.rename(place / file.name.replace("json-", f"{title}-"))
        info = place / "dataset_info.json"
        info.write_text(info.read_text().replace('"dataset_name": "json"', f'"dataset_name": "{title}"'))
        os.utime(place, (1000 + time, 1000 + time))

    def move(self, kind, name, commit, branch="main"):
        """A branch or tag stands for this commit from now on."""
        refs = self.cache / "hub" / f"{kind}s--{name.replace('/', '--')}" / "refs"
        refs.mkdir(parents=True, exist_ok=True)
        (refs / branch).write_text(commit)

    def run_script(self, *flags, base=RUN, output=None, steps=1) -> Path:
        """The directory of a run of one step without evaluations; its weights are those that it read."""
        output = output or folder() / "run"
        plain = ["--max_steps", str(steps), "--eval_strategy=no", "--save_strategy=no", "--learning_rate=0"]
        plain += ["--eval_method=generate", "--max_eval_samples=1"]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            fine_tune_t5.main(later_wins(base, plain, ["--output_dir", output], flags))
        return output

    def hub_of(self, output) -> dict:
        return json.loads((output / "manifest.json").read_text())["hub"]

    def commits_read(self, output) -> tuple[str, str]:
        hub = self.hub_of(output)
        return hub["models"][MODEL]["commit"], hub["datasets"][ROWS]["commit"]

    def assert_weights_of(self, commit, output):
        weights, expected = (load_file(place / "model.safetensors") for place in (output, saved_files(commit)))
        self.assertTrue(all(weights[name].equal(tensor) for name, tensor in expected.items()))


class RevisionsTest(OfflineTest):
    @parameterized.parameters(
        ("x/a=v1,b", "'b' is not of the form repository=revision"),
        ("x/a=", "'x/a=' is not of the form"),
        ("a=v1,a=v2", "a occurs twice"),
    )
    def test_a_list_that_is_none_is_refused(self, text, message):
        for flag in ("--data_revision", "--model_revision"):
            with exits_with(78, f"{flag} .*{message}"):
                self.run_script(flag, text)

    @parameterized.parameters(
        ("--data_revision", RUN, f"does not read 'x/z' .*; it reads {ROWS}$"),
        ("--model_revision", RUN, f"does not read 'x/z' .*; it reads {MODEL}$"),
        ("--data_revision", ["mini.yaml", "--use_cpu"], "does not read 'x/z' .*; it reads nothing"),
        ("--data_revision", "--benchmark super_glue --dataset_name rte,wsc.fixed,dpr --use_cpu".split(),
         f"does not read 'x/z' .*; it reads {SUPER_GLUE}, {DPR}$"),
    )  # fmt: skip
    def test_a_repository_that_is_not_read_is_refused_with_those_that_are(self, flag, base, message):
        with exits_with(78, message):
            self.run_script(flag, "x/z=v1", base=base)

    @pytest.mark.slow
    def test_a_mixture_takes_a_branch_for_all_or_a_list_and_no_single_commit(self):
        self.cache_rows(OTHER_ROWS, C)
        for name, commit in ((ROWS, B), (OTHER_ROWS, C)):
            self.move("dataset", name, commit, "v1")
        tasks = folder() / "tasks.yaml"
        tasks.write_text(TASKS)
        base = [*f"--task_file {tasks} --benchmark lab --dataset_name reviews,walks".split(), *MIXTURE]
        with exits_with(78, f"a commit belongs to one repository.*{ROWS}=REVISION,{OTHER_ROWS}=REVISION"):
            self.run_script("--data_revision", A, base=base)
        of_branch = self.hub_of(self.run_script("--data_revision=v1", base=base))["datasets"]
        expected = {ROWS: {"revision": "v1", "commit": B}, OTHER_ROWS: {"revision": "v1", "commit": C}}
        self.assertEqual(of_branch, expected)
        of_list = self.hub_of(self.run_script(f"--data_revision={ROWS}={A}, {OTHER_ROWS}=v1", base=base))["datasets"]
        self.assertEqual(of_list, {**expected, ROWS: {"revision": A, "commit": A}})

    @pytest.mark.slow
    def test_local_rows_and_models_are_no_repositories(self):
        """Though folders bear the names of repositories in the cache."""
        place = folder()
        shutil.copytree(saved_files(C), place / MODEL)
        for split in ("train", "validation"):
            write_rows(
                place / "data" / "super_glue" / "rte" / f"{split}.jsonl",
                [example_row(load_task("super_glue", "rte"))] * 4,
            )
        base = (
            f"--benchmark super_glue --dataset_name rte --data_dir data --model_name_or_path {MODEL} --use_cpu".split()
        )
        with contextlib.chdir(place):
            output = self.run_script("--disable_tqdm=True", base=base)
        self.assertEqual(self.hub_of(output), {})
        self.assert_weights_of(C, output)


class ReadsTest(OfflineTest):
    def test_a_branch_is_looked_up_once_in_a_run_and_anew_in_the_next(self):
        read_tokenizer = transformers.AutoTokenizer.from_pretrained

        def move_and_read(*arguments, **settings):
            self.move("model", MODEL, B)
            return read_tokenizer(*arguments, **settings)

        with mock.patch.object(transformers.AutoTokenizer, "from_pretrained", side_effect=move_and_read) as read:
            output = self.run_script()
        self.assertTrue(read.called)
        self.assertEqual(self.hub_of(output)["models"], {MODEL: {"revision": None, "commit": A}})
        self.assert_weights_of(A, output)
        output = self.run_script()
        self.assertEqual(self.hub_of(output)["models"], {MODEL: {"revision": None, "commit": B}})
        self.assert_weights_of(B, output)

    def test_a_run_that_resumes_reads_the_commits_of_its_first_start(self):
        """The model's main branch and a branch of the rows have moved since."""
        self.move("dataset", ROWS, A, "v1")
        flags = ["--save_strategy=steps", "--save_steps=1", "--data_revision=v1"]
        output = self.run_script(*flags)
        self.move("model", MODEL, B)
        self.move("dataset", ROWS, B, "v1")
        self.run_script(*flags, "--extend", output=output, steps=2)
        self.assertEqual(json.loads((output / "manifest.json").read_text())["training"]["from_step"], 1)
        self.assertEqual(self.commits_read(output), (A, A))
        self.assertEqual(self.commits_read(self.run_script("--data_revision=v1")), (B, B))

    def test_an_adapter_names_the_commit_of_its_base(self):
        output = self.run_script("--adapter=lora")
        self.move("model", MODEL, B)
        self.assertEqual(json.loads((output / "adapter_config.json").read_text())["revision"], A)
        base = tiny_tuner(str(output)).model.get_base_model()
        expected = load_file(saved_files(A) / "model.safetensors")
        self.assertTrue(base.get_input_embeddings().weight.equal(expected["shared.weight"]))

    def test_a_commit_is_read_whatever_the_branches_stand_for(self):
        output = self.run_script("--model_revision", B, "--data_revision", B)
        self.assertEqual(self.commits_read(output), (B, B))
        self.assert_weights_of(B, output)

    def test_a_list_also_names_the_teacher(self):
        teacher = "lab/teacher"
        self.cache_model(teacher, B)
        self.move("model", teacher, A)
        output = self.run_script("--teacher", teacher, f"--model_revision={teacher}={B}")
        expected = {MODEL: {"revision": None, "commit": A}, teacher: {"revision": B, "commit": B}}
        self.assertEqual(self.hub_of(output)["models"], expected)

    @pytest.mark.slow
    def test_each_of_two_objects_reads_what_it_looked_up(self):
        settings = {"max_steps": 1, "learning_rate": 0.0, "eval_strategy": "no", "save_strategy": "no"}
        first = tiny_tuner(MODEL, "mini/sentiment", max_train_samples=8, **settings)
        self.move("model", MODEL, B)
        second = tiny_tuner(MODEL, "mini/sentiment", max_train_samples=8, **settings)
        for tuner, commit in ((first, A), (second, B)):
            tuner.train()
            output = Path(tuner.args.output_dir)
            self.assertEqual(self.hub_of(output)["models"], {MODEL: {"revision": None, "commit": commit}})
            self.assert_weights_of(commit, output)


FREE_NUMBERS = {"metric_names": ["pearson"], "metric_to_optimize": "pearson"}


class RowsTest(OfflineTest):
    """Rows that `datasets` has prepared."""

    def first_letter(self, name=ROWS, **flags) -> str:
        """Of the rows that are read: each commit has its own."""
        task = make_task(hub_path=name, splits={"train": "train"})
        return load_rows(task, "train", **flags)[0]["text"][0]

    def test_the_commit_that_is_asked_for_is_read_not_the_latest(self):
        for commit in (A, B):
            self.assertEqual(self.first_letter(data_revision=commit), commit[0])
        with exits_with(65, f"lacks the revision that is asked for .{C}.; it has {B}, {A}"):
            self.first_letter(data_revision=C)

    def test_without_a_revision_the_main_branch_is_read_and_the_latest_if_that_is_not_known(self):
        for name, commit in (("lab/one", A), ("lab/two", B), ("lab/three", None)):
            for time, prepared in enumerate((B, A)):
                self.cache_rows(name, prepared, time)
            if commit is not None:
                self.move("dataset", name, commit)
            self.assertEqual(self.first_letter(name), (commit or A)[0], name)

    def test_rows_of_the_commit_that_is_asked_for_are_taken_as_the_library_gives_them(self):
        """They need no prepared copy, as those of another commit do."""
        (file,) = (self.cache / "datasets").rglob(f"{A}/*train*.arrow")
        rows = datasets.Dataset.from_file(str(file))
        self.enter_context(mock.patch.object(datasets, "load_dataset", return_value=rows))
        for commit in (A, None):
            self.assertEqual(self.first_letter("lab/unprepared", data_revision=commit), A[0])

    def test_files_that_cannot_be_read_together_are_named_with_the_cause(self):
        error = datasets.exceptions.DatasetGenerationError("An error occurred while generating the dataset")
        error.__cause__ = TypeError("Couldn't cast array of type string to int64")
        self.enter_context(mock.patch.object(datasets, "load_dataset", side_effect=error))
        with exits_with(65, r"lab/mixed: its files cannot be read \(Couldn't cast"):
            self.first_letter("lab/mixed")

    def test_a_narrow_number_is_the_decimal_that_it_stands_for(self):
        """A float32 is none of 3.8; where the numbers are no labels, and where they are wide, nothing changes."""
        task = make_task(hub_path="lab/prices", splits={"train": "train"}, labels=None, **FREE_NUMBERS)
        for kind, changes in (("float32", True), ("float64", False)):
            features = {"text": datasets.Value("string")} | dict.fromkeys(("label", "other"), datasets.Value(kind))
            columns = {"text": ["a", "b"], "label": [3.8, 5.0], "other": [3.8, 5.0]}
            dataset = datasets.Dataset.from_dict(columns, datasets.Features(features))
            self.assertEqual(dataset[0]["label"] != 3.8, changes)
            with mock.patch.object(datasets, "load_dataset", return_value=dataset):
                rows = load_rows(task, "train")
            self.assertEqual([row["label"] for row in rows], [3.8, 5.0])
            self.assertEqual([row["other"] for row in rows], dataset["other"][:])

    def test_a_short_name_is_refused(self):
        with exits_with(78, "reviews: .* has an owner in its name; give OWNER/NAME"):
            self.run_script("--hub_path", "reviews")
