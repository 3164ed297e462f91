"""docs/troubleshooting.md's table: what new users get wrong, and what the suite prints; a test runs every command."""

import textwrap
from pathlib import Path
from typing import NamedTuple

# Characters in a line of the site's code column.
WIDTH = 88
PAGE = Path(__file__).resolve().parent.parent / "troubleshooting.md"
BEGIN = "<!-- made by docs/builders/mistakes_page.py: begin -->"
END = "<!-- made by docs/builders/mistakes_page.py: end -->"


class Mistake(NamedTuple):
    """One mistake.

    Attributes:
      message: what is printed after `error: ` (or by a warning); `<word>` stands for text that differs from run to run.
      cure: why it happens, and what to do.
      code: 78 configuration, 65 data, 74 files and disks, 0 a warning.
      files: `{name: content}` of the folder that the command runs in.
      needs: what else the folder needs, by name (`PREPARATIONS` of the test).
      without: packages that are not installed.
      slow: it is found only once a model is built, which takes seconds.
      shown: it stands on the page; others differ from one there in the name alone, and are tested.
    """

    title: str
    command: str
    message: str
    cure: str
    code: int = 78
    files: dict = {}
    needs: str = ""
    without: tuple[str, ...] = ()
    slow: bool = False
    shown: bool = True


def page() -> str:
    """The page's expected text: its own words around a section for each group of mistakes."""
    parts = []
    for group, entries in MISTAKES.items():
        parts.append(f"## {group}")
        for entry in filter(lambda entry: entry.shown, entries):
            command = f"python {entry.command}" if entry.command.split()[0].endswith(".py") else entry.command
            said = f"error: {entry.message}" if entry.code else f"warning: {entry.message}"
            said = textwrap.fill(said, WIDTH, break_long_words=False, break_on_hyphens=False)
            ends = f" ({entry.code})" if entry.code not in (0, 78) else ""
            parts.append(f"### {entry.title}\n\n```console\n$ {command}\n{said}\n```\n\n{entry.cure}{ends}")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    table = "\n\n".join(parts)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}"


ROW = '{"sentence": "good", "label": 1}\n'
SWEEP = """program: fine_tune_t5.py
method: random
metric: {name: eval/accuracy, goal: maximize}
parameters:
  lerning_rate: {values: [1.0e-3]}
"""
TASK = """mine:
  topics:
    prefix: 'topic: '
    text_column_name: text
    label_column_name: label
    labels: [sport, news]
    metric_names: [acuracy]
    metric_to_optimize: acuracy
"""
SHIPPED_TASK = TASK.replace("mine", "glue").replace("topics", "rte").replace("acuracy", "accuracy")

# {section of the page: [mistake]}
# fmt: off
MISTAKES = {
    "Flags and configuration files": [
        Mistake("A flag with a typo", "fine_tune_t5.py --learning_rat 1e-3",
                "unknown flag --learning_rat; did you mean --learning_rate?",
                "No flag is guessed or ignored; `--help_all` shows every one. Keys of YAML and sweep files, and names of tasks, "
                "benchmarks, metrics, optimizers, objectives, trackers, parts of a model, presets, sub-commands, recipes, files "
                "and checkpoints are answered the same way: with the closest ones."),
        Mistake("A value that is not a number", "fine_tune_t5.py --learning_rate 1e-3x",
                "--learning_rate: invalid float value: '1e-3x'; give a number, such as 0.001",
                "Numbers are written `0.001` or `1e-3`, without units or separators."),
        Mistake("A flag that transformers 5 removed", "fine_tune_t5.py --evaluation_strategy epoch",
                "unknown flag --evaluation_strategy; here it is --eval_strategy",
                "The message names the new flag, also for `--warmup_ratio`, `--no_cuda` and other removed ones."),
        Mistake("A flag of the other script", "fine_tune_t5.py --streaming",
                "--streaming belongs to pre_train_t5.py",
                "Each script's `--help` has its own flags.", shown=False),
        Mistake("A flag that is given twice", "fine_tune_t5.py --seed 1 --bf16 --seed 2",
                "--seed is given twice: 1 and 2",
                "Remove one. A file may have the flag as well: the command line overrides it."),
        Mistake("A batch of nothing", "fine_tune_t5.py --per_device_train_batch_size 0",
                "--per_device_train_batch_size 0: must be at least 1 (examples)",
                "Where one example alone does not fit into memory, see [memory](memory.md).", shown=False),
        Mistake("A length that leaves no room for a word", "fine_tune_t5.py --max_target_length 1",
                "--max_target_length 1: must be at least 2 (tokens)",
                "Lengths are in tokens and include the end-of-sequence token."),
        Mistake("A recipe or configuration file that is not there", "fine_tune_t5.py minni.yaml",
                "--config: no file 'minni.yaml'; did you mean mini.yaml, mini_pre_train.yaml, super_ni.yaml?",
                "The first word without dashes is a YAML file: a path, or the name of one in `recipes/`.", shown=False),
        Mistake("A tab in a YAML file", "fine_tune_t5.py run.yaml",
                "run.yaml:2: found character '\\t' that cannot start any token; indent with spaces, YAML takes no tabs",
                "Indent with spaces.",
                files={"run.yaml": "learning_rate: 1e-3\n\tseed: 1\n"}),
        Mistake("An unknown key in a YAML file", "fine_tune_t5.py run.yaml",
                "run.yaml:2: unknown flag --lerning_rate; did you mean --learning_rate, --logging_strategy?",
                "A file's keys are the flags' names, without dashes.",
                files={"run.yaml": "seed: 1\nlerning_rate: 1e-3\n"}, shown=False),
        Mistake("A slip in a JSON configuration", "fine_tune_t5.py run.json",
                "run.json:2: not JSON (Expecting property name enclosed in double quotes at column 17)",
                "Here it is the comma before the brace.",
                files={"run.json": '{"seed": 1,\n "max_steps": 5,}\n'}),
        Mistake("--fp16 and --bf16 together", "fine_tune_t5.py --fp16 --bf16",
                "At most one of fp16 and bf16 can be True, but not both; leave --fp16 out: --bf16 has float32's range",
                "On GPUs before Ampere, which have no bfloat16, leave both out for T5: its activations overflow "
                "float16. torch emulates bfloat16 there, slower than float32 is, and a warning says so. A recipe may set "
                "`--bf16`: `--bf16 False` turns it off."),
        Mistake("A GPU's flag on a machine without one", "fine_tune_t5.py --tf32 True",
                "--tf32 requires Ampere or a newer GPU arch, cuda>=11 and torch>=1.7; leave --tf32 out here (t5suite "
                "doctor shows what torch sees)",
                "If there is a GPU, `t5suite doctor` says why torch does not see it: a build of torch without CUDA, a"
                " driver that is too old, `CUDA_VISIBLE_DEVICES`.", needs="no GPU"),
        Mistake("DeepSpeed's settings by a name that is none", "fine_tune_t5.py --deepspeed zero4",
                "--deepspeed zero4: no such file or name; did you mean zero3, zero2, zero1?",
                "[Distributed training](distributed.md) says which to take.", shown=False),
        Mistake("DeepSpeed is not installed", "fine_tune_t5.py --deepspeed zero2",
                "--deepspeed: <error>; pip install 't5suite[deepspeed]'",
                "Optional libraries are imported when a flag needs them.", without=("deepspeed",)),
        Mistake("An optimizer that there is not", "fine_tune_t5.py --optimizer adafctor",
                "--optimizer: unknown optimizer 'adafctor'; did you mean adafactor, adamw_torch, adagrad?",
                "[Fine-tuning](fine_tune.md#optimizers) lists optimizers and schedules.", shown=False),
        Mistake("A tracker that there is not", "fine_tune_t5.py --report_to wandbb",
                "--report_to: unknown tracker 'wandbb'; did you mean wandb, swanlab?",
                "`metrics.jsonl` in the run's directory is written in any case.", shown=False),
        Mistake("A LoRA setting without an adapter", "fine_tune_t5.py --lora_r 8",
                "--lora_r has no effect without --adapter",
                "Add `--adapter lora`, or leave the setting out.", shown=False),
        Mistake("Early stopping without evaluations", "fine_tune_t5.py --early_stopping_patience 3 --eval_strategy no",
                "--early_stopping_patience 3 has nothing to wait for; evaluate with "
                "--eval_strategy epoch (or steps, with --eval_steps) and leave --load_best_model_at_end on",
                "It counts consecutive evaluations without improvement.", slow=True),
    ],
    "Tasks and data": [
        Mistake("A task's name with a typo", "fine_tune_t5.py --benchmark glue --dataset_name ssst2",
                "--dataset_name: unknown glue task 'ssst2'; did you mean sst2?",
                "`t5suite tasks` lists them all.", shown=False),
        Mistake("A task of another benchmark",
                "t5suite preview --benchmark mini --dataset_name cola --rows rows.jsonl",
                "--dataset_name: cola is a task of glue, not of mini; give --benchmark glue",
                "Without the flag the benchmark is `mini`, the bundled one.", files={"rows.jsonl": ROW}),
        Mistake("A benchmark's name with a typo", "t5suite tasks --benchmark gleu",
                "--benchmark: unknown benchmark 'gleu'; did you mean glue?",
                "`t5suite tasks` lists them all; your own is added with `--task_file`.", shown=False),
        Mistake("A metric with a typo", "fine_tune_t5.py --metric_for_best_model acuracy",
                "--metric_for_best_model: unknown metric 'acuracy'; did you mean accuracy?",
                "It must be one of the task's own metrics, or `loss`.", shown=False),
        Mistake("A task file with an unknown metric", "t5suite tasks --task_file tasks.yaml --dataset_name topics",
                "tasks.yaml:2: mine/topics: metric_names: unknown metric 'acuracy'; did you mean accuracy, token_accuracy, subset_accuracy?",
                "[Tasks](tasks.md) has every field of an entry, and the metrics.", files={"tasks.yaml": TASK}, shown=False),
        Mistake("A task file that redefines a shipped task",
                "t5suite tasks --task_file tasks.yaml --benchmark glue --dataset_name rte",
                "tasks.yaml:2: glue/rte is a shipped task; give yours another name",
                "Otherwise a score would not show which of the two it belongs to.", shown=False, files={"tasks.yaml": SHIPPED_TASK}),
        Mistake("The data directory is not there",
                "fine_tune_t5.py --benchmark glue --dataset_name rte --data_dir nowhere",
                "--data_dir: no directory 'nowhere'; `t5suite mirror --output_dir DIR` makes one",
                "The path is relative to where the command runs; in a batch job that may be another folder.",
                slow=True, shown=False),
        Mistake("The data directory lacks the task",
                "fine_tune_t5.py --benchmark glue --dataset_name rte --data_dir data",
                "glue/rte has no training split: no data/glue/rte/train.jsonl or .jsonl.gz (there: nothing)",
                "Files are `DIR/<benchmark>/<task>/<split>.jsonl`; `t5suite mirror` writes them so. In a mixture, "
                "`--allow_missing_tasks` skips such a task.",
                code=65, files={"data/glue/cola/train.jsonl": ROW}, slow=True),
        Mistake("No network, and nothing in the cache", "fine_tune_t5.py --benchmark glue --dataset_name rte",
                "cannot reach the hub for nyu-mll/glue (rte, train), and no copy is in the local cache (<error>). On "
                "a machine with a network run `t5suite mirror --benchmark glue --dataset_name rte --output_dir DIR`, "
                "copy DIR here and give --data_dir DIR",
                "Compute nodes often have no network: mirror once, where there is one. Without "
                "`HF_HUB_OFFLINE=1` the exit code is 75, and the message goes on with how the hub failed.",
                code=65, slow=True),
        Mistake("An empty file", "fine_tune_t5.py --train_file empty.jsonl",
                "empty.jsonl: the file is empty",
                "Its writer failed, or wrote elsewhere.", code=65, files={"empty.jsonl": ""}, slow=True),
        Mistake("A folder for --train_file", "fine_tune_t5.py --train_file reviews",
                "--train_file 'reviews' is a folder; name a file, or the folder by --train_dir with --data_format",
                "`--train_dir` finds the splits in a folder: `train.csv`, `val/`, ... ([data](data.md)).",
                files={"reviews/train.csv": "text,label\na,b\n"}),
        Mistake("A CSV file without --text_column", "fine_tune_t5.py --train_file reviews.csv",
                "reviews.csv: the first line names no column 'input' (--text_column); there are the columns text, label",
                "`--text_column` and `--target_column` name what is read and written; without them these are `input` "
                "and `output`.", code=65, files={"reviews.csv": "text,label\na,b\n"}),
        Mistake("A CSV file for a benchmark's task",
                "fine_tune_t5.py --benchmark mini --dataset_name sentiment --train_file reviews.csv",
                "--train_file reviews.csv: a benchmark's rows are JSON lines; for rows of your own in a file like "
                "this give --data_format csv with --text_column and --target_column, and neither --benchmark nor --task_file",
                "With `--benchmark`, a file is read as a split of its task, in the task's columns. Leave it out.",
                files={"reviews.csv": "text,label\na,b\n"}),
        Mistake("A file that is not there", "t5suite preview --benchmark glue --dataset_name rte --rows rows.jsonl",
                "rows.jsonl: no such file",
                "Paths are relative to where the command runs.", code=65, shown=False),
        Mistake("A row without a column",
                "t5suite preview --benchmark mini --dataset_name sentiment --rows rows.jsonl",
                "rows.jsonl:2: the row has no column 'sentence'; its columns are text, label",
                "Rename the column, or describe your rows by a task file or `--data_format` ([data](data.md)).",
                code=65, files={"rows.jsonl": ROW + '{"text": "bad", "label": 0}\n'}),
        Mistake("A label out of range", "t5suite preview --benchmark mini --dataset_name sentiment --rows rows.jsonl",
                "rows.jsonl:2: label 7 in column 'label' is none of 0 negative, 1 positive (-1: unlabelled)",
                "Labels count from 0, in the order of the entry's `labels`.",
                code=65, files={"rows.jsonl": ROW + '{"sentence": "bad", "label": 7}\n'}),
        Mistake("A line that is not JSON",
                "t5suite preview --benchmark mini --dataset_name sentiment --rows rows.jsonl",
                "rows.jsonl:2: not JSON (Expecting ',' delimiter at column 31)",
                "Each line is one whole object; here its brace is missing. An indented JSON file is not JSON lines.",
                code=65, files={"rows.jsonl": ROW + '{"sentence": "bad", "label": 0\n'}),
        Mistake("A file that is not UTF-8",
                "t5suite preview --benchmark mini --dataset_name sentiment --rows rows.jsonl",
                "rows.jsonl:2: not UTF-8 (byte 17 is 0xf6): it seems to be cp1252 (Windows); convert it: iconv -f CP1252 "
                "-t UTF-8 FILE > NEW",
                "The encoding is guessed from one line: look at the converted file. UTF-16, as Excel writes it, is named, too.",
                code=65, files={"rows.jsonl": ROW.encode() + b'{"sentence": "sch\xf6n", "label": 1}\n'}),
        Mistake("A CSV file without the column that is to be learnt",
                "fine_tune_t5.py --data_format csv --train_dir data --text_column question --target_column answr",
                "data/train.csv: the first line names no column 'answr' (--target_column); did you mean answer?",
                "`--text_column` and `--target_column` name what is read and written ([data](data.md)).",
                code=65, files={"data/train.csv": "question,answer\na,b\n"}, slow=True),
        Mistake("Answers longer than --max_target_length",
                "fine_tune_t5.py --dataset_name similarity --max_target_length 2",
                "mini/similarity: <count> of <rows> texts fill --max_target_length 2 (tokens); what is longer loses"
                " its end",
                "Training continues, with cut answers: raise the length. Cut inputs are logged, too, without a "
                "warning.", code=0, slow=True),
    ],
    "Models and tokenizers": [
        Mistake("A model's name with a typo, or no network",
                "fine_tune_t5.py --model_name_or_path google/t5-v1_1-smal",
                "--model_name_or_path: 'google/t5-v1_1-smal' is no folder, the hub cannot be reached, and there is no"
                " copy of it in the local cache; give a folder with the model's files",
                "On a machine with a network `hf download NAME --local-dir DIR` fetches it; copy DIR and name it. This is "
                "the message with `HF_HUB_OFFLINE=1`; without it the exit code is 75, and the message goes on with how the hub "
                "failed.",
                slow=True),
        Mistake("A preset's name with a typo", "t5suite summary --config_name t5-v1_1-bse",
                "--config_name: 't5-v1_1-bse' is no folder, the hub cannot be reached, and there is no copy of it in "
                "the local cache; give a folder with the model's files; presets and model types of nearly that name: "
                "t5-v1_1-base, t5-v1_1-xl, t5-v1_1-small",
                "Presets and model types need no network.", slow=True, shown=False),
        Mistake("An adapter that knows no tokenizer", "fine_tune_t5.py --model_name_or_path adapter",
                "--model_name_or_path: the adapter 'adapter' has no tokenizer; give its base's by --tokenizer_name ada/base",
                "Adapters that were trained here have one; PEFT alone saves none.",
                files={"adapter/adapter_config.json": '{"peft_type": "LORA", "base_model_name_or_path": "ada/base"}'},
                slow=True),
        Mistake("An adapter whose base is not there",
                "fine_tune_t5.py --model_name_or_path adapter --tokenizer_name tokenizer",
                "adapter: the base model of this adapter, '/gone/base', is not there; name it with --adapter_base",
                "The adapter stores the path that its base had.",
                files={"adapter/adapter_config.json": '{"peft_type": "LORA", "base_model_name_or_path": "/gone/base"}'},
                needs="tokenizer",
                slow=True),
        Mistake("A tokenizer that is not the model's",
                "fine_tune_t5.py --model_name_or_path out --tokenizer_name tokenizer",
                "the model has <count> embeddings, but the tokenizer has <pieces> pieces; give the --tokenizer_name "
                "that belongs to the model",
                "A model learns what its own tokenizer's ids mean; omit the flag, and the one in the "
                "model's folder is used.", needs="run and tokenizer", slow=True),
        Mistake("A part of the model that it does not have", "fine_tune_t5.py --freeze encodr",
                "--freeze encodr: T5ForConditionalGeneration has no part 'encodr'; did you mean encoder, encoder:N, "
                "decoder?",
                "[Memory](memory.md) lists the parts.", slow=True, shown=False),
        Mistake("An objective that there is not", "pre_train_t5.py --objective span_coruption",
                "--objective: unknown objective 'span_coruption'; did you mean span_corruption?",
                "[Pre-training](pre_training.md) has them all.", shown=False),
        Mistake("More spans than the tokenizer has sentinels",
                "pre_train_t5.py --noise_density 0.5 --mean_span_length 1 --inputs_length 512",
                "blocks of 510 tokens, 0.5 of them noise, have up to 255 spans, but the tokenizer has 100 sentinels: lower "
                "--inputs_length or --noise_density, raise --mean_span_length, or give the tokenizer more "
                "(--num_sentinels)",
                "T5's tokenizer has 100. `--num_sentinels 256` adds rows to the model, too.", slow=True),
        Mistake("T5 in float16", "fine_tune_t5.py --fp16",
                "--fp16 with T5 overflows: losses become nan and the weights are lost. Use --bf16 (same speed, "
                "float32's range). The run stops at the first steps in a row whose loss is not finite",
                "See [below](#the-loss-is-nan) for the symptoms.", code=0, slow=True),
    ],
    "Run directories, resuming, disks": [
        Mistake("Another run's directory", "fine_tune_t5.py --output_dir out --learning_rate 1e-4",
                "--output_dir out holds another run (<id>; this one would be <new>): learning_rate 0.0005 there, "
                "0.0001 here. Give a new --output_dir, or --overwrite_output_dir, which moves the old run to DIR.old-1 "
                "and keeps it (or --allow_changed learning_rate to continue that run anyway)",
                "A run resumes only in its own directory and with its own settings ([reliability](reliability.md)).",
                needs="run", slow=True),
        Mistake("Two runs into one directory at once", "fine_tune_t5.py --output_dir out",
                "--output_dir out is in use by <owner>: two runs in one directory would spoil each other's "
                "checkpoints. Wait for it, stop it, or give another --output_dir",
                "End the other process, or give this one a directory of its own.", needs="owner", slow=True),
        Mistake("A directory with other files in it", "fine_tune_t5.py --output_dir out",
                "--output_dir out: not empty (notes.txt, ...) and without manifest.json; give a new one",
                "Files that do not belong to a run are never overwritten.", files={"out/notes.txt": "mine"}, slow=True),
        Mistake("A checkpoint that is not there", "fine_tune_t5.py --resume checkpoint-7",
                "--resume 'checkpoint-7': choose auto, none or the path; there is no such folder",
                "`--resume auto`, the default, finds the newest complete one in `--output_dir`.", slow=True, shown=False),
        Mistake("A truncated checkpoint", "fine_tune_t5.py --output_dir new --resume out/checkpoint-1",
                "--resume out/checkpoint-1: model.safetensors: SHA-256 is <found> instead of <expected>; use another"
                " checkpoint, or --resume auto, which finds the newest complete one",
                "Its files do not match the hashes that were saved with it. Take the previous one; `--resume auto` does"
                " so automatically.", code=74, needs="torn", slow=True),
        Mistake("A file where a folder is needed", "fine_tune_t5.py --output_dir notes.txt/run",
                "--output_dir notes.txt/run: notes.txt is a file; name a folder",
                "A part of the path is a file.", files={"notes.txt": "mine"}, slow=True),
        Mistake("No permission to write", "fine_tune_t5.py --output_dir /sys/run",
                "/sys/run: <refusal>; write to another folder, or change its permissions",
                "On clusters another user's home, or a file system that is mounted read-only on compute nodes.",
                code=74, slow=True),
        Mistake("The disk is full", "t5suite tasks --json > /dev/full",
                "No space left on device; make room, or write to another disk",
                "Quotas end the same way. A run that stops this way resumes from its last complete checkpoint; "
                "`--save_total_limit 1` keeps one.", code=74),
    ],
    "The t5suite command": [
        Mistake("A sub-command with a typo", "t5suite previw",
                "t5suite: unknown sub-command 'previw'; did you mean preview, predict, pre_train?",
                "`t5suite --help` lists them.", shown=False),
        Mistake("Rows to be answered that are not there", "t5suite predict --model_name_or_path out --input row.jsonl",
                "row.jsonl: no such file; did you mean rows.jsonl?",
                "Files and flags are checked before the model is loaded.",
                code=65, files={"rows.jsonl": ROW, "out/config.json": "{}"}, shown=False),
        Mistake("Answers in the place of the rows",
                "t5suite predict --model_name_or_path out --input rows.jsonl --output rows.jsonl --overwrite",
                "--output rows.jsonl is the file that is read; what is written would take its place",
                "Give `--output` another file name.",
                files={"rows.jsonl": '{"inputs": "A fine film."}\n', "out/config.json": "{}"}),
        Mistake("An export into a folder that is not empty",
                "t5suite export --model_name_or_path out --output_dir exported",
                "--output_dir 'exported' is not empty; give a new folder, or an empty one",
                "What is there may be another model's: an export needs a folder of its own.",
                files={"exported/notes.txt": "mine", "out/config.json": "{}"}),
        Mistake("A folder without a model", "t5suite predict --model_name_or_path runs --input rows.jsonl",
                "--model_name_or_path runs: no model in this folder: no config.json, no weights; there are "
                "runs/rte",
                "Name the run itself, not the folder of runs.",
                files={"rows.jsonl": ROW, "runs/rte/config.json": "{}"}),
        Mistake("A report on a folder that is no run", "t5suite report .",
                ".: no finished run (manifest.json, results.json missing)",
                "Name run directories, such as `runs/*`; a run that was stopped has no results yet.", code=65),
        Mistake("A wrong number of predictions",
                "t5suite score --benchmark mini --dataset_name sentiment --rows rows.jsonl --predictions "
                "answers.jsonl",
                "rows.jsonl: 3 rows make 3 examples of mini/sentiment, but there are 1 predictions in answers.jsonl; "
                "there must be one per example, in the rows' order",
                "ReCoRD has one example per answer, WSC's training split fewer than rows: `t5suite preview` shows "
                "them.", code=65, files={"rows.jsonl": ROW * 3, "answers.jsonl": '"positive"\n'}),
        Mistake("A sweep over a flag that there is not", "t5suite sweep sweep.yaml --count 1",
                "sweep.yaml:5: unknown flag --lerning_rate; did you mean --learning_rate, --logging_strategy?",
                "The whole sweep file is checked before the first trial starts.", files={"sweep.yaml": SWEEP}, shown=False),
        Mistake("A submission that lacks tasks",
                "t5suite submit --benchmark super_glue --predictions_dir answers --output_dir submission",
                "no test predictions in answers for <files>; --allow_missing_tasks skips them",
                "A run with `--do_predict` (or `--predict_only`) writes predictions of the test splits.",
                code=65, files={"answers/rte.test.jsonl": '{"row": 0, "prediction": "entailment", "idx": 0}\n'}),
    ],
}
# fmt: on
