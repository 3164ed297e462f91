"""Repositories for the stand-in of the hub, laid out as the real ones are: models of T5's families, GLUE, C4, ...

    >>> with HubServer() as hub:
    ...     publish_all(hub)
    ...     sorted(files_of("dataset", "nyu-mll/glue"))[:2]
    ['README.md', 'ax/test-00000-of-00001.parquet']

Files have the names that the hub's have, weights are tiny and random, and the tokenizers read the bundled vocabulary.
Rows are real ones where `../shared/data` is beside the checkout, else made up.
"""

import functools
import gzip
import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import datasets
import torch
import transformers
import yaml
from hub_server import HubServer
from shared_data import SHARED_DATA
from support import folder

from t5suite import load_task
from t5suite.constants import DATASET_VALS
from t5suite.testing import bundled_model, example_row

ROWS_A_SPLIT = {"train": 24, "validation": 12, "test": 6}
DOCUMENTS_A_FILE = 40
# The columns of `idx` in tasks where it is no number.
PARTS_OF_INDEX = {"multirc": ("paragraph", "question", "answer"), "record": ("passage", "query")}

# ---------------------------------------------------------------------------------------------------------------------
# Models


def read_folder(directory: Path) -> dict[str, bytes]:
    """The files of a folder by name."""
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file()}


def saved_model(model) -> dict[str, bytes]:
    """config.json, generation_config.json and model.safetensors."""
    directory = folder()
    model.save_pretrained(directory)
    return read_folder(directory)


def as_pickle(files: dict[str, bytes], model) -> dict[str, bytes]:
    """The same with pytorch_model.bin in the place of model.safetensors, as repositories of 2020 and 2021 have it."""
    weights = io.BytesIO()
    torch.save(model.state_dict(), weights)
    return {name: content for name, content in files.items() if name != "model.safetensors"} | {
        "pytorch_model.bin": weights.getvalue()
    }


def bundled(*names: str) -> dict[str, bytes]:
    """Files of the bundled tokenizer."""
    return {name: (Path(bundled_model()) / name).read_bytes() for name in names}


@functools.cache
def tiny_t5(is_v1_1: bool = False, seed: int = 0):
    """A T5 with random weights."""
    transformers.set_seed(seed)
    config = transformers.T5Config.from_pretrained(
        bundled_model(), d_model=16, d_kv=4, d_ff=24, num_layers=1, num_decoder_layers=1, num_heads=2
    )
    if is_v1_1:
        config.feed_forward_proj, config.is_gated_act, config.dense_act_fn = "gated-gelu", True, "gelu_new"
        config.tie_word_embeddings = False
    model = transformers.T5ForConditionalGeneration(config)
    if is_v1_1:
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight) * 0.05)
    return model


def v1_1_repository() -> dict[str, bytes]:
    """google/t5-v1_1-*: a pickle, and spiece.model without tokenizer.json."""
    tokenizer = bundled("spiece.model", "tokenizer_config.json")
    config = json.loads(saved_model(tiny_t5(is_v1_1=True))["config.json"]) | {"tie_word_embeddings": False}
    files = saved_model(tiny_t5(is_v1_1=True)) | {"config.json": json.dumps(config).encode()}
    return as_pickle(files, tiny_t5(is_v1_1=True)) | tokenizer


def t5_repository() -> dict[str, bytes]:
    """google-t5/t5-*: safetensors, spiece.model and tokenizer.json."""
    return saved_model(tiny_t5()) | bundled("spiece.model", "tokenizer.json", "tokenizer_config.json")


def gpt2_repository() -> dict[str, bytes]:
    """openai-community/gpt2."""
    transformers.set_seed(0)
    words = len(transformers.AutoTokenizer.from_pretrained(bundled_model()))
    special = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
    config = transformers.GPT2Config(vocab_size=words, n_embd=32, n_layer=1, n_head=2, **special)
    return saved_model(transformers.GPT2LMHeadModel(config)) | bundled("tokenizer.json", "tokenizer_config.json")


def bert_repository() -> dict[str, bytes]:
    """google-bert/bert-base-uncased."""
    transformers.set_seed(0)
    words = len(transformers.AutoTokenizer.from_pretrained(bundled_model()))
    wide = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=words, pad_token_id=0, **wide)
    return saved_model(transformers.BertForMaskedLM(config)) | bundled("tokenizer.json", "tokenizer_config.json")


def byt5_repository() -> dict[str, bytes]:
    """google/byt5-small: a pickle, and a tokenizer without a vocabulary file."""
    directory = folder()
    transformers.set_seed(0)
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2}
    config = transformers.T5Config(
        vocab_size=384, feed_forward_proj="gated-gelu", decoder_start_token_id=0, tie_word_embeddings=False, **sizes
    )
    model = transformers.T5ForConditionalGeneration(config)
    transformers.ByT5Tokenizer().save_pretrained(directory)
    return as_pickle(saved_model(model), model) | read_folder(directory)


def encoder_repository() -> dict[str, bytes]:
    """Rostlab/prot_t5_xl_half_uniref50-enc: the encoder alone, in half precision."""
    model = transformers.T5EncoderModel(tiny_t5().config).half()
    return as_pickle(saved_model(model), model) | bundled("spiece.model", "tokenizer_config.json")


def nllb_repository() -> dict[str, bytes]:
    """facebook/nllb-200-distilled-600M."""
    from test_languages import BART, tokenizer

    directory = folder()
    transformers.set_seed(0)
    words = tokenizer("NllbTokenizer")
    words.save_pretrained(directory)
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
    config = transformers.M2M100Config(**{**BART, "vocab_size": len(words)}, **ids)
    return saved_model(transformers.M2M100ForConditionalGeneration(config)) | read_folder(directory)


def adapter_repository(base: str) -> dict[str, bytes]:
    """A LoRA adapter over a model of the hub: adapter_config.json and adapter_model.safetensors."""
    import peft

    directory = folder()
    model = tiny_t5(is_v1_1=True)
    adapter = peft.get_peft_model(
        transformers.T5ForConditionalGeneration(model.config), peft.LoraConfig(r=2, task_type="SEQ_2_SEQ_LM")
    )
    adapter.peft_config["default"].base_model_name_or_path = base
    adapter.save_pretrained(directory)
    return read_folder(directory)


# ---------------------------------------------------------------------------------------------------------------------
# Rows


def rows_of_task(benchmark: str, name: str, split: str, count: int) -> list[dict]:
    """Real rows of a split, in the hub's columns, or made ones with all labels in turn."""
    task = load_task(benchmark, name)
    for ending, opener in ((".jsonl", open), (".jsonl.gz", gzip.open)):
        file = SHARED_DATA / benchmark / task.rows_of / f"{split}{ending}"
        if file.is_file():
            with opener(file, "rt", encoding="utf-8") as lines:
                return [json.loads(line) for line, _ in zip(lines, range(count))]
    row = example_row(task)
    label_count = len(task.label_words or [0])
    rows = []
    for number in range(count):
        label = {"label": number % label_count} if task.value_kind == "class" else {}
        parts = PARTS_OF_INDEX.get(task.name)
        rows.append({**row, **label, "idx": dict.fromkeys(parts, number) if parts else number})
    return rows


def parquet(rows: list[dict], features: datasets.Features | None = None) -> bytes:
    """Rows as the hub's parquet files hold them, with the columns' types in their metadata."""
    content = io.BytesIO()
    datasets.Dataset.from_list(rows, features=features).to_parquet(content)
    return content.getvalue()


def card(configurations: dict[str, dict[str, str]]) -> bytes:
    """README.md, whose header says which files each split of each configuration has."""
    entries = [
        {"config_name": name, "data_files": [{"split": split, "path": path} for split, path in paths.items()]}
        for name, paths in configurations.items()
    ]
    return f"---\n{yaml.safe_dump({'license': 'other', 'configs': entries}, sort_keys=False)}---\n# Data\n".encode()


def parquet_repository(benchmark: str, configurations: dict[str, str]) -> dict[str, bytes]:
    """`CONFIGURATION/SPLIT-00000-of-00001.parquet` for each of a benchmark's tasks, by configuration.

    Args:
      configurations: the task whose rows each configuration has.
    """
    files, paths = {}, {}
    for configuration, name in configurations.items():
        task = load_task(benchmark, name)
        paths[configuration] = {}
        splits = {split: role for role in ROWS_A_SPLIT for split in task.splits(role).values()}
        for split, role in splits.items():
            place = f"{configuration}/{split}"
            rows = rows_of_task(benchmark, name, split, ROWS_A_SPLIT[role])
            files[f"{place}-00000-of-00001.parquet"] = parquet(rows)
            paths[configuration][split] = f"{place}-*"
    return {"README.md": card(paths), **files}


def configurations_of(benchmark: str, repository: str) -> dict[str, str]:
    """The task of each configuration that a benchmark reads from a repository."""
    return {
        entry["hub_name"]: name
        for name, entry in DATASET_VALS[benchmark].items()
        if entry.get("hub_path") == repository and entry.get("hub_name") and "rows_of" not in entry
    }


def dpr_repository() -> dict[str, bytes]:
    """community-datasets/definite_pronoun_resolution: one configuration, plain_text."""
    features = datasets.Features(
        {
            "sentence": datasets.Value("string"),
            "pronoun": datasets.Value("string"),
            "candidates": datasets.Sequence(datasets.Value("string"), length=2),
            "label": datasets.ClassLabel(names=["0", "1"]),
        }
    )
    files = {}
    for split in ("train", "test"):
        rows = [{name: row[name] for name in features} for row in rows_of_task("super_glue", "dpr", split, 24)]
        files[f"plain_text/{split}-00000-of-00001.parquet"] = parquet(rows, features)
    return {"README.md": card({"plain_text": {split: f"plain_text/{split}-*" for split in ("train", "test")}}), **files}


def c4_repository(file_count: int = 4, documents_a_file: int = DOCUMENTS_A_FILE) -> dict[str, bytes]:
    """allenai/c4: en/c4-train.00000-of-01024.json.gz and so on, lines of text, timestamp and url."""
    files = {}
    for split, count in (("train", file_count), ("validation", 1)):
        for number in range(count):
            lines = [
                json.dumps(
                    {"text": document_text(split, number, line), "timestamp": "2019-04-25T12:57:54Z", "url": "x"}
                )
                for line in range(documents_a_file)
            ]
            name = f"en/c4-{split}.{number:05}-of-{1024 if split == 'train' else 8:05}.json.gz"
            files[name] = gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0)
    paths = {split: f"en/c4-{split}.*.json.gz" for split in ("train", "validation")}
    return {"README.md": card({"en": paths}), **files}


def document_text(split: str, file: int, line: int) -> str:
    """A document that tells its place."""
    return f"{split} {file} {line}. " + "The farmer sold horses at noon. It was a quiet day in the village. " * 4


def imdb_repository() -> dict[str, bytes]:
    """stanfordnlp/imdb: the label's names are those of a ClassLabel; a split without labels."""
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])})
    words = ("dull", "lovely")
    files, paths = {}, {}
    for split, count in (("train", 24), ("test", 12), ("unsupervised", 6)):
        rows = [
            {"text": f"film {number} is {words[number % 2]}", "label": number % 2 if split != "unsupervised" else -1}
            for number in range(count)
        ]
        files[f"plain_text/{split}-00000-of-00001.parquet"] = parquet(rows, features)
        paths[split] = f"plain_text/{split}-*"
    return {"README.md": card({"plain_text": paths}), **files}


def scrolls_repository() -> dict[str, bytes]:
    """tau/scrolls: a script, and a zip file for each task."""
    files = {
        "README.md": b"---\nlicense: mit\n---\n",
        "scrolls.py": b"raise RuntimeError('a script must not be run')\n",
    }
    for name in DATASET_VALS["scrolls"]:
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            for split, count in ROWS_A_SPLIT.items():
                rows = [
                    {"id": f"q{i}", "pid": f"q{i}_0", "input": f"Q{i}?\n\nA story.", "output": f"answer {i}"}
                    for i in range(count)
                ]
                archive.writestr(f"{name}/{split}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        files[f"{name}.zip"] = content.getvalue()
    return files


# ---------------------------------------------------------------------------------------------------------------------
# The whole hub

MODELS: dict[str, Callable[[], dict[str, bytes]]] = {
    "google/t5-v1_1-small": v1_1_repository,
    "google/t5-v1_1-base": v1_1_repository,
    "google-t5/t5-small": t5_repository,
    "google-t5/t5-base": t5_repository,
    "openai-community/gpt2": gpt2_repository,
    "google-bert/bert-base-uncased": bert_repository,
    "google/byt5-small": byt5_repository,
    "Rostlab/prot_t5_xl_half_uniref50-enc": encoder_repository,
    "facebook/nllb-200-distilled-600M": nllb_repository,
    "lab/t5-lora": lambda: adapter_repository("google/t5-v1_1-small"),
    "lab/private-t5": t5_repository,
    "lab/gated-t5": t5_repository,
}
DATA: dict[str, Callable[[], dict[str, bytes]]] = {
    "nyu-mll/glue": lambda: parquet_repository("glue", configurations_of("glue", "nyu-mll/glue")),
    "aps/super_glue": lambda: parquet_repository("super_glue", configurations_of("super_glue", "aps/super_glue")),
    "community-datasets/definite_pronoun_resolution": dpr_repository,
    "allenai/c4": c4_repository,
    "stanfordnlp/imdb": imdb_repository,
    "tau/scrolls": scrolls_repository,
}
RENAMED = {
    ("model", "t5-small"): "google-t5/t5-small",
    ("model", "t5-base"): "google-t5/t5-base",
    ("model", "gpt2"): "openai-community/gpt2",
    ("dataset", "imdb"): "stanfordnlp/imdb",
    ("dataset", "glue"): "nyu-mll/glue",
}
# A token that may read what is private or gated.
TOKEN = "hf_reader"


@functools.cache
def files_of(kind: str, name: str) -> dict[str, bytes]:
    """The files of a repository, made once in a process."""
    return {"model": MODELS, "dataset": DATA}[kind][name]()


def publish(hub: HubServer, kind: str, name: str) -> str:
    """Puts a repository on the hub; returns its commit."""
    return hub.commit(kind, name, files_of(kind, name))


def publish_all(hub: HubServer) -> None:
    """Puts all repositories on the hub, those of the lab readable by TOKEN alone."""
    for kind, names in (("model", MODELS), ("dataset", DATA)):
        for name in names:
            publish(hub, kind, name)
    hub.renamed.update(RENAMED)
    for name, is_gated in (("lab/private-t5", False), ("lab/gated-t5", True)):
        repository = hub.repositories["model", name]
        repository.readers, repository.is_gated = {TOKEN}, is_gated


def copy_into(directory: Path, kind: str, name: str) -> Path:
    """A repository's files as a local folder."""
    shutil.rmtree(directory, ignore_errors=True)
    for path, content in files_of(kind, name).items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
    return directory
