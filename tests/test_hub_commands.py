"""Every command of the README and docs/ that reads the hub runs from a clean cache against a hub of the real layouts."""

import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from absl.testing import parameterized
from documented import BUNDLED, MAKERS, ROOT, bash, blocks, pages, workplace
from hub_repositories import RENAMED, TOKEN, c4_repository, copy_into, publish_all
from hub_server import HubServer
from support import folder, later_wins

from t5suite.constants import DATASET_VALS

TABLE = yaml.safe_load((Path(__file__).parent / "hub_commands.yaml").read_text())
# Pages whose commands show mistakes, or run offline in tests of their own.
OTHER_PAGES = ("docs/troubleshooting.md", "docs/coverage.md")
# Appended to every command of a script, in place of the same flags.
QUICK = "--use_cpu --bf16 False --disable_tqdm True --logging_steps 1 --per_device_train_batch_size 4 --max_steps 2"
FINE_TUNE = (
    f"{QUICK} --eval_strategy steps --eval_steps 1 --max_eval_samples 8 --max_source_length 32 --max_target_length 16 "
    "--warmup_steps 0 --overwrite_output_dir"
)
PRE_TRAIN = f"{QUICK} --eval_strategy steps --eval_steps 1 --max_eval_samples 4 --inputs_length 16 --warmup_steps 0"
HUB_BENCHMARKS = {
    benchmark for benchmark, tasks in DATASET_VALS.items() if any("hub_path" in entry for entry in tasks.values())
}
# Flags that name a repository; --config_name names a type of models, too.
MODEL_FLAGS = ("model_name_or_path", "tokenizer_name", "teacher", "adapter_base")
BARE_REPOSITORIES = [name for _, name in RENAMED if "/" not in name]
ROW_FLAGS = ("data_dir", "train_file", "train_dir", "rows", "data_format", "data_class")
# Sub-commands that read rows.
READING_ROWS = ("fine_tune", "evaluate", "mirror", "fine_tune_t5.py", "slurm", "sweep")


class Documented(NamedTuple):
    """A command and the page that it stands on."""

    page: str
    command: str


def flags_of_command(command: str) -> dict[str, object]:
    """The flags of a command, with those of its recipe or sweep file."""
    words = shlex.split(command, comments=True)
    flags = {}
    for word in words:
        if word.endswith(".yaml") and not word.startswith("-"):
            flags |= _flags_of_file(word)
    return flags | flags_in(words)


def flags_in(words: list[str]) -> dict[str, object]:
    """Each flag's value; True for a flag without one, a list for several."""
    values: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            values[name] = [value] if equals else []
        elif name:
            values[name].append(word)
    return {name: texts if len(texts) > 1 else texts[0] if texts else True for name, texts in values.items()}


def _flags_of_file(name: str) -> dict[str, object]:
    for place in (ROOT / name, ROOT / "recipes" / name):
        if place.is_file():
            content = yaml.safe_load(place.read_text())
            if "parameters" in content:
                return {flag: entry.get("value") for flag, entry in content["parameters"].items()}
            return content
    return {}


def reads_the_hub(command: str) -> bool:
    """Whether a command names a model, rows or a text of the hub, or a task whose rows are there."""
    words = shlex.split(command, comments=True)
    flags = flags_of_command(command)
    if any(str(value).startswith("hub:") for value in _values(flags, ("train_file", "input", "validation_file"))):
        return True
    if any(is_repository(str(value)) for value in _values(flags, MODEL_FLAGS)):
        return True
    if "hub_path" in flags or flags.get("push_to_hub"):
        return True
    reads_rows = any(word in READING_ROWS for word in words)
    return reads_rows and flags.get("benchmark") in HUB_BENCHMARKS and not set(flags) & set(ROW_FLAGS)


def _values(flags: dict, names) -> list:
    values = [flags[name] for name in names if flags.get(name)]
    return [item for value in values for item in (value if isinstance(value, list) else [value])]


def is_repository(name: str) -> bool:
    """Whether a name is a repository's, not a folder's that another command of the page makes, nor a placeholder."""
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) is None or (ROOT / name).exists():
        return False
    is_bare = "/" not in name and name not in BARE_REPOSITORIES
    return not (is_bare or name.startswith(("runs/", "models/", "t5suite/", "$")) or name.isupper())


def documented_commands() -> list[Documented]:
    """All commands that read the hub, page by page."""
    commands = []
    for page in pages():
        name = str(page.relative_to(ROOT))
        if name not in OTHER_PAGES:
            commands += [
                Documented(name, command)
                for block in blocks(page)
                for command in block.commands
                if "t5suite" in command or "_t5.py" in command
                if reads_the_hub(command)
            ]
    return commands


def entries() -> list[tuple[Documented, dict | None]]:
    """Each command with its entry of the table; None: it has none."""
    unclaimed = {page: list(rows) for page, rows in TABLE.items()}
    pairs = []
    for documented in documented_commands():
        rows = unclaimed.get(documented.page, [])
        entry = next((row for row in rows if documented.command.startswith(row["command"])), None)
        if entry is not None:
            rows.remove(entry)
        pairs.append((documented, entry))
    return pairs


def small(command: str, flags: str) -> str:
    """A command with few steps and rows, by flags that are appended."""
    words = shlex.split(re.sub(r" \.\.\.(?= |$)", "", command), comments=True)
    script = next((word for word in words if word in ("fine_tune", "pre_train", "evaluate")), None)
    quick = {"fine_tune": FINE_TUNE, "evaluate": FINE_TUNE, "pre_train": PRE_TRAIN}.get(script, "")
    return shlex.join(later_wins(words, quick.split(), shlex.split(flags)))


ENTRIES = entries()
RUN = [(documented.page, documented.command) for documented, entry in ENTRIES if entry and "why" not in entry]


class CollectionTest(parameterized.TestCase):
    def test_every_command_that_reads_the_hub_has_an_entry_and_every_entry_a_command(self):
        missing = [documented for documented, entry in ENTRIES if entry is None]
        self.assertEmpty(missing, "add it to tests/hub_commands.yaml")
        claimed = [entry["command"] for _, entry in ENTRIES]
        self.assertCountEqual(claimed, [row["command"] for rows in TABLE.values() for row in rows])

    @parameterized.parameters(
        ("t5suite fine_tune --model_name_or_path google/t5-v1_1-small --train_file rows.jsonl", True),
        ("t5suite fine_tune --benchmark glue --dataset_name rte", True),
        ("t5suite fine_tune --benchmark glue --dataset_name rte --data_dir data", False),
        ("t5suite fine_tune --benchmark mini --model_name_or_path runs/x", False),
        ("t5suite pre_train t5_v1_1_base_16h.yaml", True),
        ("t5suite pre_train --train_file hub:allenai/c4:en:train --streaming", True),
        ("t5suite fine_tune --config_name gpt2 --eval_method score", False),
        ("t5suite fine_tune --model_name_or_path gpt2", True),
        ("t5suite fine_tune mini.yaml --push_to_hub", True),
        ("t5suite sweep sweeps/glue_rte_sweep.yaml", True),
        ("t5suite tasks --benchmark glue", False),
        ("t5suite mirror --benchmark glue --output_dir data", True),
    )
    def test_a_command_is_known_by_what_it_names(self, command, expected):
        self.assertEqual(reads_the_hub(command), expected)


class HubTest(parameterized.TestCase):
    """Tests with a hub of all repositories, each command in a folder and with a cache of its own."""

    def setUp(self):
        super().setUp()
        self.hub = self.enter_context(HubServer())
        publish_all(self.hub)

    def run_in_shell(self, command: str, before: str = "", place: Path | None = None, **environment) -> str:
        """What a command prints; it fails the test if the command fails."""
        settings = {
            "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "118", "BUNDLED": str(BUNDLED),
            "T5SUITE_DATA_DIR": "", **self.hub.environment(folder()), **environment,
        }  # fmt: skip
        script = "\n".join(["set -e", "unset T5SUITE_DATA_DIR HF_TOKEN_PATH", MAKERS, before, command])
        done = bash(script, place or workplace(), settings)
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout[-4000:]}")
        return done.stdout


@pytest.mark.slow
class DocumentedCommandsTest(HubTest):
    @parameterized.parameters(*RUN)
    def test_it_runs_from_a_clean_cache(self, page, command):
        entry = next(entry for documented, entry in ENTRIES if documented == (page, command))
        line = small(command, entry.get("flags", ""))
        for word, repository in COMMITS.items():
            line = line.replace(word, self.hub.repositories[repository].refs["main"])
        self.run_in_shell(line, entry.get("before", ""))
        self.assertIn(200, {request.status for request in self.hub.requests if "/resolve/" in request.path})


COMMITS = {
    "MODEL_COMMIT": ("model", "google/t5-v1_1-small"),
    "DATA_COMMIT": ("dataset", "aps/super_glue"),
    "DPR_COMMIT": ("dataset", "community-datasets/definite_pronoun_resolution"),
}
RTE = f"t5suite fine_tune --benchmark glue --dataset_name rte {FINE_TUNE} --output_dir run"


@pytest.mark.slow
class LayoutsTest(HubTest):
    """Forms of repositories that no documented command names."""

    @parameterized.parameters("google-t5/t5-small", "t5-small", "google/byt5-small")
    def test_models_of_every_form_train(self, name):
        self.run_in_shell(f"{RTE} --model_name_or_path {name}")

    def test_an_adapter_is_read_from_a_folder_and_its_base_from_the_hub(self):
        with self.assertRaisesRegex(AssertionError, "lab/t5-lora is an adapter, .*hf download lab/t5-lora"):
            self.run_in_shell(f"{RTE} --model_name_or_path lab/t5-lora")
        adapter = copy_into(folder() / "adapter", "model", "lab/t5-lora")
        self.run_in_shell(f"{RTE} --model_name_or_path {adapter} --tokenizer_name google/t5-v1_1-small")

    def test_the_short_name_of_a_data_set_is_answered_with_the_whole_one(self):
        for command in (
            f"t5suite fine_tune --data_format hub --hub_path imdb --text_column text --target_column label {FINE_TUNE}",
            f"t5suite pre_train --train_file hub:imdb --streaming {PRE_TRAIN}",
        ):
            with self.assertRaisesRegex(AssertionError, "imdb: a data set of the hub .*; give stanfordnlp/imdb"):
                self.run_in_shell(command)

    def test_what_is_private_or_gated_needs_a_token(self):
        for name in ("lab/private-t5", "lab/gated-t5"):
            self.run_in_shell(f"{RTE} --model_name_or_path {name}", HF_TOKEN=TOKEN)
            with self.assertRaises(AssertionError):
                self.run_in_shell(f"{RTE} --model_name_or_path {name}")

    def test_scrolls_is_read_from_its_archives_and_mirrored(self):
        place = workplace()
        task = "--benchmark scrolls --dataset_name narrative_qa"
        self.run_in_shell(f"t5suite fine_tune {task} {FINE_TUNE} --output_dir run", place=place)
        results = json.loads((place / "run/results.json").read_text())
        self.assertIn("f1", results["tasks"]["narrative_qa"])
        self.run_in_shell(f"t5suite mirror {task} --output_dir data", place=place)
        rows = (place / "data/scrolls/narrative_qa/train.jsonl").read_text().splitlines()
        self.assertEqual(json.loads(rows[1])["output"], "answer 1")

    def test_the_stand_ins_tokenizer_is_trained_and_used_from_the_hubs_text(self):
        place = workplace()
        self.run_in_shell(
            "t5suite tokenizer train --input hub:allenai/c4:en:train --type unigram --vocab_size 138 --output_dir words",
            place=place,
        )
        self.assertTrue((place / "words/spiece.model").is_file())

    def test_41_files_take_few_more_requests_than_64(self):
        requests = {}
        for file_count in (64, 41):
            self.hub.commit("dataset", "allenai/c4", c4_repository(file_count, 64))
            start = len(self.hub.requests)
            command = "t5suite pre_train --streaming --train_file hub:allenai/c4:en:train --validation_fraction 0.01"
            self.run_in_shell(small(command, "--max_steps 20 --shuffle_buffer_size 128 --eval_strategy no"))
            requests[file_count] = len(self.hub.requests) - start
        self.assertLessEqual(requests[41], 1.2 * requests[64], requests)
