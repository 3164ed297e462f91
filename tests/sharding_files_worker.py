"""Prints what accelerate, DeepSpeed and training arguments make of every packaged file, as one line of JSON."""

import argparse
import contextlib
import json
import os
import tempfile
from unittest import mock

os.environ["DS_ACCELERATOR"] = "cpu"

from accelerate.commands import launch
from accelerate.state import PartialState
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env, prepare_simple_launcher_cmd_env
from deepspeed.runtime.config import DeepSpeedConfig

from t5suite.base.files import shipped_file, shipped_folder
from t5suite.training.flags.fine_tuning import SuiteTrainingArguments
from t5suite.training.flags.parser import changed_settings
from t5suite.training.sharding.deepspeed import NAMES


def make_arguments(**settings) -> SuiteTrainingArguments:
    return SuiteTrainingArguments(output_dir=tempfile.mkdtemp(), use_cpu=True, **settings)


def deepspeed_file(name: str) -> dict:
    """The file through the flags, the trainer's arguments and DeepSpeed's own validation."""
    scratch, overrides = tempfile.mkdtemp(), None
    if name.endswith("nvme"):
        overrides = ",".join(f"zero_optimization.offload_{part}.nvme_path={scratch}" for part in ("optimizer", "param"))
    sizes = {"per_device_train_batch_size": 5, "gradient_accumulation_steps": 2, "max_grad_norm": 0.75, "bf16": True}
    args = make_arguments(deepspeed=name, deepspeed_overrides=overrides, **sizes)
    state = dict(PartialState._shared_state)
    changed = changed_settings([args])
    filled = args.hf_deepspeed_config.config
    model = mock.Mock()
    model.config.hidden_size = 64
    args.hf_deepspeed_config.trainer_config_finalize(args, model, num_training_steps=10)
    read = DeepSpeedConfig(filled)
    offload = read.zero_config.offload_optimizer
    return {
        "stage": read.zero_optimization_stage,
        "batch": read.train_batch_size,
        "micro": read.train_micro_batch_size_per_gpu,
        "accumulation": read.gradient_accumulation_steps,
        "clipping": read.gradient_clipping,
        "bf16": read.bfloat16_config.enabled,
        "check_grad_overflow": read.bfloat16_config.check_grad_overflow,
        "offload": [offload.device if offload else None],
        "kept_by_defaults": dict(PartialState._shared_state) == state and "deepspeed" in changed,
    }


def accelerate_file(name: str) -> dict:
    """The file through accelerate's launcher, up to the environment that it gives its processes, and the flags."""
    path = shipped_file("accelerate_configs", name)
    args = launch.launch_command_parser().parse_args(["--config_file", str(path), "fine_tune_t5.py"])
    launchers = ("simple_launcher", "multi_gpu_launcher", "deepspeed_launcher")
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch("torch.cuda.is_available", return_value=True))
        stack.enter_context(mock.patch("torch.cuda.device_count", return_value=8))
        called = [stack.enter_context(mock.patch.object(launch, launcher)) for launcher in launchers]
        launch.launch_command(args)
    (args,) = next(launcher.call_args.args for launcher in called if launcher.called)
    if args.use_deepspeed:
        _, environment = prepare_deepspeed_cmd_env(args)
    elif args.use_fsdp or args.multi_gpu:
        environment = prepare_multi_gpu_env(args)
    else:
        _, environment = prepare_simple_launcher_cmd_env(args)
    ours = {key: value for key, value in environment.items() if key.startswith(("ACCELERATE_", "FSDP_", "PARALLEL"))}
    with mock.patch.dict(os.environ, ours):
        made = make_arguments()
        sizes = [ours.get(f"PARALLELISM_CONFIG_DP_{kind}_SIZE") for kind in ("REPLICATE", "SHARD")]
        return {
            "bf16": made.bf16,
            "num_processes": args.num_processes,
            "stage": made.deepspeed["zero_optimization"]["stage"] if made.deepspeed else None,
            "fsdp": ours.get("ACCELERATE_USE_FSDP") == "true" and ours["FSDP_VERSION"] == "2",
            "use_cpu": ours.get("ACCELERATE_USE_CPU", "False") == "True",
            "dp_sizes": [size for size in sizes if size],
        }


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    names = sorted(path.name for path in shipped_folder("accelerate_configs").glob("*.yaml"))
    # DeepSpeed's communication would be built first on a machine that has not done so, which takes minutes.
    with mock.patch("t5suite.training.sharding.settings.start_deepspeed"):
        found = {name: deepspeed_file(name) for name in NAMES}
        found |= {name: accelerate_file(name) for name in names}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
