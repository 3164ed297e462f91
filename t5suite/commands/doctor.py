"""`t5suite doctor`: what this machine and environment lack for the suite, and how to fix it.

    $ t5suite doctor
    ok    python             3.11.7 (/home/me/.venv/bin/python)
    warn  hub                https://huggingface.co does not answer (...) — export HF_HUB_OFFLINE=1 ...

Every line is `ok`, `warn` (something will not work, or not as asked) or `fail` (runs will fail); with a `fail` the
command exits 78. A new check is one entry of CHECKS: a function of a `Checkup` that returns a list of `CheckResult`s.
"""

import collections
import sys
from collections.abc import Iterator

from t5suite.base.errors import ConfigError
from t5suite.base.programs import output_may_end_early
from t5suite.base.redaction import redacted
from t5suite.commands.checks.checkup import FAIL, OK, WARN, CheckResult, Checkup
from t5suite.commands.checks.launchers import (
    check_accelerate_config,
    check_accelerate_variables,
    check_deepspeed,
    check_launchers,
    check_ranks,
)
from t5suite.commands.checks.machine import check_cpu, check_devices
from t5suite.commands.checks.network import check_hub, check_wandb
from t5suite.commands.checks.packages import check_libraries, check_packages, check_python
from t5suite.commands.checks.storage import check_disk, check_hub_cache, check_output_files, check_shared_memory
from t5suite.commands.shared import add_json_flag, print_json

# ANSI colours of the levels.
COLOURS = {OK: "32", WARN: "33", FAIL: "31"}


def doctor_flags(parser) -> None:
    """Flags of `t5suite doctor`."""
    add = parser.add_argument
    add("--accelerate_config", metavar="FILE", help="accelerate's file, if not its default one")
    add("--output_dir", default="runs", help="where runs are to be written (default: runs)")
    add_json_flag(parser)


def run_doctor(arguments) -> None:
    """Prints one line per result.

    Raises:
      ConfigError: a result is a `fail`.
    """
    checkup = Checkup(output_dir=arguments.output_dir, accelerate_config=arguments.accelerate_config)
    counts = collections.Counter()
    failed_names = []
    for result in examine(checkup):
        result = CheckResult(*map(redacted, result))
        counts[result.level] += 1
        if result.level == FAIL:
            failed_names.append(result.name)
        with output_may_end_early():
            if arguments.json:
                print_json(result._asdict())
            else:
                _print_result(result)
    if not arguments.json:
        with output_may_end_early():
            print(", ".join(f"{counts[level]} {level}" for level in COLOURS))
    if failed_names:
        raise ConfigError(
            f"t5suite doctor: {len(failed_names)} checks fail: {', '.join(failed_names)}; each line has the fix"
        )


def _print_result(result: CheckResult) -> None:
    """A line, in colours on a terminal."""
    level = f"{result.level:<5}"
    if sys.stdout.isatty():
        level = f"\033[{COLOURS[result.level]}m{level}\033[0m"
    fix = f" — {result.fix}" if result.fix else ""
    print(f"{level} {result.name:<18} {result.what}{fix}", flush=True)


def examine(checkup: Checkup) -> Iterator[CheckResult]:
    """The results of every check, one after the other; a check that raises an error counts as failed."""
    for name, check in CHECKS.items():
        try:
            yield from check(checkup)
        except (ImportError, OSError, RuntimeError, ValueError, AttributeError) as error:
            what = f"could not be checked ({type(error).__name__}: {str(error).strip()[:300]})"
            fix = "reinstall the package" if isinstance(error, ImportError) else "see the error"
            yield CheckResult(FAIL, name, what, fix)


CHECKS = {
    "python": check_python, "packages": check_packages, "libraries": check_libraries,
    "cpu": check_cpu, "gpu": check_devices,
    "launchers": check_launchers, "ranks": check_ranks, "ACCELERATE_*": check_accelerate_variables,
    "accelerate config": check_accelerate_config, "deepspeed ops": check_deepspeed,
    "disk": check_disk, "files": check_output_files, "shared memory": check_shared_memory,
    "hub cache": check_hub_cache, "hub": check_hub, "wandb": check_wandb,
}  # fmt: skip
