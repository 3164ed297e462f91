"""`t5suite doctor`: what this machine and environment lack for the suite, and the mend of each lack.

    $ t5suite doctor
    ok    python             3.11.7 (/home/me/.venv/bin/python)
    warn  hub                https://huggingface.co does not answer (...) — export HF_HUB_OFFLINE=1 ...

Every line is `ok`, `warn` (something will not work, or not as asked) or `fail` (runs will fail); with a `fail` the
command exits 78. The checks are those of `doctor_checks`, which is imported when the command runs.
"""

import sys

from t5suite.base.errors import ConfigError
from t5suite.base.redaction import redacted
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
    from t5suite.commands.doctor_checks import examine
    from t5suite.commands.doctor_findings import FAIL, Checkup, config_file, settings_of

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
        raise ConfigError(f"t5suite doctor: {len(failed)} checks fail: {', '.join(failed)}; the lines say the mend")


def show(finding, as_json: bool) -> None:
    """One line; secrets that a variable or address holds are not shown."""
    finding = type(finding)(*map(redacted, finding))
    if as_json:
        print_json(finding._asdict())
        return
    level = f"{finding.level:<5}"
    if sys.stdout.isatty():
        level = f"\033[{COLOURS[finding.level]}m{level}\033[0m"
    mend = f" — {finding.mend}" if finding.mend else ""
    print(f"{level} {finding.name:<18} {finding.what}{mend}", flush=True)
