"""What makes a page's commands small enough for seconds on a CPU without a network.

>>> small("python fine_tune_t5.py mini.yaml --max_steps 300   # a minute")
'python fine_tune_t5.py mini.yaml $SMALL --max_steps 6'
"""

import functools
import json
import re
import shutil
import tempfile
from pathlib import Path

from t5suite.commands.tasks import example_row
from t5suite.constants import DATASET_VALS
from t5suite.tasks.registry import load_task

ROOT = Path(__file__).parent.parent
BUNDLED = ROOT / "t5suite/data/mini/model"
QUICK = (
    "--use_cpu --disable_tqdm True --logging_steps 1 --per_device_train_batch_size 4 --bf16 False --max_eval_samples 8 "
    "--warmup_steps 0"
)
QUICK_PRE = "--inputs_length 32"
STEPS = "--max_steps 2 --eval_strategy steps --eval_steps 1"
# The part of a page's steps that is trained.
PART = 50
NAMES = {
    r"(google/t5-v1_1-\w+|(?<![\w/-])t5-(small|base|large|3b)|models/t5-base)(?![\w.-])": "$T5",
    r"(openai-community/)?gpt2(?![\w.-])": "$GPT2",
    r"bert_sst2\.yaml": "bert_sst2.yaml --model_name_or_path $BERT",
}
# bash functions that make what a page's commands read.
MAKERS = r"""
make_rows() { cp "$ROWS" rows.jsonl; }
make_predictions() { echo '"True"' > predictions.jsonl; }
make_pairs() {
  mkdir -p pairs/train pairs/val
  python -c "for i in range(40): print('{\"input\": \"say %d\", \"output\": \"number %d\"}' % (i, i))" > pairs.jsonl
  cp pairs.jsonl pairs/train/a.jsonl; cp pairs.jsonl pairs/val/a.jsonl; }
make_alpaca() {
  mkdir -p alpaca
  python -c "
import json
rows = [{'instruction': 'Say %d.' % i, 'input': '', 'output': str(i)} for i in range(40)]
print(json.dumps(rows))" > alpaca_data.json
  cp alpaca_data.json alpaca/; }
make_reviews() { python -c "
print('text,label')
[print('film %d is %s,%s' % (i, w, w)) for i in range(20) for w in ('positive', 'negative')]" > reviews.csv; }
make_texts() {
  mkdir -p books texts
  python -c "
for i in range(300):
    print('The farmer sold %d horses at noon. It was a quiet day in the village, and nobody noticed.' % i)" > book.txt
  cp book.txt books/a.txt
  python -c "import json; [print(json.dumps({'text': t.strip()})) for t in open('book.txt')]" | gzip > articles.jsonl.gz
  gzip -c book.txt > articles.txt.gz; }
make_crawl() { mkdir -p crawl; cp -r books articles; python -c "
import zstandard
with zstandard.open('crawl/a.jsonl.zst', 'wt') as lines:
    [print('{\"text\": \"A quiet day in village %d.\"}' % i, file=lines) for i in range(40)]"; }
make_more_files() {
  make_alpaca; make_texts; mkdir -p questions wmt imdb
  python -c "
print('question\tcontext\tanswer')
[print('who won %d\tAnna won %d\tAnna' % (i, i)) for i in range(40)]" > questions/train.tsv
  python -c "
for i in range(40): print('{\"translation\": {\"en\": \"the %d\", \"de\": \"das %d\"}}' % (i, i))" > wmt/train.jsonl
  python -c "
import pandas
pandas.DataFrame({'document': ['a b %d' % i for i in range(40)], 'summary': ['a'] * 40}).to_parquet('part-0.parquet')"
  cp reviews.csv imdb/train.csv; }
"""


def small(command: str) -> str:
    """A command with fewer steps and rows, tiny models and no `...`."""
    line = re.sub(r"\s+#\s.*$", "", command)
    line = re.sub(r" \.\.\.(?= |$)", "", line)
    line = re.sub(r"--vocab_size \d+", "--vocab_size 150", line)
    line = re.sub(r"(--config_name) t5-v?[\w.]*-(small|base)", r"\1 mini", line)
    for name, ours in NAMES.items():
        line = re.sub(rf"(?<!--config_name ){name}", ours.replace("\\", r"\\"), line)
    if "train_t5.py" not in line and "tune_t5.py" not in line:
        return line
    line = re.sub(r"--(max_steps|eval_steps) (\d+)", _fewer, line)
    given, flags = (f"{QUICK} {QUICK_PRE}", " $SMALL_PRE") if "pre_train_t5.py" in line else (QUICK, " $SMALL")
    steps = re.search(r" --max_steps \d+", line)
    # What is not evaluated takes no flags of evaluation.
    more = steps[0] if steps else " --max_steps 2" if "--no_eval" in line else " $STEPS"
    for name in re.findall(r"--(\w+)", f"{given} {STEPS if more == ' $STEPS' else '--max_steps'}"):
        line = re.sub(rf" --{name}(?: [^-|&>\s]\S*)?(?=\s|$)", "", line)  # a flag is given once
    flags += more
    return re.sub(r"(?= (\||&&|>) )|$", lambda _: flags, line, count=1)


def _fewer(match: re.Match) -> str:
    least = 2 if match[1] == "max_steps" else 1
    return f"--{match[1]} {max(least, round(int(match[2]) / PART))}"


@functools.cache
def surroundings() -> tuple[str, dict[str, str]]:
    """bash functions and variables that small commands use: rows of every task and three tiny models."""
    folder = Path(tempfile.mkdtemp(prefix="surroundings-"))
    data = folder / "data"
    for benchmark, entries in DATASET_VALS.items():
        for name in entries:
            if benchmark in ("glue", "super_glue"):
                _write_rows(load_task(benchmark, name), data)
    # A mirror that is named is asked for the bundled benchmark, too.
    (data / "mini").symlink_to(BUNDLED.parent)
    rows = folder / "rows.jsonl"
    row = {"sentence": "The soup was lovely.", "premise": "It rains.", "hypothesis": "It is wet.", "label": 0}
    row |= {"document": "Anna won. It rained.", "summary": "Anna won.", "translation": {"en": "one", "de": "eins"}}
    row |= {"paragraph": "Anna won.", "question": "Who won?", "answer": "Anna"}
    row |= {"idx": {"paragraph": 0, "question": 0, "answer": 0}}
    rows.write_text(json.dumps(row) + "\n", encoding="utf-8")
    settings = {
        "DATA": str(data),
        "ROWS": str(rows),
        "T5SUITE_DATA_DIR": str(data),
        "SMALL": QUICK,
        "SMALL_PRE": f"{QUICK} {QUICK_PRE}",
        "STEPS": STEPS,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "118",
    }
    return MAKERS, settings | _tiny_models(folder)


def _write_rows(task, data: Path) -> None:
    """Twelve made-up rows for each split, labels taking turns."""
    row = example_row(task)
    count = len(task.label_words or [0])
    place = data / task.benchmark / task.rows_of
    place.mkdir(parents=True, exist_ok=True)
    names = {name for role in ("train", "validation", "test") for name in task.splits(role).values()}
    for split in names - {path.stem for path in place.glob("*.jsonl")}:
        lines = []
        for i in range(12):
            label = {"label": i % count} if task.value_kind == "class" else {}
            idx = {"paragraph": i, "question": i, "answer": i} if task.name == "multirc" else i
            lines.append(json.dumps({**row, **label, "idx": idx}))
        (place / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _tiny_models(folder: Path) -> dict[str, str]:
    """`{variable: folder}` of a T5, a GPT-2 and a BERT with the bundled vocabulary."""
    from transformers import (
        AutoTokenizer,
        BertConfig,
        BertForMaskedLM,
        GPT2Config,
        GPT2LMHeadModel,
        T5Config,
        T5ForConditionalGeneration,
    )

    words = len(AutoTokenizer.from_pretrained(BUNDLED))
    special = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
    wide = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    models = {
        "T5": T5ForConditionalGeneration(T5Config.from_pretrained(BUNDLED)),
        "GPT2": GPT2LMHeadModel(GPT2Config(vocab_size=words, n_embd=32, n_layer=1, n_head=2, **special)),
        "BERT": BertForMaskedLM(BertConfig(vocab_size=words, pad_token_id=0, **wide)),
    }
    for name, model in models.items():
        shutil.copytree(BUNDLED, folder / name)
        model.save_pretrained(folder / name)
    return {name: str(folder / name) for name in models}
