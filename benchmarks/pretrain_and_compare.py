"""Some minutes of pre-training on one device, then fine-tuning against a scratch twin: one command, a curve and a table.

    python -m benchmarks.pretrain_and_compare --device cuda --minutes 18 --text texts/ --data_dir data \\
        --tokenizer google/t5-v1_1-small --tasks sst2 cola rte --seeds 1 2 3 --output_dir runs/minutes
    python -m benchmarks.pretrain_and_compare --minutes 1 --text texts/ --data_dir data --tokenizer spiece_folder

First a trial of some steps tells how many updates fit into the minutes, so that the schedule ends with them; then comes
`benchmarks.pretrained_vs_scratch` with these. Told are the curve (held-out nats a target token by minutes, and the plot
`pre_train/learning_curves.png`), the rates of the steps, and the scores of both arms over the seeds. What is finished is not
repeated: started again, the command goes on. The sizes of `--device cuda` are T5 v1.1 small's, those of a CPU tiny.
"""  # noqa: E501

import argparse
import json
import shutil
import sys
from pathlib import Path

from benchmarks import pretrained_vs_scratch
from benchmarks.precisions import figures
from t5suite.launch.commands import command_without

# v1.1's form: gated GELU and an output layer of its own.
FORM = "feed_forward_proj=gated-gelu,tie_word_embeddings=False"
DEVICES = {
    "cuda": {
        "model": f"{FORM},d_model=512,d_kv=64,d_ff=1024,num_layers=8,num_decoder_layers=8,num_heads=6",
        "pre_training": "--text_unit paragraph --inputs_length 256 --per_device_train_batch_size 256 --bf16 "
        "--torch_compile True --optimizer adamw_rms --learning_rate 1e-2 --schedule cosine --warmup_steps 0.05 "
        "--dropout_rate 0.1 --validation_fraction 0.03 --max_eval_samples 2048 --eval_steps 0.05 --save_steps 0.2",
        "fine_tuning": "--per_device_train_batch_size 64 --max_steps 1500 --optimizer adamw_rms --learning_rate 1e-3 "
        "--warmup_steps 0.1 --bf16 --torch_compile True",
        "trial_steps": 200,
    },
    "cpu": {
        "model": f"{FORM},d_model=64,d_kv=16,d_ff=128,num_layers=2,num_decoder_layers=2,num_heads=4",
        "pre_training": "--text_unit paragraph --inputs_length 64 --per_device_train_batch_size 16 --optimizer "
        "adamw_rms --learning_rate 1e-2 --schedule cosine --warmup_steps 0.05 --validation_fraction 0.03 "
        "--max_eval_samples 256 --eval_steps 0.1 --save_steps 0.5 --use_cpu",
        "fine_tuning": "--per_device_train_batch_size 32 --max_steps 60 --optimizer adamw_rms --learning_rate 3e-3 "
        "--warmup_steps 0.1 --max_eval_samples 200 --use_cpu",
        "trial_steps": 20,
    },
}
TRIAL = "--eval_strategy no --save_strategy no --max_eval_samples 8 --schedule constant"
# What evaluations, checkpoints and compiling take of the minutes.
SHARE_OF_STEPS = 0.9


def steps_for(minutes: float, options) -> int:
    """How many updates fit, by a trial that is then thrown away; noted, so that a run that goes on takes no other."""
    out = Path(options.output_dir)
    noted = out / "trial.json"
    if noted.is_file():
        return json.loads(noted.read_text(encoding="utf-8"))["steps"]
    steps, folder = DEVICES[options.device]["trial_steps"], out / "trial"
    flags = command_without(options.pre_training.split(), TRIAL.split())
    pretrained_vs_scratch.run(
        "pre_train_t5.py", "--train_file", *options.text, "--tokenizer_name", options.tokenizer, *flags,
        "--config_overrides", options.model, *TRIAL.split(), "--max_steps", str(steps), "--logging_steps",
        str(steps // 4), "--output_dir", str(folder),
    )  # fmt: skip
    found = figures(logs_of(folder, "train/seconds_per_step"))
    fitting = max(1, int(SHARE_OF_STEPS * 60 * minutes / found["s a step"]))
    shutil.rmtree(folder)
    noted.write_text(json.dumps({"steps": fitting, **found}) + "\n", encoding="utf-8")
    print(f"{found['s a step']:.4f} s a step: {fitting:,} updates in {minutes:g} minutes", file=sys.stderr, flush=True)
    return fitting


def logs_of(folder: Path, key: str) -> list[dict]:
    """The lines of a run's metrics that have a key."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if key in line]


def curve(folder: Path) -> list[dict]:
    """Held-out numbers of the pre-training, evaluation by evaluation."""
    return [
        {
            "minutes": line["seconds"] / 60,
            "step": line["step"],
            "nll": line["eval/nll"],
            "nll_text": line["eval/nll_text"],
        }
        for line in logs_of(folder, "eval/nll")
    ]


def table(found: dict) -> str:
    """Markdown: the curve, the rates, the scores."""
    lines = ["| minutes | updates | held-out nll | excluding sentinels |", "|---|---|---|---|"]
    for point in found["curve"]:
        lines.append(f"| {point['minutes']:.1f} | {point['step']:,} | {point['nll']:.3f} | {point['nll_text']:.3f} |")
    told = found["pre_train"]
    lines.append(f"\nA unigram model of the same targets: {told['unigram_nll']:.3f}, {told['unigram_nll_text']:.3f}.")
    rates = ", ".join(f"{name} {value:,.4g}" for name, value in found["rates"].items() if name != "loss")
    return "\n".join([*lines, f"Pre-training: {rates}.", "", pretrained_vs_scratch.table(found)])


def main(argv=None) -> int:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=tuple(DEVICES), default="cpu")
    parser.add_argument("--minutes", type=float, default=18, help="of pre-training; fine-tuning comes after them")
    parser.add_argument("--text", nargs="+", required=True, help="files or folders to pre-train on")
    parser.add_argument("--data_dir", required=True, help="a mirror of GLUE")
    parser.add_argument("--tokenizer", required=True, help="hub name or folder")
    parser.add_argument("--tasks", nargs="+", default=["sst2", "cola"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--output_dir", default="runs/pretrain_and_compare")
    for name, what in (("model", "--config_overrides of both arms"), ("pre_training", "flags of pre_train_t5.py"),
                       ("fine_tuning", "flags of fine_tune_t5.py, for both arms")):  # fmt: skip
        parser.add_argument(f"--{name}", help=f"{what}; default: the device's")
    options = parser.parse_args(argv)
    for name in ("model", "pre_training", "fine_tuning"):
        setattr(options, name, getattr(options, name) or DEVICES[options.device][name])
    options.processes = 1
    out = Path(options.output_dir)
    out.mkdir(parents=True, exist_ok=True)
    steps = steps_for(options.minutes, options)
    options.pre_training += f" --max_steps {steps} --logging_steps {max(1, min(100, steps // 50))}"
    found = pretrained_vs_scratch.compare(options)
    logs = logs_of(out / "pre_train", "train/seconds_per_step")
    found |= {"minutes": options.minutes, "curve": curve(out / "pre_train"), "rates": figures(logs)}
    return pretrained_vs_scratch.conclude(found, table, options.output_dir)


if __name__ == "__main__":
    sys.exit(main())
