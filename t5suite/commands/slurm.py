"""`t5suite slurm render`, `submit` and `settle`: batch scripts from templates, submission, and requeueing.

t5suite slurm submit fine_tune --account lab --partition gpu --gpus_per_node 4 -- python fine_tune_t5.py config.yaml
"""

import os
import sys
from pathlib import Path

from t5suite.commands.shared import check_at_least, note
from t5suite.launch.slurm import KINDS, OPTIONS, BatchJob, render_job
from t5suite.launch.slurm_jobs import MAX_REQUEUES, settle, submit_job

HELPS = {
    "render": "write a batch script: a template, the job's options, and the command after `--`",
    "submit": "write the script and submit it with sbatch; prints the job's id",
}
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
    for action, text in HELPS.items():
        sub = actions.add_parser(action, help=text, description=text, epilog=EXAMPLES.format(action=action))
        sub.set_defaults(takes_words=True)
        sub.add_argument("kind", metavar="KIND", help=", ".join(KINDS))
        job = sub.add_argument_group("job", "options of sbatch; those not given are the template's")
        for name, (example, meaning) in OPTIONS.items():
            job.add_argument(f"--{name}", metavar="X", help=f"{meaning}, such as {example.replace('%', '%%')}")
        add = sub.add_argument_group("run").add_argument
        add("--setup", metavar="FILE", help="shell file sourced first: modules, an environment to activate")
        add("--env", action="append", default=[], metavar="NAME=VALUE", help="a variable to export; repeatable")
        add("--offline", action="store_true", help="do not contact the hub or W&B")
        add(
            "--signal_seconds",
            type=int,
            help="stop the run this long before its limit (default: 120; pre_train 300, corpus 60)",
        )
        add("--max_requeues", type=int, help=f"requeue a stopped job at most this often (default: {MAX_REQUEUES})")
        add("--log_dir", metavar="DIR", help="where logs go (default: where the job is submitted)")
    actions.choices["render"].add_argument("--output", metavar="FILE", help="where to write it (default: print it)")
    example = 'example:\n  t5suite slurm settle "$?"'
    end = actions.add_parser("settle", help=SETTLE_HELP, description=SETTLE_HELP, epilog=example)
    end.add_argument("exit_code", type=int, help="the step's exit code")


def run_slurm(arguments) -> None:
    """Renders or submits a batch script, or settles a job."""
    if arguments.action == "settle":
        decision = settle(arguments.exit_code, os.environ)
        print(f"t5suite: {decision.reason}{'; requeued' if decision.requeue else ''}", file=sys.stderr, flush=True)
        sys.exit(decision.exit_code)
    check_at_least(arguments, max_requeues=0)
    options = {name: getattr(arguments, name) for name in OPTIONS if getattr(arguments, name) is not None}
    job = BatchJob(
        kind=arguments.kind,
        options=options,
        words=arguments.words,
        setup=arguments.setup,
        environment=arguments.env,
        offline=arguments.offline,
        signal_seconds=arguments.signal_seconds,
        max_requeues=arguments.max_requeues,
        log_dir=arguments.log_dir,
    )
    script = render_job(job)
    if arguments.log_dir:
        # Slurm does not create the log folder; without it a job fails silently.
        Path(arguments.log_dir).mkdir(parents=True, exist_ok=True)
    if arguments.action == "submit":
        print(submit_job(script))
    elif arguments.output:
        Path(arguments.output).write_text(script, encoding="utf-8")
        note(f"{arguments.output} is written; submit it with sbatch")
    else:
        print(script, end="")
