"""The model of `t5suite predict`: loaded and placed, or its exported files; which one it is.

    >>> source = parse_command_line(["predict", "--model_name_or_path", "runs/rte"])
    >>> load_predictor(source, EncodingSettings(Lengths(512, 512)), batch_size=16)
    <t5suite.inference.predictor.Predictor object>
    >>> model_fingerprint(source)
    'sha256:5b0c...'

`--device_map` distributes a large model's layers over the devices of one process.
"""

import dataclasses
import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path

import torch

from t5suite.base.errors import ConfigError, LackOfMemoryError, first_line
from t5suite.base.hub_commits import revision_to_read
from t5suite.base.memory_errors import is_out_of_memory
from t5suite.inference.exported import EncodingSettings, ExportedPredictor, exported_kind, load_exported
from t5suite.inference.outputs import PROGRESS_SUFFIX
from t5suite.inference.predictor import Predictor
from t5suite.models.encoders import have_head
from t5suite.models.families import encoding_for, recognize_family
from t5suite.models.heads import check_classes_have_names, output_words
from t5suite.models.loading import load_model, load_tokenizer
from t5suite.models.placement import check_alone, place_model
from t5suite.models.vocabulary import ensure_padding
from t5suite.training.process_setup import gpu_of_rank, leave_out_cudnn_attention
from t5suite.training.processes.ranks import Ranks

logger = logging.getLogger(__name__)

# Of a file of weights, the size and this many parts are hashed: any training changes nearly all of them.
SAMPLED_PARTS = 64
PART_BYTES = 1 << 16
WEIGHTS_AND_SETTINGS = (".safetensors", ".bin", ".onnx", ".data", ".json", ".model")
# Files in a model's folder that do not affect its answers.
VOLATILE = ("manifest.json", "results.json", "trainer_state.json", "metrics.json", "progress.json", "position.json")


def load_predictor(
    source,
    settings: EncodingSettings,
    *,
    batch_size: int,
    tasks=(),
    ranks: Ranks | None = None,
    offload_folder=None,
) -> Predictor | ExportedPredictor:
    """The model, or its exported files, ready to answer.

    Args:
      source: the flags of `t5suite predict` that say which model, and on which devices.
      tasks: those that an encoder's head is for.
      offload_folder: where `--device_map` may offload weights to.

    Raises:
      ConfigError: no such model, or flags that it does not support. LackOfMemoryError: a device that it does not fit.
    """
    ranks = ranks or Ranks()
    if exported_kind(source.model_name_or_path):
        return load_exported(source, settings, batch_size, ranks.world_size, tasks)
    tokenizer, model = load_parts(source, tasks)
    encoding = encoding_for(model, tokenizer, settings.lengths, settings.separator, settings.languages)
    encoding = dataclasses.replace(encoding, template=settings.template)
    device = process_device(source.use_cpu)
    leave_out_cudnn_attention()
    if source.device_map is not None:
        check_alone(f"--device_map {source.device_map}", ranks.world_size, None)
    try:
        _move_to_devices(model, source, device, offload_folder)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        ways = ["--dtype bfloat16", "a smaller model"]
        if device.type == "cuda" and source.device_map is None:
            ways += ["--device_map balanced", "--use_cpu"]
        raise LackOfMemoryError(
            f"--model_name_or_path {source.model_name_or_path}: the model does not fit {device} "
            f"({first_line(error)}); use {' or '.join(ways)}"
        ) from None
    return Predictor(model, encoding, batch_size, recognize_family(model).name, ranks, device)


def _move_to_devices(model, source, device: torch.device, offload_folder) -> None:
    """Moves the model to the device, or its layers to several ones."""
    if source.device_map is None:
        model.to(device)
        return
    place_model(
        model,
        device=device,
        trains=False,
        device_map=source.device_map,
        max_memory=source.max_memory,
        folder=offload_folder,
    )


def load_parts(source, tasks=()) -> tuple:
    """`(tokenizer, model)`, the model in main memory.

    Raises:
      ConfigError: no such model, or an encoder without a trained head, which would choose at random.
    """
    tokenizer = tokenizer_of_source(source)
    ensure_padding(tokenizer)
    model = load_model(
        source.model_name_or_path,
        tokenizer=tokenizer,
        family=source.model_family,
        tasks=tasks,
        own_head=not tasks,
        adapter_base=source.adapter_base,
        attn_implementation=source.attn_implementation,
        model_class=source.model_class,
        revision=source.model_revision,
        trust_remote_code=source.trust_remote_code,
    )
    if source.model_class is None:
        check_head_answers(model, source.model_name_or_path, tasks)
    return tokenizer, model.to(getattr(torch, source.dtype)).eval()


def tokenizer_of_source(source):
    """The tokenizer that the flags name, else the model's.

    Raises:
      ConfigError: there is none; names the flag that says where it is looked for.
    """
    name = source.tokenizer_name
    flag = "--tokenizer_name"
    if not name:
        name = source.model_name_or_path
        flag = "--model_name_or_path"
    return load_tokenizer(name, source.model_revision, source.trust_remote_code, flag)


def check_head_answers(model, name: str, tasks=()) -> None:
    """Refuses an encoder that was not saved with a head for its tasks, and has no adapter with one.

    Raises:
      ConfigError: its head would choose at random, or its classes have no names and no task names them.
    """
    if hasattr(model, "peft_config") or not recognize_family(model).has_head:
        return
    was_saved_with_head = have_head(model.config.architectures)
    if was_saved_with_head and not getattr(model, "drawn_tensors", ()):
        if not tasks:
            check_classes_have_names(model.config, f"--model_name_or_path {name}")
        return
    words = output_words(model.config)
    labels = "labels"
    if tasks and words is not None:
        labels = f"labels {', '.join(words)}"
    raise ConfigError(
        f"{type(model).__name__}: this encoder has no trained head for {labels}; fine-tune it first, or take a model "
        "that writes (T5, BART, GPT-2)"
    )


def process_device(use_cpu: bool = False) -> torch.device:
    """This process's device: the CUDA GPU of its local rank (`gpu_of_rank`), else the CPU."""
    if use_cpu:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        _warn_of_idle_accelerator()
        return torch.device("cpu")
    index = gpu_of_rank()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _warn_of_idle_accelerator() -> None:
    """Says that an accelerator other than CUDA is not used here, though training may use it."""
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator().type
        logger.warning("answers are computed on the CPU: predict and serve use CUDA GPUs only, not %s", kind)


def model_fingerprint(source) -> str:
    """Identifies a model: a hash of a folder's contents (of large files, parts), or the hub name and commit.

    >>> model_fingerprint(source)
    'sha256:5b0c...'
    """
    folder = Path(source.model_name_or_path)
    if not folder.is_dir():
        revision = revision_to_read("model", source.model_name_or_path, source.model_revision)
        return f"{source.model_name_or_path}@{revision or 'main'}"
    digest = hashlib.sha256()
    for path in _files_of_model(folder):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            for start in (*range(0, size, max(PART_BYTES, size // SAMPLED_PARTS)), max(0, size - PART_BYTES)):
                file.seek(start)
                digest.update(file.read(PART_BYTES))
    return f"sha256:{digest.hexdigest()}"


def _files_of_model(folder: Path) -> Iterator[Path]:
    """The files that determine answers, by name; loading refuses a broken link by name."""
    for path in sorted(folder.iterdir()):
        if path.suffix not in WEIGHTS_AND_SETTINGS or path.name in VOLATILE or _is_of_answers(path):
            continue
        if path.is_file():
            yield path


def _is_of_answers(path: Path) -> bool:
    """Whether a file holds answers of `t5suite predict`, or says how far they are."""
    return path.name.endswith(PROGRESS_SUFFIX) or path.with_name(path.name + PROGRESS_SUFFIX).exists()
