"""`t5suite slurm render`, `submit` and `settle`: batch scripts from templates, handed to sbatch, and their ends.

t5suite slurm submit fine_tune --account lab --partition gpu --gpus_per_node 4 -- python fine_tune_t5.py config.yaml
"""

import os
import sys
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import find
from t5suite.commands.shared import note
from t5suite.launch.slurm import KINDS, MAX_REQUEUES, OPTIONS, Settings, render, settle, submit

RENDER_HELP = "write a batch script: a template, the job's options, and the command behind `--`"
SUBMIT_HELP = "write the script and hand it to sbatch; prints the job's id"
SETTLE_HELP = "at the end of a batch script: requeue the job if it was stopped, exit with the code of how it ended"
EXAMPLES = """examples:
  t5suite slurm {action} fine_tune --account lab --partition gpu --time 4:00:00 --gpus_per_node 4 -- \\
      python fine_tune_t5.py --benchmark glue --dataset_name rte
  t5suite slurm {action} pre_train --nodes 2 --gpus_per_node 8 --offline --setup env.sh -- \\
      python pre_train_t5.py t5_v1_1_base_24h.yaml
  t5suite slurm {action} sweep_agent --array 1-12%4 --gpus_per_node 1 -- \\
      wandb agent --forward-signals --count 1 ENTITY/PROJECT/SWEEP
  t5suite slurm {action} corpus --array 0-63 --cpus_per_task 8 -- \\
      t5suite corpus build --input crawl/ --tokenizer_name google/t5-v1_1-base --output_dir corpus --num_workers 8"""


def slurm_flags(parser) -> None:
    """Flags of `t5suite slurm render`, `submit` and `settle`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for action, text in (("render", RENDER_HELP), ("submit", SUBMIT_HELP)):
        sub = actions.add_parser(action, help=text, description=text, epilog=EXAMPLES.format(action=action))
        _script_flags(sub)
        sub.set_defaults(takes_words=True)
    actions.choices["render"].add_argument("--output", metavar="FILE", help="where to write it (default: print it)")
    end = actions.add_parser(
        "settle", help=SETTLE_HELP, description=SETTLE_HELP, epilog='example:\n  t5suite slurm settle "$?"'
    )
    end.add_argument("exit_code", type=int, help="what the step ended with")


def _script_flags(parser) -> None:
    parser.add_argument("kind", metavar="KIND", help=", ".join(KINDS))
    job = parser.add_argument_group("job", "options of sbatch; those not given are the template's")
    for name, option in OPTIONS.items():
        job.add_argument(f"--{name}", metavar="X", help=f"{option.help}, such as {option.example.replace('%', '%%')}")
    run = parser.add_argument_group("run")
    run.add_argument("--setup", metavar="FILE", help="shell file sourced first: modules, an environment to activate")
    run.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="a variable to export; repeatable"
    )
    run.add_argument("--offline", action="store_true", help="ask nothing of the hub or of W&B")
    run.add_argument(
        "--signal_seconds",
        type=int,
        help="stop the run so long before its limit (default: 120; pre_train 300, corpus 60)",
    )
    run.add_argument("--max_requeues", type=int, help=f"start a stopped job so often again (default: {MAX_REQUEUES})")
    run.add_argument("--log_dir", metavar="DIR", help="where logs go (default: where the job is submitted)")


def run_slurm(arguments) -> None:
    """Renders or submits a batch script, or settles a job."""
    if arguments.action == "settle":
        _settle(arguments.exit_code)
        return
    script = _script(arguments)
    if arguments.log_dir:
        # Slurm makes no folder for its logs; a job without it fails and leaves no word.
        Path(arguments.log_dir).mkdir(parents=True, exist_ok=True)
    if arguments.action == "submit":
        print(submit(script))
    elif arguments.output:
        Path(arguments.output).write_text(script, encoding="utf-8")
        note(f"{arguments.output} is written; hand it to sbatch")
    else:
        print(script, end="")


def _script(arguments) -> str:
    find(arguments.kind, dict.fromkeys(KINDS), "kind of job", where=f"t5suite slurm {arguments.action}")
    options = {name: getattr(arguments, name) for name in OPTIONS if getattr(arguments, name) is not None}
    if arguments.max_requeues is not None and arguments.max_requeues < 0:
        raise ConfigError(f"--max_requeues {arguments.max_requeues}: must be at least 0")
    settings = Settings(
        setup=arguments.setup,
        environment=tuple(arguments.env),
        offline=arguments.offline,
        signal_seconds=arguments.signal_seconds,
        max_requeues=arguments.max_requeues,
        log_dir=arguments.log_dir,
    )
    return render(arguments.kind, options, arguments.words, settings)


def _settle(exit_code: int) -> None:
    decision = settle(exit_code, os.environ)
    print(f"t5suite: {decision.reason}{'; requeued' if decision.requeue else ''}", file=sys.stderr, flush=True)
    sys.exit(decision.exit_code)
