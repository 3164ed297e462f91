"""Packaged files for DeepSpeed and accelerate, and what they, the environment and our flags say of one another."""

import contextlib
import json
import math
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import yaml
from absl.testing import parameterized
from ranks_in_threads import on_ranks
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

os.environ.setdefault("DS_ACCELERATOR", "cpu")

from t5suite.testing import exits_with, parse_flags, tiny_run, tiny_trainer

ROOT = Path(__file__).parent.parent
NAMES = {
    "zero1": "zero_stage1_config.json",
    "zero2": "zero_stage2_config.json",
    "zero2_offload": "zero_stage2_offload_config.json",
    "zero3": "zero_stage3_config.json",
    "zero3_nvme": "zero_stage3_nvme_config.json",
    "zero3_offload": "zero_stage3_offload_config.json",
}
ACCELERATE_FILES = sorted(path.name for path in (ROOT / "accelerate_configs").glob("*.yaml"))
NVME_PATH = "zero_optimization.offload_{}.nvme_path"
GATHER = "stage3_gather_16bit_weights_on_model_save"
# What accelerate's launcher leaves in the environment, and a test may meet.
LAUNCHED = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "T5SUITE_"))
}


def config_of(**settings) -> dict:
    return {"zero_optimization": {"stage": 2}, **settings}


def written(config) -> str:
    """The path of a file of one's own with this configuration."""
    path = Path(tempfile.mkdtemp()) / "ds.json"
    path.write_text(json.dumps(config))
    return str(path)


def settings_of(*words: str, **variables: str) -> dict:
    """The settings of a script with these words and variables; DeepSpeed's start, which may compile, is left out."""
    environment = mock.patch.dict(os.environ, {**LAUNCHED, **variables}, clear=True)
    with environment, mock.patch("deepspeed.init_distributed"):
        return parse_flags("fine_tune_t5", ["--use_cpu", *words])


def deepspeed_of(*words: str, **variables: str) -> dict:
    """The configuration that a script hands to DeepSpeed."""
    return settings_of("--deepspeed", *words, **variables)["deepspeed"]


class EndsHere(Exception):
    """Ends the parsing of flags."""


def environment_for_hugging_face(*words: str, **variables: str) -> dict[str, str]:
    """The environment in which Hugging Face's training arguments look for ranks."""
    environment = {}

    def note_environment(self):
        environment.update(os.environ)
        raise EndsHere

    noting = mock.patch.object(Seq2SeqTrainingArguments, "__post_init__", note_environment)
    with noting, contextlib.suppress(EndsHere):
        settings_of(*words, **variables)
    return environment


def nvme_overrides(*folders) -> str:
    """`--deepspeed_overrides` with the folders for the optimizer's state and the parameters."""
    pairs = zip(("optimizer", "param"), folders, strict=True)
    return ",".join(f"{NVME_PATH.format(part)}={json.dumps(folder)}" for part, folder in pairs)


def needed_words(name: str) -> list[str]:
    """What must be given beside a packaged file's name."""
    folder = tempfile.mkdtemp()
    return ["--deepspeed_overrides", nvme_overrides(folder, folder)] if name == "zero3_nvme" else []


class DeepSpeedFilesTest(parameterized.TestCase):
    def test_every_packaged_file_has_a_name(self):
        files = [path.name for path in (ROOT / "deepspeed_configs").glob("*.json")]
        self.assertSameElements(files, NAMES.values())

    @parameterized.parameters(*NAMES)
    def test_a_packaged_file_is_found_from_anywhere(self, name):
        file, words = NAMES[name], needed_words(name)
        with contextlib.chdir(tempfile.mkdtemp()):
            config = deepspeed_of(name, *words)
            for other_name in (file, f"deepspeed_configs/{file}"):
                self.assertEqual(deepspeed_of(other_name, *words), config)
        self.assertEqual(config["zero_optimization"]["stage"], int(name[4]))

    @parameterized.parameters(*NAMES)
    def test_a_packaged_file_leaves_to_the_flags_what_is_theirs(self, name):
        config = json.loads((ROOT / "deepspeed_configs" / NAMES[name]).read_text())
        sizes = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
        for value in (*(config[size] for size in sizes), config["gradient_clipping"]):
            self.assertEqual(value, "auto")
        for precision in ("bf16", "fp16"):
            self.assertEqual(config[precision]["enabled"], "auto")
        self.assertEmpty({"optimizer", "scheduler"} & {*config})
        zero = config["zero_optimization"]
        devices = [zero.get(f"offload_{part}", {}).get("device") for part in ("optimizer", "param")]
        expected = {"zero2_offload": ["cpu", None], "zero3_offload": ["cpu"] * 2, "zero3_nvme": ["nvme"] * 2}
        self.assertEqual(devices, expected.get(name, [None, None]))

    def test_overrides_set_single_keys_of_any_kind(self):
        text = "zero_optimization.overlap_comm=false,gradient_clipping=0.5,bf16.enabled=True"
        text += ",zero_optimization.offload_optimizer.device=cpu"
        config = deepspeed_of("zero2", "--deepspeed_overrides", text)
        self.assertIs(config["zero_optimization"]["overlap_comm"], False)
        self.assertIs(config["bf16"]["enabled"], True)
        self.assertEqual(config["gradient_clipping"], 0.5)
        self.assertEqual(config["zero_optimization"]["offload_optimizer"], {"device": "cpu"})
        self.assertIs(deepspeed_of("zero2")["zero_optimization"]["overlap_comm"], True)

    def test_a_key_s_former_name_in_published_files_is_named(self):
        with self.assertLogs("t5suite", "WARNING") as logged:
            deepspeed_of("zero2", "--deepspeed_overrides", "aio.thread_count=1")
        self.assertIn("it is intra_op_parallelism there", logged.output[0])

    @parameterized.parameters(
        ("zero4", None, ["--deepspeed zero4", "zero2"]),
        ("zero2", "zero_optimization.overlap_com=true", ["--deepspeed_overrides", "overlap_com", "overlap_comm"]),
        ("zero2", "gradient_cliping=1", ["gradient_cliping", "gradient_clipping"]),
        ("zero2", "bf16.enable=true", ["bf16", "enabled"]),
        ("zero2", "aio.block_sise=1", ["DeepSpeed's aio has no setting 'block_sise'", "block_size"]),
        ("zero2", "zero_optimization.offload_optimizer.devise=cpu", ["devise", "device"]),
        ("zero2", "train_batch_size.x=1", ["train_batch_size is no section"]),
        ("zero2", "overlap_comm", ["'overlap_comm' is not section.key=value"]),
        ("zero2", "steps_per_print=1,steps_per_print=2", ["twice"]),
        ('{"zero_optimization": 3}', None, ["zero_optimization is 3", "object"]),
        ("[1, 2]", None, ["[1, 2]"]),
    )
    def test_what_cannot_be_read_is_refused_with_what_would_be_right(self, value, overrides, words):
        with exits_with(78) as failure:
            deepspeed_of(value, *([] if overrides is None else ["--deepspeed_overrides", overrides]))
        for word in words:
            self.assertIn(word, failure.message)


class FlagsTest(parameterized.TestCase):
    def test_what_a_file_leaves_open_is_left_to_the_flags(self):
        settings, without = settings_of("--deepspeed", written(config_of())), settings_of()
        config = settings.pop("deepspeed")
        self.assertIsNone(without.pop("deepspeed"))
        not_flags = {"flags_given", "deepspeed_plugin", "hf_deepspeed_config", "distributed_state", "_setup_devices"}
        differing = {name for name in without if settings[name] != without[name]}
        self.assertContainsSubset(differing, not_flags)
        self.assertEqual(config["gradient_clipping"], "auto")
        self.assertEqual(config["train_micro_batch_size_per_gpu"], "auto")
        self.assertEqual(config["fp16"]["enabled"], "auto")
        self.assertEqual(config["bf16"], {"enabled": "auto", "check_grad_overflow": True})

    @parameterized.parameters(
        ({"gradient_clipping": 0.5}, "max_grad_norm", 0.5, 2.0),
        ({"train_micro_batch_size_per_gpu": 4}, "per_device_train_batch_size", 4, 8),
        ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps", 4, 2),
        ({"bf16": {"enabled": True}}, "bf16", True, None),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 3e-5}}}, "learning_rate", 3e-5, 1e-3),
        ({"optimizer": {"type": "AdamW", "params": {"weight_decay": 0.1}}}, "weight_decay", 0.1, 0.2),
        ({"optimizer": {"type": "AdamW", "params": {"betas": [0.9, 0.95]}}}, "adam_beta2", 0.95, 0.98),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 9}}}, "warmup_steps", 9, 5),
        ({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 99}}}, "max_steps", 99, 50),
    )
    def test_what_a_file_alone_says_becomes_the_flag_and_a_conflict_names_both(self, part, flag, value, other_value):
        file = written(config_of(**part))
        self.assertEqual(settings_of("--deepspeed", file)[flag], value)
        self.assertEqual(settings_of("--deepspeed", file, f"--{flag}={value}")[flag], value)
        if other_value is not None:
            with exits_with(78, rf"ds\.json: .* is {value}, and --{flag} is {other_value}"):
                settings_of("--deepspeed", file, f"--{flag}={other_value}")

    @parameterized.parameters(
        ("optimizer", "--optimizer=adamw"),
        ("optimizer", "--optim=sgd"),
        ("scheduler", "--schedule=linear"),
        ("scheduler", "--lr_scheduler_type=cosine"),
    )
    def test_a_section_that_would_take_a_flag_s_place_is_refused(self, section, word):
        file = written(config_of(**{section: {"type": "AdamW", "params": {}}}))
        with exits_with(78, rf"ds\.json: its section '{section}' .*{word.partition('=')[0]}"):
            settings_of("--deepspeed", file, word)

    @parameterized.parameters(None, 0, 4, "2")
    def test_a_file_that_shards_nothing_is_refused(self, stage):
        with exits_with(78, "stage"):
            deepspeed_of(written({"zero_optimization": {"stage": stage}}))

    def test_whole_weights_are_always_kept_under_zero3(self):
        with self.assertLogs("t5suite", "WARNING"):
            config = deepspeed_of(written({"zero_optimization": {"stage": 3, GATHER: False}}))
        self.assertIs(config["zero_optimization"][GATHER], True)

    def test_nvme_needs_a_folder_of_this_machine(self):
        folder = tempfile.mkdtemp()
        for folders in (("/no/where", folder), (folder, None)):
            with exits_with(78, r"nvme_path is .*--deepspeed_overrides zero_optimization"):
                deepspeed_of("zero3_nvme", "--deepspeed_overrides", nvme_overrides(*folders))
        config = deepspeed_of("zero3_nvme", "--deepspeed_overrides", nvme_overrides(folder, folder))
        self.assertEqual(config["zero_optimization"]["offload_param"]["nvme_path"], folder)

    @parameterized.parameters(
        ("zero2", True, ["deepspeed_shm_comm"]),
        ("zero2", False, []),
        ("zero2_offload", False, ["cpu_adam"]),
        ("zero3_offload", True, ["deepspeed_shm_comm", "cpu_adam"]),
        ("zero3_nvme", False, ["cpu_adam", "async_io"]),
    )
    def test_the_first_run_says_what_it_compiles_and_a_later_one_nothing(self, name, is_on_cpu, operations):
        folder = Path(tempfile.mkdtemp())
        words = ["--deepspeed", name, *needed_words(name)]
        parse = self.settings_on_cpu if is_on_cpu else self.settings_beside_a_gpu
        if operations:
            with self.assertLogs("t5suite", "WARNING") as logs:
                parse(words, folder)
            message = f"DeepSpeed compiles {' and '.join(operations)} now: minutes"
            self.assertRegex("\n".join(logs.output), f"{message}.*in {folder}")
        for operation in operations:
            (folder / "py311_cpu" / operation).mkdir(parents=True)
            (folder / "py311_cpu" / operation / f"{operation}.so").touch()
        with self.assertNoLogs("t5suite", "WARNING"):
            parse(words, folder)

    def settings_on_cpu(self, words, folder):
        settings_of(*words, TORCH_EXTENSIONS_DIR=str(folder))

    def settings_beside_a_gpu(self, words, folder):
        """Where there is none, DeepSpeed has its communication without the operation of CPUs."""
        environment = mock.patch.dict(os.environ, {**LAUNCHED, "TORCH_EXTENSIONS_DIR": str(folder)}, clear=True)
        gpu = mock.patch("torch.accelerator.is_available", return_value=True)
        without_operation = mock.patch("deepspeed.comm.torch.build_shm_op", return_value=None)
        with environment, gpu, without_operation, mock.patch("deepspeed.comm.comm.cdb", None):
            parse_flags("fine_tune_t5", words)

    def test_a_killed_process_s_lock_is_named_before_torch_waits_for_it(self):
        lock = Path(tempfile.mkdtemp()) / "py311_cpu" / "cpu_adam" / "lock"
        lock.parent.mkdir(parents=True)
        lock.touch()
        with self.assertLogs("t5suite", "WARNING") as logs:
            deepspeed_of("zero2", TORCH_EXTENSIONS_DIR=str(lock.parents[2]))
        self.assertIn(str(lock), logs.output[0])

    @parameterized.parameters(1, 3)
    def test_a_batch_size_in_a_file_is_that_of_all_ranks(self, world_size):
        """The parts of an update are those of the flags."""

        def parse(train_batch_size):
            file = written(config_of(train_batch_size=train_batch_size))
            words = ["--use_cpu", "--per_device_train_batch_size=4", f"--deepspeed={file}"]
            return parse_flags("fine_tune_t5", words)["deepspeed"]["train_batch_size"]

        with mock.patch.dict(os.environ, LAUNCHED, clear=True), mock.patch("deepspeed.init_distributed"):
            self.assertEqual(on_ranks(world_size, parse, 4 * world_size), [4 * world_size] * world_size)
            with exits_with(78, f"train_batch_size is 32, .* are {4 * world_size}"):
                try:
                    on_ranks(world_size, parse, 32)
                except BaseExceptionGroup as failures:
                    raise failures.exceptions[0] from None

    def test_deepspeed_begins_before_the_model_and_only_where_it_is_asked_for(self):
        with mock.patch.dict(os.environ, LAUNCHED, clear=True), mock.patch("deepspeed.init_distributed") as start:
            parse_flags("fine_tune_t5", ["--use_cpu"])
            start.assert_not_called()
            parse_flags("fine_tune_t5", ["--use_cpu", "--deepspeed", "zero2"])
            start.assert_called_once()


class LabelsTest(parameterized.TestCase):
    @parameterized.product(dtype=(torch.bfloat16, torch.float16), pieces=(1, 2))
    @pytest.mark.quick_cases(2)
    def test_labels_that_are_numbers_keep_their_digits_and_no_other_batch_gets_them(self, dtype, pieces):
        """transformers rounds every float of a batch to the type of DeepSpeed's weights: 2003 to 2000 in bfloat16."""
        numbers = torch.tensor([[2003.0], [123456.0], [2.6]])
        trainer = tiny_trainer(per_device_train_batch_size=3, max_steps=1, reference_code="loss_chunks")
        trainer.train()
        batch = next(iter(trainer.get_train_dataloader()))
        trainer.micro_batches.pieces = pieces
        labels_of_pieces = []

        def loss(outputs, labels, num_items_in_batch=None):
            labels_of_pieces.append(labels)
            return 0.0 * outputs.logits.sum()

        trainer.compute_loss_func = loss
        plugin = SimpleNamespace(hf_ds_config=SimpleNamespace(dtype=lambda: dtype))
        with (
            mock.patch.object(trainer, "is_deepspeed_enabled", True),
            mock.patch.object(type(trainer.accelerator.state), "deepspeed_plugin", plugin),
        ):
            trainer.training_step(trainer.model, {**batch, "labels": numbers}, torch.tensor(3))
            trainer.compute_loss(trainer.model, {**batch, "labels": torch.tensor([[7.0], [8.0], [9.0]])})
        *of_training, of_later_batch = labels_of_pieces
        self.assertLen(of_training, pieces)
        self.assertEqual(torch.cat(of_training).tolist(), numbers.tolist())
        self.assertEqual(of_later_batch.flatten().tolist(), [7.0, 8.0, 9.0])


class RefusalsTest(parameterized.TestCase):
    @parameterized.product(
        kind=("DEEPSPEED", "FSDP"),
        flag=("optimizer=adafactor", "optimizer=adamw_rms", "optim=stable_adamw", "optim=grokadamw"),
    )
    @pytest.mark.quick_cases(4)
    def test_an_optimizer_that_looks_at_whole_tensors_is_refused_by_name(self, kind, flag):
        name, value = flag.split("=")
        trainer = tiny_trainer()
        setattr(trainer.args, name, value)  # some of them are of libraries that need not be there
        trainer.accelerator = SimpleNamespace(distributed_type=SimpleNamespace(value=kind))
        with exits_with(78, f"--optimizer {value} works on whole tensors"):
            trainer.create_optimizer()

    @parameterized.parameters(
        {"optimizer": "adafactor"}, {"optimizer": "adamw_rms"}, {"optim": "adafactor"}, {"optim": "adamw_torch"}
    )
    def test_without_sharding_it_is_not(self, **flags):
        self.assertIsNotNone(tiny_trainer(**flags).create_optimizer())

    @parameterized.parameters({"optim": "adamw_torch"}, {"optimizer": "adamw", "optim": "adafactor"})
    def test_others_are_sharded(self, **flags):
        """`--optim` has no effect beside `--optimizer`."""
        trainer = tiny_trainer(**flags)
        sharded = SimpleNamespace(distributed_type=SimpleNamespace(value="FSDP"))
        with mock.patch.object(trainer, "accelerator", sharded):
            self.assertIn("Adam", type(trainer.create_optimizer()).__name__)

    @parameterized.parameters("is_deepspeed_enabled", "is_fsdp_enabled")
    @pytest.mark.quick_cases(1)
    def test_weights_of_single_tasks_are_not_put_back_into_pieces(self, attribute):
        create = Seq2SeqTrainer.create_accelerator_and_postprocess

        def create_sharded(trainer):
            create(trainer)
            setattr(trainer, attribute, True)

        sharded = mock.patch.object(Seq2SeqTrainer, "create_accelerator_and_postprocess", create_sharded)
        with sharded, exits_with(78, "--select per_task"):
            tiny_run(dataset_name="sentiment,similarity", select="per_task")

    @parameterized.parameters("clip_grad_value=1.0", "fsdp=True")
    def test_flags_that_deepspeed_excludes_are_refused_by_both_names(self, flag):
        with exits_with(78, rf"--{flag.partition('=')[0]} .*zero_stage2_config\.json"):
            deepspeed_of("zero2", f"--{flag}")

    def test_overrides_of_nothing_are_refused(self):
        with exits_with(78, "--deepspeed_overrides .* there is no --deepspeed"):
            settings_of("--deepspeed_overrides=gradient_clipping=1")
        with exits_with(78, "--fsdp_config .*: there is no --fsdp True"):
            settings_of("--fsdp_config={'reshard_after_forward': True}")

    def test_deepspeed_is_told_of_the_cpu_unless_the_environment_names_a_device(self):
        with mock.patch.dict(LAUNCHED):
            LAUNCHED.pop("DS_ACCELERATOR", None)
            self.assertEqual(environment_for_hugging_face()["DS_ACCELERATOR"], "cpu")
            self.assertEqual(environment_for_hugging_face(DS_ACCELERATOR="hpu")["DS_ACCELERATOR"], "hpu")

    @parameterized.parameters(
        ({}, {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}),
        ({"MASTER_ADDR": "h"}, {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "h"}),
        ({"RANK": "1", "WORLD_SIZE": "2"}, {"RANK": "1", "WORLD_SIZE": "2"}),
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}, {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}),
        ({"LOCAL_RANK": "0", "WORLD_SIZE": "1"}, {"LOCAL_RANK": "0", "WORLD_SIZE": "1"}),
    )
    def test_only_a_process_without_a_launcher_becomes_a_group_of_its_own(self, variables, expected):
        environment = environment_for_hugging_face("--deepspeed", "zero2", **variables)
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
        self.assertEqual({name: environment[name] for name in names if name in environment}, expected)


class AccelerateSettingsTest(parameterized.TestCase):
    @parameterized.parameters(("fp16", "bf16"), ("bf16", "fp16"))
    def test_two_precisions_are_refused_by_both_names(self, precision, flag):
        with exits_with(78, f"--{flag} and ACCELERATE_MIXED_PRECISION={precision}"):
            settings_of(f"--{flag}", ACCELERATE_MIXED_PRECISION=precision)

    def test_its_precision_is_the_flag_and_one_that_we_do_not_have_is_refused(self):
        for precision, other in (("bf16", "fp16"), ("fp16", "bf16")):
            settings = settings_of(ACCELERATE_MIXED_PRECISION=precision)
            self.assertEqual((settings[precision], settings[other]), (True, False))
        with exits_with(78, "ACCELERATE_MIXED_PRECISION=fp8 .*: choose no or bf16"):
            settings_of(ACCELERATE_MIXED_PRECISION="fp8")

    def test_its_silence_says_nothing(self):
        words = ("--bf16", "--gradient_accumulation_steps=4")
        silence = {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "1"}
        settings, alone = settings_of(*words, **silence), settings_of(*words)
        for name in ("bf16", "fp16", "gradient_accumulation_steps", "deepspeed"):
            self.assertEqual(settings[name], alone[name], name)

    def test_its_accumulation_is_the_flag_and_a_conflict_names_both(self):
        accumulation = {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"}
        self.assertEqual(settings_of(**accumulation)["gradient_accumulation_steps"], 4)
        with exits_with(78, "gradient_accumulation_steps 2 and ACCELERATE_GRADIENT.*=4"):
            settings_of("--gradient_accumulation_steps=2", **accumulation)

    def test_its_deepspeed_is_taken_and_two_are_refused_by_both_names(self):
        stage3 = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}
        config = settings_of(**stage3)["deepspeed"]
        self.assertEqual(config["zero_optimization"]["stage"], 3)
        json.dumps(config, allow_nan=False)
        with exits_with(78, "--deepspeed and accelerate's configuration"):
            settings_of("--deepspeed", "zero2", **stage3)
        file = written(config_of(gradient_clipping=0.25))
        of_file = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_CONFIG_FILE": file}
        settings = settings_of(**of_file)
        self.assertEqual((settings["deepspeed"]["gradient_clipping"], settings["max_grad_norm"]), (0.25, 0.25))
        with exits_with(78, file):
            settings_of("--max_grad_norm=2", **of_file)

    def test_fsdp_is_asked_for_once_and_in_its_second_version(self):
        variables = {"ACCELERATE_USE_FSDP": "true", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}
        second = {**variables, "FSDP_VERSION": "2"}
        self.assertEqual(environment_for_hugging_face(**second)["FSDP_CPU_RAM_EFFICIENT_LOADING"], "false")
        for message, words, environment in (
            ("--fsdp and accelerate", ["--fsdp=True"], second),
            ("--fsdp_config: accelerate", ["--fsdp_config={'reshard_after_forward': True}"], second),
            ("exclude each other", ["--deepspeed=zero2"], second),
            ("fsdp_version is 1", [], variables),
            ("tp_size is 2", [], {**second, "PARALLELISM_CONFIG_TP_SIZE": "2"}),
        ):
            with exits_with(78, message):
                settings_of(*words, **environment)


class AccelerateFilesTest(parameterized.TestCase):
    """tests/test_sharded_training.py trains by some of them."""

    @parameterized.parameters(*ACCELERATE_FILES)
    def test_a_file_says_what_its_name_does(self, name):
        file = yaml.safe_load((ROOT / "accelerate_configs" / name).read_text())
        stage = file.get("deepspeed_config", {}).get("zero_stage")
        self.assertEqual(name.startswith("deepspeed_"), file["distributed_type"] == "DEEPSPEED")
        self.assertEqual(stage, int(name[-6]) if name.startswith("deepspeed_") else None)
        self.assertEqual(name.startswith(("fsdp", "hsdp")), file["distributed_type"] == "FSDP")
        if file["distributed_type"] == "FSDP":
            self.assertEqual(file["fsdp_config"]["fsdp_version"], 2)
        sizes = [size for key, size in file.get("parallelism_config", {}).items() if "_dp_" in key]
        self.assertIn(math.prod(sizes), (1, file["num_processes"]))
