"""`t5suite doctor`: what this machine and environment lack for the suite, and the fix of each lack.

    $ t5suite doctor
    ok    python             3.11.7 (/home/me/.venv/bin/python)
    warn  hub                https://huggingface.co does not answer (...) — export HF_HUB_OFFLINE=1 ...

Every line is `ok`, `warn` (something will not work, or not as asked) or `fail` (runs will fail); with a `fail` the
command exits 78. A new check is one entry of CHECKS: a function of a `Checkup` that returns a list of `Finding`s.
"""

import sys

from t5suite.base.errors import ConfigError
from t5suite.base.redaction import redacted
from t5suite.commands.doctor_launchers import (
    check_accelerate_config,
    check_accelerate_variables,
    check_aim,
    check_config,
    check_deepspeed,
    check_launchers,
    check_other_trackers,
    check_ranks,
    check_slurm,
    check_trackio,
    check_unsent,
    check_wandb,
    check_wandb_folders,
)
from t5suite.commands.doctor_machine import (
    FAIL,
    Checkup,
    Finding,
    check_compile_cache,
    check_cpu,
    check_devices,
    check_disk,
    check_hub,
    check_hub_cache,
    check_output_files,
    check_packages,
    check_precision,
    check_python,
    check_shared_memory,
    config_file,
    settings_of,
)
from t5suite.commands.shared import add_json_flag, print_json

COLOURS = {"ok": "32", "warn": "33", "fail": "31"}


def doctor_flags(parser) -> None:
    """Flags of `t5suite doctor`."""
    parser.add_argument(
        "--config", metavar="FILE", help="a run's YAML file, or a recipe: checked, and its output_dir looked at"
    )
    parser.add_argument("--accelerate_config", metavar="FILE", help="accelerate's file, if not its default one")
    parser.add_argument("--output_dir", help="where runs are to be written (default: the --config's, else runs)")
    parser.add_argument("--build", action="store_true", help="compile DeepSpeed's operations now (minutes)")
    add_json_flag(parser)


def run_doctor(arguments) -> None:
    """Prints a line a finding.

    Raises:
      ConfigError: a finding is a `fail`.
    """
    config = config_file(arguments.config) if arguments.config else None
    settings = settings_of(config)
    checkup = Checkup(
        output_dir=arguments.output_dir or str(settings.get("output_dir") or "runs"),
        settings=settings,
        config=config,
        accelerate_config=arguments.accelerate_config,
        build=arguments.build,
    )
    counts = dict.fromkeys(COLOURS, 0)
    failed = []
    for finding in examine(checkup):
        show(finding, arguments.json)
        counts[finding.level] += 1
        if finding.level == FAIL:
            failed.append(finding.name)
    if not arguments.json:
        print(", ".join(f"{count} {level}" for level, count in counts.items()))
    if failed:
        raise ConfigError(
            f"t5suite doctor: {len(failed)} checks fail: {', '.join(failed)}; each line says how to fix it"
        )


def show(finding, as_json: bool) -> None:
    """One line; secrets that a variable or address holds are not shown."""
    finding = type(finding)(*map(redacted, finding))
    if as_json:
        print_json(finding._asdict())
        return
    level = f"{finding.level:<5}"
    if sys.stdout.isatty():
        level = f"\033[{COLOURS[finding.level]}m{level}\033[0m"
    fix = f" — {finding.fix}" if finding.fix else ""
    print(f"{level} {finding.name:<18} {finding.what}{fix}", flush=True)


def examine(checkup: Checkup, checks=None):
    """The findings of every check, one after the other; a check that breaks is itself one that fails."""
    for name, check in (CHECKS if checks is None else checks).items():
        try:
            yield from check(checkup)
        except (ImportError, OSError, RuntimeError, ValueError, AttributeError) as error:
            what = f"could not be looked at ({type(error).__name__}: {str(error).strip()[:300]})"
            yield Finding(
                FAIL, name, what, "install the package anew" if isinstance(error, ImportError) else "see the error"
            )


CHECKS = {
    "python": check_python,
    "packages": check_packages,
    "cpu": check_cpu,
    "gpu": check_devices,
    "precision": check_precision,
    "config": check_config,
    "launchers": check_launchers,
    "ranks": check_ranks,
    "ACCELERATE_*": check_accelerate_variables,
    "accelerate config": check_accelerate_config,
    "deepspeed ops": check_deepspeed,
    "slurm": check_slurm,
    "disk": check_disk,
    "files": check_output_files,
    "shared memory": check_shared_memory,
    "hub cache": check_hub_cache,
    "compile cache": check_compile_cache,
    "hub": check_hub,
    "wandb": check_wandb,
    "wandb folders": check_wandb_folders,
    "wandb offline": check_unsent,
    "aim": check_aim,
    "trackio": check_trackio,
    "other trackers": check_other_trackers,
}
