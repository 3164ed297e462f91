"""The traced runs: each is one or several commands over the bundled model and rows, one after the other."""

from dataclasses import dataclass
from pathlib import Path

STEPS = 20
FINE_TUNING = (
    "fine_tune_t5.py",
    "--dataset_name=entailment",
    "--config_overrides=d_model=32,d_kv=8,d_ff=48,num_layers=2,num_heads=2",
    "--from_scratch",
    "--optimizer=adafactor",
    "--learning_rate=1e-2",
    f"--max_steps={STEPS}",
    "--per_device_train_batch_size=8",
    "--max_train_samples=96",
    "--max_eval_samples=24",
    "--eval_strategy=steps",
    "--eval_steps=10",
    "--save_strategy=steps",
    "--save_steps=5",
    "--save_total_limit=10",
    "--logging_steps=1",
    "--dropout_rate=0.1",
    "--seed=3",
    "--use_cpu",
    "--disable_tqdm=True",
)
PRE_TRAINING = (
    "pre_train_t5.py",
    "--config_overrides=d_model=32,d_kv=8,d_ff=48,num_layers=2,num_heads=2",
    f"--max_steps={STEPS}",
    "--per_device_train_batch_size=8",
    "--inputs_length=64",
    "--max_eval_samples=16",
    "--eval_strategy=steps",
    "--eval_steps=10",
    "--save_strategy=steps",
    "--save_steps=5",
    "--save_total_limit=10",
    "--logging_steps=1",
    "--seed=3",
    "--use_cpu",
    "--disable_tqdm=True",
)


@dataclass(frozen=True)
class Case:
    """A traced run.

    Attributes:
      commands: each a script with its flags; those without an --output_dir write the traced run's directory.
      ranks: processes of each command (gloo).
      stop_after_step: SIGTERM is sent to the first command once metrics.jsonl has this step.
      has_scaler: with a gradient scaler, as under fp16.
      is_quick: one of those that are compared before every commit.
    """

    commands: tuple[tuple[str, ...], ...]
    ranks: int = 1
    stop_after_step: int | None = None
    has_scaler: bool = False
    is_quick: bool = False


def fine_tuning(*flags: str, **settings) -> Case:
    """A fine-tuning run with these flags added, or in the place of those of the same name."""
    return Case((with_flags(FINE_TUNING, flags),), **settings)


def pre_training(*flags: str, **settings) -> Case:
    """A pre-training run with these flags added, or in the place of those of the same name."""
    return Case((with_flags(PRE_TRAINING, flags),), **settings)


def with_flags(command: tuple[str, ...], flags: tuple[str, ...]) -> tuple[str, ...]:
    """The command with these flags; each of a name is given once."""
    names = {flag.partition("=")[0] for flag in flags}
    return (*(word for word in command if word.partition("=")[0] not in names), *flags)


PLUG_INS = "tools.golden.plug_ins"
TEXT = Path(__file__).resolve().parents[2] / "t5suite/data/mini/text"
CASES = {
    "plain": fine_tuning(is_quick=True),
    "accumulation": fine_tuning("--gradient_accumulation_steps=2"),
    "two ranks": fine_tuning(ranks=2),
    "fsdp": fine_tuning("--fsdp=True", "--optimizer=adamw", ranks=2),
    "zero 2": fine_tuning("--deepspeed=zero2", "--optimizer=adamw", ranks=2),
    "gradient scaler": fine_tuning(f"--callbacks={PLUG_INS}:NanGradient", has_scaler=True),
    "stopped and resumed": Case((FINE_TUNING, FINE_TUNING), stop_after_step=7),
    "skipped update": fine_tuning(f"--callbacks={PLUG_INS}:NanGradient", is_quick=True),
    "lora": fine_tuning("--adapter=lora"),
    "per task": fine_tuning("--dataset_name=sentiment,entailment", "--select=per_task"),
    "mixture": fine_tuning("--dataset_name=all"),
    "distillation": Case(
        (with_flags(FINE_TUNING, ("--seed=4", "--output_dir=teacher")), with_flags(FINE_TUNING, ("--teacher=teacher",)))
    ),
    "label scores": fine_tuning("--eval_method=score"),
    "pre-training": pre_training(is_quick=True),
    "stream": pre_training("--streaming", f"--train_file={TEXT}"),
}
