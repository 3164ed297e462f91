"""Packaged files for DeepSpeed and accelerate, and what they, the environment and our flags say of one another."""

import contextlib
import dataclasses
import json
import math
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import yaml
from absl.testing import parameterized

os.environ.setdefault("DS_ACCELERATOR", "cpu")

from t5suite.base.files import shipped_folder
from t5suite.commands.doctor import Checkup, check_deepspeed
from t5suite.optim.optimizers import NEED_WHOLE_TENSORS
from t5suite.testing import exits_with
from t5suite.training.checkpoints.manifests import Manifest
from t5suite.training.checkpoints.starts import check_kind
from t5suite.training.fine_tuning import add_callbacks
from t5suite.training.flags.fine_tuning import SuiteTrainingArguments
from t5suite.training.optimization import check_parallelism
from t5suite.training.sharding.deepspeed import (
    NAMES,
    agree,
    get_key,
    note_compiling,
    operations_to_compile,
    read_deepspeed,
)
from t5suite.training.sharding.process_state import prepare_for_deepspeed
from t5suite.training.sharding.settings import (
    adopt_accelerate_settings,
    begin_sharding,
    deepspeed_of_environment,
    resolve_sharding,
)

ACCELERATE_FILES = sorted(path.name for path in shipped_folder("accelerate_configs").glob("*.yaml"))
OFFLOAD = "zero_optimization.offload_{}.nvme_path"
# Every flag with its default, without what happens when training arguments are made.
Flags = dataclasses.make_dataclass(
    "Flags",
    [
        (spec.name, object, dataclasses.field(default=spec.default))
        for spec in dataclasses.fields(SuiteTrainingArguments)
        if spec.default is not dataclasses.MISSING
    ],
)
# What accelerate's launcher leaves in the environment, and a test may meet.
LAUNCHED = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "T5SUITE_"))
}


def config_of(**settings) -> dict:
    return {"zero_optimization": {"stage": 2}, **settings}


class DeepSpeedFilesTest(parameterized.TestCase):
    def test_names(self):
        self.assertEqual(" ".join(NAMES), "zero1 zero2 zero2_offload zero3 zero3_nvme zero3_offload")

    @parameterized.parameters(*NAMES)
    def test_a_packaged_file_is_found_from_anywhere_and_leaves_to_the_flags_what_is_theirs(self, name):
        with contextlib.chdir(tempfile.mkdtemp()):
            config, _ = read_deepspeed(name)
            self.assertEqual(read_deepspeed(NAMES[name])[0], config)
            self.assertEqual(read_deepspeed(f"deepspeed_configs/{NAMES[name]}")[0], config)
        self.assertEqual(get_key(config, "zero_optimization.stage"), int(name[4]))
        for path in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
            self.assertEqual(config[path], "auto")
        for path in ("gradient_clipping", "bf16.enabled", "fp16.enabled"):
            self.assertEqual(get_key(config, path), "auto")
        self.assertEmpty({"optimizer", "scheduler"} & {*config})
        devices = [get_key(config, f"zero_optimization.offload_{part}.device") for part in ("optimizer", "param")]
        expected = {"zero2_offload": ["cpu", None], "zero3_offload": ["cpu"] * 2, "zero3_nvme": ["nvme"] * 2}
        self.assertEqual(devices, expected.get(name, [None, None]))

    def test_overrides_set_single_keys_of_any_kind(self):
        text = "zero_optimization.overlap_comm=false,gradient_clipping=0.5,bf16.enabled=True"
        config, source = read_deepspeed("zero2", f"{text},zero_optimization.offload_optimizer.device=cpu")
        self.assertIs(get_key(config, "zero_optimization.overlap_comm"), False)
        self.assertIs(get_key(config, "bf16.enabled"), True)
        self.assertEqual(config["gradient_clipping"], 0.5)
        self.assertEqual(get_key(config, "zero_optimization.offload_optimizer"), {"device": "cpu"})
        self.assertIs(get_key(read_deepspeed("zero2")[0], "zero_optimization.overlap_comm"), True)
        self.assertIn("--deepspeed_overrides", source)

    @parameterized.parameters(
        ("zero4", None, ["--deepspeed zero4", "zero2"]),
        ("zero2", "zero_optimization.overlap_com=true", ["overlap_com", "did you mean overlap_comm"]),
        ("zero2", "gradient_cliping=1", ["gradient_cliping", "gradient_clipping"]),
        ("zero2", "bf16.enable=true", ["bf16", "enabled"]),
        ("zero2", "zero_optimization.offload_optimizer.devise=cpu", ["devise", "device"]),
        ("zero2", "train_batch_size.x=1", ["train_batch_size is no section"]),
        ("zero2", "overlap_comm", ["'overlap_comm' is not section.key=value"]),
        ("zero2", "steps_per_print=1,steps_per_print=2", ["twice"]),
        ('{"zero_optimization": 3}', None, ["zero_optimization is 3", "object"]),
        ("[1, 2]", None, ["[1, 2]"]),
    )
    def test_what_cannot_be_read_is_refused_with_what_would_be_right(self, given, overrides, words):
        with exits_with(78) as caught:
            read_deepspeed(given, overrides)
        for word in words:
            self.assertIn(word, str(caught.exception))


class FlagsTest(parameterized.TestCase):
    def test_what_a_file_leaves_open_is_left_to_the_flags(self):
        config, args = config_of(), Flags()
        agree(config, "ds.json", args)
        self.assertEqual(args, Flags())
        for path in ("gradient_clipping", "train_micro_batch_size_per_gpu", "bf16.enabled", "fp16.enabled"):
            self.assertEqual(get_key(config, path), "auto", path)
        self.assertIs(get_key(config, "bf16.check_grad_overflow"), True)

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
    def test_what_a_file_alone_says_becomes_the_flag_and_a_conflict_names_both(self, part, flag, value, other):
        args = Flags()
        agree(config_of(**part), "ds.json", args)
        self.assertEqual(getattr(args, flag), value)
        agree(config_of(**part), "ds.json", Flags(**{flag: value}))
        if other is not None:
            with exits_with(78, rf"ds\.json: .* is {value}, and --{flag} is {other}"):
                agree(config_of(**part), "ds.json", Flags(**{flag: other}))

    @parameterized.parameters(
        ("optimizer", {"optimizer": "adamw"}),
        ("optimizer", {"optim": "sgd"}),
        ("scheduler", {"schedule": "linear"}),
        ("scheduler", {"lr_scheduler_type": "cosine"}),
    )
    def test_a_section_that_would_take_a_flag_s_place_is_refused(self, section, flags):
        (flag,) = flags
        with exits_with(78, rf"ds\.json: its section '{section}' .*--{flag}"):
            agree(config_of(**{section: {"type": "AdamW", "params": {}}}), "ds.json", Flags(**flags))

    @parameterized.parameters(None, 0, 4, "2")
    def test_a_file_that_shards_nothing_is_refused(self, stage):
        with exits_with(78, "stage"):
            agree({"zero_optimization": {"stage": stage}}, "ds.json", Flags())

    def test_whole_weights_are_always_kept_under_zero3(self):
        config = {"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": False}}
        with self.assertLogs("t5suite", "WARNING"):
            agree(config, "ds.json", Flags())
        self.assertIs(get_key(config, "zero_optimization.stage3_gather_16bit_weights_on_model_save"), True)

    def test_nvme_needs_a_folder_of_this_machine(self):
        folder = tempfile.mkdtemp()
        for places, right in ((("/no/where", folder), False), ((folder, None), False), ((folder, folder), True)):
            pairs = zip(("optimizer", "param"), places, strict=True)
            overrides = ",".join(f"{OFFLOAD.format(part)}={json.dumps(place)}" for part, place in pairs)
            config, source = read_deepspeed("zero3_nvme", overrides)
            if right:
                agree(config, source, Flags())
            else:
                with exits_with(78, r"nvme_path is .*--deepspeed_overrides zero_optimization"):
                    agree(config, source, Flags())

    @parameterized.parameters(
        ("zero2", True, ["deepspeed_shm_comm"]),
        ("zero2", False, []),
        ("zero2_offload", False, ["cpu_adam"]),
        ("zero3_offload", True, ["deepspeed_shm_comm", "cpu_adam"]),
        ("zero3_nvme", False, ["cpu_adam", "async_io"]),
    )
    def test_the_first_run_says_what_it_compiles_and_a_later_one_nothing(self, name, is_on_cpu, operations):
        config, _ = read_deepspeed(name)
        environ = {"TORCH_EXTENSIONS_DIR": tempfile.mkdtemp()}
        self.assertEqual(operations_to_compile(config, is_on_cpu, environ), operations)
        if operations:
            with self.assertLogs("t5suite", "WARNING") as logs:
                note_compiling(config, is_on_cpu, environ)
            message = f"DeepSpeed compiles {' and '.join(operations)} now: minutes"
            self.assertRegex(logs.output[0], f"{message}.*in {environ['TORCH_EXTENSIONS_DIR']}")
        for operation in operations:
            folder = Path(environ["TORCH_EXTENSIONS_DIR"]) / "py311_cpu" / operation
            folder.mkdir(parents=True)
            (folder / f"{operation}.so").touch()
        with self.assertNoLogs("t5suite", "WARNING"):
            note_compiling(config, is_on_cpu, environ)

    def test_a_killed_process_s_lock_is_named_before_torch_waits_for_it(self):
        lock = Path(tempfile.mkdtemp()) / "py311_cpu" / "cpu_adam" / "lock"
        lock.parent.mkdir(parents=True)
        lock.touch()
        with mock.patch.dict(os.environ, TORCH_EXTENSIONS_DIR=str(lock.parents[2])):
            with self.assertLogs("t5suite", "WARNING") as logs:
                agree({"zero_optimization": {"stage": 2}}, "ds.json", Flags())
            finding = check_deepspeed(Checkup(environ=dict(os.environ)))[0]
            self.assertEqual((finding.level, finding.fix.endswith(f"rm {lock}")), ("warn", True))
        self.assertIn(str(lock), logs.output[0])

    @parameterized.parameters(1, 3)
    def test_deepspeed_begins_before_the_model_on_any_number_of_ranks_unless_the_batch_is_wrong(self, world_size):
        args = Flags(per_device_train_batch_size=4, deepspeed=config_of(train_batch_size=4 * world_size))
        args.world_size, args.deepspeed_source, args.fsdp_plugin_args = world_size, "ds.json", None
        with mock.patch("t5suite.training.sharding.settings.start_deepspeed") as start:
            begin_sharding(args)
            start.assert_called_once_with()
            args.deepspeed = config_of(train_batch_size=32)
            with exits_with(78, f"train_batch_size is 32, .* are {4 * world_size}"):
                begin_sharding(args)
            args.deepspeed = None
            begin_sharding(args)
            start.assert_called_once_with()


class RefusalsTest(parameterized.TestCase):
    @parameterized.product(
        kind=("DEEPSPEED", "FSDP"), name=(*NEED_WHOLE_TENSORS, "galore_adamw", "apollo_adamw", "lomo")
    )
    def test_an_optimizer_that_looks_at_whole_tensors_is_refused_by_name(self, kind, name):
        ours, theirs = (name, "adamw_torch") if name in NEED_WHOLE_TENSORS else (None, name)
        sharded, plain = (SimpleNamespace(distributed_type=SimpleNamespace(value=word)) for word in (kind, "MULTI_GPU"))
        with exits_with(78, f"--optimizer {name} works on whole tensors"):
            check_parallelism(ours, sharded, theirs)
        check_parallelism(ours, plain, theirs)
        check_parallelism(None, sharded, "adamw_torch_fused")
        check_parallelism("adamw", sharded, "adafactor")  # which has no effect beside --optimizer

    @parameterized.parameters("is_deepspeed_enabled", "is_fsdp_enabled")
    def test_weights_of_single_tasks_are_not_put_back_into_pieces(self, attribute):
        trainer = SimpleNamespace(**{"is_deepspeed_enabled": False, "is_fsdp_enabled": False, attribute: True})
        with exits_with(78, "--select per_task"):
            add_callbacks(trainer, "runs/x", None, keep_task_weights=True)

    @parameterized.parameters({"clip_grad_value": 1.0}, {"fsdp": True})
    def test_flags_that_deepspeed_excludes_are_refused_by_both_names(self, **flags):
        (flag,) = flags
        with mock.patch("t5suite.training.sharding.settings.prepare_for_deepspeed"):
            with exits_with(78, rf"--{flag} .*zero_stage2_config\.json"):
                resolve_sharding(Flags(deepspeed="zero2", **flags))
            with exits_with(78, "--deepspeed_overrides .* there is no --deepspeed"):
                resolve_sharding(Flags(deepspeed_overrides="gradient_clipping=1"))

    @parameterized.parameters(
        ({}, {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}),
        ({"MASTER_ADDR": "h"}, {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "h"}),
        ({"RANK": "1", "WORLD_SIZE": "2"}, {"RANK": "1", "WORLD_SIZE": "2"}),
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}, {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}),
        ({"LOCAL_RANK": "0", "WORLD_SIZE": "1"}, {"LOCAL_RANK": "0", "WORLD_SIZE": "1"}),
    )
    def test_only_a_process_without_a_launcher_becomes_a_group_of_its_own(self, given, expected):
        with mock.patch.dict(os.environ, given, clear=True):
            prepare_for_deepspeed()
            found = {
                name: value for name, value in os.environ.items() if name not in ("MASTER_PORT", "LOCAL_WORLD_SIZE")
            }
        self.assertEqual(found, expected)

    def test_a_checkpoint_of_another_kind_or_number_of_ranks_is_refused_with_what_to_do(self):
        folder = Path(tempfile.mkdtemp()) / "checkpoint-4"
        folder.mkdir()
        check_kind(folder, deepspeed=False, world_size=2)
        with exits_with(78, "written without DeepSpeed.*--model_name_or_path"):
            check_kind(folder, deepspeed=True, world_size=2)
        (folder / "global_step4").mkdir()
        Manifest(4, "run", 2).write(folder)
        check_kind(folder, deepspeed=True, world_size=2)
        with exits_with(78, "on 2 ranks.*not 3"):
            check_kind(folder, deepspeed=True, world_size=3)
        with exits_with(78, "written under DeepSpeed"):
            check_kind(folder, deepspeed=False, world_size=2)


def in_environment(**variables):
    return mock.patch.dict(os.environ, {**LAUNCHED, **variables}, clear=True)


class AccelerateSettingsTest(parameterized.TestCase):
    @parameterized.parameters(("fp16", "bf16"), ("bf16", "fp16"))
    def test_two_precisions_are_refused_by_both_names(self, precision, flag):
        words = f"--{flag} and ACCELERATE_MIXED_PRECISION={precision}"
        with in_environment(ACCELERATE_MIXED_PRECISION=precision), exits_with(78, words):
            adopt_accelerate_settings(Flags(**{flag: True}))

    def test_its_accumulation_is_the_flag_its_silence_says_nothing_and_a_conflict_names_both(self):
        args = Flags(bf16=True, gradient_accumulation_steps=4)
        with in_environment(ACCELERATE_MIXED_PRECISION="no", ACCELERATE_GRADIENT_ACCUMULATION_STEPS="1"):
            adopt_accelerate_settings(args)
            self.assertIsNone(deepspeed_of_environment(None))
        self.assertEqual(args, Flags(bf16=True, gradient_accumulation_steps=4))
        args = Flags()
        with in_environment(ACCELERATE_GRADIENT_ACCUMULATION_STEPS="4"):
            adopt_accelerate_settings(args)
            self.assertEqual(args.gradient_accumulation_steps, 4)
            with exits_with(78, "gradient_accumulation_steps 2 and ACCELERATE_GRADIENT.*=4"):
                adopt_accelerate_settings(Flags(gradient_accumulation_steps=2))

    def test_its_deepspeed_is_taken_and_two_are_refused_by_both_names(self):
        with in_environment(ACCELERATE_USE_DEEPSPEED="true", ACCELERATE_DEEPSPEED_ZERO_STAGE="3"):
            config, source = deepspeed_of_environment(None)
            self.assertEqual(get_key(config, "zero_optimization.stage"), 3)
            json.dumps(config, allow_nan=False)
            with exits_with(78, "--deepspeed and accelerate's configuration"):
                deepspeed_of_environment("zero2")
        path = Path(tempfile.mkdtemp()) / "mine.json"
        path.write_text(json.dumps(config_of(gradient_clipping=0.25)))
        with in_environment(ACCELERATE_USE_DEEPSPEED="true", ACCELERATE_DEEPSPEED_CONFIG_FILE=str(path)):
            config, source = deepspeed_of_environment(None)
            self.assertEqual(config["gradient_clipping"], 0.25)
            self.assertIn("mine.json", source)

    def test_fsdp_is_asked_for_once_and_in_its_second_version(self):
        variables = {"ACCELERATE_USE_FSDP": "true", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}
        with in_environment(**variables, FSDP_VERSION="2"):
            adopt_accelerate_settings(Flags())
            self.assertEqual(os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"], "false")
            with exits_with(78, "--fsdp and accelerate"):
                adopt_accelerate_settings(Flags(fsdp=True))
            with exits_with(78, "exclude each other"):
                adopt_accelerate_settings(Flags(deepspeed="zero2"))
        with in_environment(**variables), exits_with(78, "fsdp_version is 1"):
            adopt_accelerate_settings(Flags())
        variables |= {"FSDP_VERSION": "2", "PARALLELISM_CONFIG_TP_SIZE": "2"}
        with in_environment(**variables), exits_with(78, "tp_size is 2"):
            adopt_accelerate_settings(Flags())


class AccelerateFilesTest(parameterized.TestCase):
    """tests/test_sharded_training.py trains by some of them."""

    @parameterized.parameters(*ACCELERATE_FILES)
    def test_a_file_says_what_its_name_does(self, name):
        file = yaml.safe_load((shipped_folder("accelerate_configs") / name).read_text())
        stage = file.get("deepspeed_config", {}).get("zero_stage")
        self.assertEqual(name.startswith("deepspeed_"), file["distributed_type"] == "DEEPSPEED")
        self.assertEqual(stage, int(name[-6]) if name.startswith("deepspeed_") else None)
        self.assertEqual(name.startswith(("fsdp", "hsdp")), file["distributed_type"] == "FSDP")
        if file["distributed_type"] == "FSDP":
            self.assertEqual(file["fsdp_config"]["fsdp_version"], 2)
        sizes = [size for key, size in file.get("parallelism_config", {}).items() if "_dp_" in key]
        self.assertIn(math.prod(sizes), (1, file["num_processes"]))
