"""`t5suite doctor`: what this machine and environment lack for the suite, and the mend of each lack.

    $ t5suite doctor
    ok    python             3.11.7 (/work/.venv/bin/python)
    warn  hub                https://huggingface.co does not answer (...) — export HF_HUB_OFFLINE=1 ...

Every line is `ok`, `warn` (something will not work, or not as asked) or `fail` (runs will fail); with a `fail` the
command exits 78. A new check is one entry of CHECKS at the end of this file.
"""

import sys

from t5suite.commands.doctor_findings import FAIL, OK, WARN, Checkup, Finding, config_file, settings_of
from t5suite.commands.doctor_launchers import (
    check_accelerate_config,
    check_accelerate_variables,
    check_config,
    check_deepspeed,
    check_launchers,
    check_ranks,
    check_slurm,
)
from t5suite.commands.doctor_machine import check_cpu, check_devices, check_packages, check_precision, check_python
from t5suite.commands.doctor_places import (
    check_disk,
    check_hub,
    check_hub_cache,
    check_output_files,
    check_shared_memory,
    check_wandb,
)
from t5suite.commands.shared import add_json_flag, print_json
from t5suite.errors import ConfigError
from t5suite.redaction import redacted

COLOURS = {OK: "32", WARN: "33", FAIL: "31"}


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
    counts = dict.fromkeys((OK, WARN, FAIL), 0)
    failed = []
    for finding in examine(checkup):
        show(finding, arguments.json)
        counts[finding.level] += 1
        if finding.level == FAIL:
            failed.append(finding.name)
    if not arguments.json:
        print(", ".join(f"{count} {level}" for level, count in counts.items()))
    if failed:
        raise ConfigError(f"t5suite doctor: {len(failed)} checks fail: {', '.join(failed)}; the lines say the mend")


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


def show(finding: Finding, as_json: bool) -> None:
    """One line; secrets that a variable or address holds are not shown."""
    finding = Finding(*map(redacted, finding))
    if as_json:
        print_json(finding._asdict())
        return
    level = f"{finding.level:<5}"
    if sys.stdout.isatty():
        level = f"\033[{COLOURS[finding.level]}m{level}\033[0m"
    mend = f" — {finding.mend}" if finding.mend else ""
    print(f"{level} {finding.name:<18} {finding.what}{mend}", flush=True)


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
    "hub": check_hub,
    "wandb": check_wandb,
}
