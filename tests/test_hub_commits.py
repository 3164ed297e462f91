"""A run reads commits of the hub: the same ones for model, tokenizer and rows, told by the manifest, read again by it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import datasets
import pytest
import transformers
from absl.testing import parameterized
from hub_server import Fault, HubServer
from support import folder, later_wins

from t5suite.base import hub_commits
from t5suite.base.hub_commits import (
    COMMIT,
    HubReads,
    Request,
    check_revisions,
    commit_to_read,
    hub_reads,
    parse_revisions,
    reading_as,
    revision_of,
)
from t5suite.data.corpora.documents import at_commit
from t5suite.data.corpora.store import MANIFEST as CORPUS
from t5suite.data.rows.hub_data_sets import check_whole_name, load_hub_data, prepared_folder
from t5suite.models.loading import load_model
from t5suite.testing import exits_with, tiny_tokenizer
from t5suite.training.flags.data import DataArguments
from t5suite.training.flags.model import ModelArguments
from t5suite.training.hub_reads import begin_hub_reads, data_requests, model_requests, settle_hub_reads
from t5suite.training.plans import plan_tasks

ROOT = Path(__file__).parent.parent
DATA_SETS = "t5suite.data.rows.hub_data_sets"
A, B = "a" * 40, "b" * 40
SUPER_GLUE, DPR = "aps/super_glue", "community-datasets/definite_pronoun_resolution"


def asked_of(hub):
    """Replaces the question that is put to the hub by a table: what a branch stands for now."""
    return mock.patch.object(hub_commits, "_commit_of", side_effect=lambda request: hub[request.repository])


class RevisionsTest(parameterized.TestCase):
    def test_one_revision_or_one_for_each_repository(self):
        self.assertIsNone(parse_revisions(None, "--data_revision"))
        self.assertEqual(parse_revisions("refs/pr/1", "--data_revision"), "refs/pr/1")
        self.assertEqual(parse_revisions("x/a=v1, b=v2", "--data_revision"), {"x/a": "v1", "b": "v2"})
        self.assertEqual(revision_of("x/a=v1,b=v2", "b"), "v2")
        self.assertIsNone(revision_of("x/a=v1", "b"))
        self.assertEqual(revision_of("v1", "b"), "v1")

    @parameterized.parameters(
        ("x/a=v1,b", "'b' is not of the form repository=revision"),
        ("x/a=", "'x/a=' is not of the form"),
        ("a=v1,a=v2", "a occurs twice"),
    )
    def test_a_list_that_is_none_is_refused(self, text, message):
        with exits_with(78, message):
            parse_revisions(text, "--data_revision")

    def test_a_repository_that_is_not_read_is_refused_with_those_that_are(self):
        with exits_with(78, "--data_revision: .* does not read 'x/z' .*; it reads x/a, x/b") as caught:
            check_revisions("x/z=v1", "--data_revision", ["x/a", "x/b"])
        self.assertEqual(caught.exception.exit_code, 78)
        with exits_with(78, "it reads nothing"):
            check_revisions("x/z=v1", "--data_revision", [])

    def test_one_commit_for_several_repositories_is_refused_and_a_branch_taken(self):
        self.assertEqual(check_revisions("v1", "--data_revision", ["a", "b"]), {"a": "v1", "b": "v1"})
        self.assertEqual(check_revisions(A, "--data_revision", ["a"]), {"a": A})
        with exits_with(78, "a commit belongs to one repository.*a=REVISION,b=REVISION"):
            check_revisions(A, "--data_revision", ["a", "b"])

    def test_a_mixture_names_every_repository_that_it_reads(self):
        plan = plan_tasks("super_glue", "rte,wsc.fixed,dpr")
        flags = DataArguments(data_revision=f"{SUPER_GLUE}={A},{DPR}=v2")
        requests = data_requests(plan, flags, ["train", "validation"])
        self.assertEqual(requests, [Request("dataset", SUPER_GLUE, A), Request("dataset", DPR, "v2")])
        with exits_with(78, f"does not read 'nyu-mll/glue'.*it reads {SUPER_GLUE}, {DPR}"):
            data_requests(plan, DataArguments(data_revision="nyu-mll/glue=v1"), ["train"])

    def test_local_rows_and_models_ask_nobody(self):
        directory = folder()
        plan = plan_tasks("super_glue", "rte,dpr")
        self.assertEmpty(data_requests(plan, DataArguments(data_dir=str(directory)), ["train", "validation"]))
        self.assertEmpty(model_requests(ModelArguments()))
        self.assertEmpty(model_requests(ModelArguments(config_name="bert", tokenizer_name=str(directory))))
        with mock.patch.object(hub_commits, "prepare_hub", side_effect=AssertionError("the hub was asked")):
            self.assertIsNone(commit_to_read("dataset", str(directory), "v1"))
            settle_hub_reads([])


class ReadsTest(parameterized.TestCase):
    def test_a_branch_is_looked_up_once_in_a_run(self):
        hub = {"x/a": A}
        with asked_of(hub), reading_as(HubReads()) as reads:
            self.assertEqual(commit_to_read("model", "x/a", "main"), A)
            hub["x/a"] = B
            self.assertEqual(commit_to_read("model", "x/a", "main"), A)
            self.assertEqual(reads.described(), {"models": {"x/a": {"revision": "main", "commit": A}}})
            with reading_as(HubReads()):
                self.assertEqual(commit_to_read("model", "x/a", "main"), B)

    def test_a_run_that_resumes_reads_the_commits_of_its_first_start(self):
        hub = {"x/a": A, "x/rows": A}
        with asked_of(hub), reading_as(HubReads()) as reads:
            for kind, name in (("model", "x/a"), ("dataset", "x/rows")):
                commit_to_read(kind, name)
            described = json.loads(json.dumps(reads.described()))
        hub.update({"x/a": B, "x/rows": B})
        with asked_of(hub), reading_as(HubReads()):
            settle_hub_reads([Request("model", "x/a"), Request("dataset", "x/rows")], described)
            self.assertEqual((commit_to_read("model", "x/a"), commit_to_read("dataset", "x/rows")), (A, A))
            self.assertEqual(commit_to_read("model", "x/a", "main"), B, "another revision is asked for")

    def test_a_commit_is_read_without_asking(self):
        with asked_of({}), reading_as(HubReads()) as reads:
            self.assertEqual(commit_to_read("model", "x/a", A), A)
            self.assertEqual(reads.described()["models"]["x/a"]["commit"], A)

    def test_a_list_also_names_the_model_that_no_flag_has_a_revision_for(self):
        with asked_of({"x/student": A}), reading_as(HubReads()):
            begin_hub_reads(f"x/teacher={B}")
            self.assertEqual(commit_to_read("model", "x/teacher"), B)
            self.assertEqual(commit_to_read("model", "x/student", f"x/teacher={B}"), A)
            flags = ModelArguments(model_name_or_path="x/student", model_revision=f"x/teacher={B}")
            requests = model_requests(flags, teacher="x/teacher")
            self.assertEqual(requests, [Request("model", "x/student"), Request("model", "x/teacher", B)])

    def test_every_rank_reads_what_the_first_one_found(self):
        ranks = SimpleNamespace(together=lambda function, requests: dict.fromkeys(requests, A))
        with asked_of({"x/a": B}), reading_as(HubReads()):
            with mock.patch("t5suite.training.hub_reads.Ranks.of_process", return_value=ranks):
                settle_hub_reads([Request("model", "x/a")])
            self.assertEqual(commit_to_read("model", "x/a"), A)


class PreparedTest(parameterized.TestCase):
    """The cache of `datasets`, with two commits of one data set of which the older one was prepared last."""

    def setUp(self):
        super().setUp()
        cache = folder()
        self.enter_context(mock.patch("datasets.config.HF_DATASETS_CACHE", cache))
        for number, commit in enumerate((B, A)):
            place = cache / "x___rows" / "default" / "0.0.0" / commit
            place.mkdir(parents=True)
            (place / "dataset_info.json").write_text("{}")
            os.utime(place, (1000 + number, 1000 + number))

    def test_the_commit_that_is_asked_for_is_taken_not_the_latest(self):
        for commit in (A, B):
            self.assertEqual(prepared_folder("x/rows", None, commit, True).name, commit)
            self.assertEqual(prepared_folder("x/rows", "default", commit, False).name, commit)

    def test_one_that_is_not_there_is_refused_if_it_was_asked_for(self):
        with exits_with(65, f"lacks the revision that is asked for .c{{40}}.; it has {B}, {A}"):
            prepared_folder("x/rows", None, "c" * 40, True)
        self.assertEqual(prepared_folder("x/rows", None, None, False).name, A)
        self.assertIsNone(prepared_folder("x/others", None, A, True))


class WrongFilesTest(parameterized.TestCase):
    """What `datasets` says of a repository is said as an error of data, not as a traceback."""

    def test_files_that_cannot_be_read_together_are_named_with_the_cause(self):
        error = datasets.exceptions.DatasetGenerationError("An error occurred while generating the dataset")
        error.__cause__ = TypeError("Couldn't cast array of type string to int64")
        self.enter_context(mock.patch(f"{DATA_SETS}.prepare_hub", return_value=True))
        self.enter_context(mock.patch.object(datasets, "load_dataset", side_effect=error))
        self.enter_context(asked_of({"x/rows": A}))
        self.enter_context(reading_as(HubReads()))
        with exits_with(65, r"x/rows \(rte\): its files cannot be read \(Couldn't cast"):
            load_hub_data("x/rows", "rte", "train")

    @parameterized.parameters((True, "stanfordnlp/imdb", "give stanfordnlp/imdb"), (False, None, "give OWNER/NAME"))
    def test_a_short_name_is_answered_with_the_whole_one(self, is_online, whole_name, hint):
        information = SimpleNamespace(id=whole_name)
        self.enter_context(mock.patch(f"{DATA_SETS}.prepare_hub", return_value=is_online))
        self.enter_context(mock.patch("huggingface_hub.HfApi.dataset_info", return_value=information))
        check_whole_name("stanfordnlp/imdb")
        with exits_with(78, f"imdb: .* has an owner in its name; {hint}"):
            check_whole_name("imdb")


TINY = "d_model=16,d_kv=4,d_ff=24,num_layers=1,num_heads=2"
MODEL, ROWS = "lab/tiny-t5", "lab/reviews"
RUN = (
    f"--model_name_or_path {MODEL} --data_format hub --hub_path {ROWS} --text_column text --target_column label "
    "--labels good,bad --eval_method score --max_steps 4 --per_device_train_batch_size 4 --use_cpu --disable_tqdm True "
    "--max_target_length 8 --max_source_length 32 --learning_rate 1e-2"
).split()


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
    transformers.set_seed(seed)
    tokenizer = tiny_tokenizer()
    load_model(tokenizer=tokenizer, config_overrides=TINY).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def row_files(word: str) -> dict[str, bytes]:
    """A data set of 16 training and 8 validation rows, without and with a card."""
    files = {"README.md": b"---\nlicense: mit\n---\n"}
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

    def run_script(self, cache, *flags, script="fine_tune_t5.py", base=RUN, offline=False, output=None, expected=0):
        output = output or folder() / "run"
        environment = {**os.environ, **self.hub.environment(cache), "OMP_NUM_THREADS": "1"}
        if offline:
            environment |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
        words = later_wins(base, ["--output_dir", output], flags)
        command = [sys.executable, str(ROOT / script), *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, expected, done.stderr[-3000:])
        return output if expected == 0 else done.stderr

    def manifest(self, output) -> dict:
        return json.loads((output / "manifest.json").read_text())

    def commits_read(self, output) -> list[str]:
        hub = self.manifest(output)["hub"]
        return [hub["models"][MODEL]["commit"], hub["datasets"][ROWS]["commit"]]

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
        manifest = json.loads((output / "corpus" / "train" / CORPUS).read_text())
        self.assertEqual([source["commit"] for source in manifest["sources"]], [self.commits[1]])
        self.assertEqual(self.manifest(output)["hub"]["datasets"][ROWS]["commit"], self.commits[1])
        self.assertEqual(at_commit("hub:a/b@main:en:train", A), f"hub:a/b@{A}:en:train")
        self.assertEqual(at_commit("hub:a/b", A), f"hub:a/b@{A}")

    def test_a_repository_that_is_not_read_stops_the_run(self):
        message = self.run_script(folder(), "--data_revision", f"lab/others={A}", expected=78)
        self.assertIn(f"does not read 'lab/others' from the hub; it reads {ROWS}", message)
        self.assertNotIn("Traceback", message)


class ProcessTest(parameterized.TestCase):
    def test_reads_of_a_block_stay_in_it(self):
        outer = hub_reads()
        with reading_as(HubReads()) as inner:
            self.assertIs(hub_reads(), inner)
        self.assertIs(hub_reads(), outer)
