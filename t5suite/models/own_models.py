"""Models of the user's own: `--model_class module:Class`.

    class TinyTagger(nn.Module):                                     # my_models.py
        def __init__(self, vocab_size, d_model=32): ...
        def forward(self, input_ids, attention_mask, labels):
            ...
            return {"loss": F.cross_entropy(logits.transpose(1, 2), labels), "logits": logits}

    python fine_tune_t5.py --model_class my_models:TinyTagger --model_class_args d_model=64

A `PreTrainedModel` is made, trained and read as transformers' own are. A plain `torch.nn.Module` with a loss is held by
an `OwnModel`, whose configuration records the class's name and its parameters, so that it is saved and resumed like
the others. A folder that names a class is read with `--model_class` alone: nothing that a checkpoint says is imported.

    {"model_type": "own_module", "model_class": "my_models:TinyTagger",
     "model_class_args": {"vocab_size": 1152, "d_model": 64}, "model_family": "seq2seq", ...}
"""

import inspect
import json
import logging
import re
from pathlib import Path

import torch
from torch import nn
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import load_object, suggestion
from t5suite.data.batches.collators import IGNORED, MODULE_LABELS
from t5suite.models.answering import Answerer
from t5suite.models.families import head_for
from t5suite.models.vocabulary import rows_for
from t5suite.models.weights import load_weights

logger = logging.getLogger(__name__)

FLAG = "--model_class"
MODEL_CLASS, MODEL_FAMILY = "model_class", "model_family"  # the configuration's names for them


def class_named(spec: str) -> type:
    """The class that `module:Class` names.

    Raises:
      ConfigError: there is none, or it is no `torch.nn.Module`.
    """
    found = load_object(spec, FLAG)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ConfigError(f"{FLAG} {spec}: it is no class of torch.nn.Module's")
    return found


def is_transformers_class(model_class: type) -> bool:
    """Whether transformers makes, saves and reads models of the class by itself."""
    return issubclass(model_class, PreTrainedModel) and model_class.config_class is not None


def check_class_given(name: str | None, spec: str | None) -> None:
    """A folder whose configuration names a class is read with `--model_class` only: a ConfigError without."""
    stored = stored_settings(name).get(MODEL_CLASS)
    if spec is None:
        check_no_class(stored, f"--model_name_or_path {name}")
    elif stored not in (None, spec):
        logger.warning("%s %s: %s was saved as a %s", FLAG, spec, name, stored)


def check_no_class(stored: str | None, place: str) -> None:
    """A ConfigError where a configuration (on the hub, of `--config_name`) names a class."""
    if stored is not None:
        raise ConfigError(
            f"{place}: its model is a {stored}, code that is run only where you name it: add {FLAG} {stored}"
        )


def stored_settings(name: str | None) -> dict:
    """What the configuration in a folder says; empty where there is none."""
    path = Path(name or "") / "config.json"
    if name is None or not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return {}  # whoever loads it says what is wrong with it
    return found if isinstance(found, dict) else {}


class OneClass:
    """Stands for transformers' `AutoModelFor...` where the class is known.

    >>> OneClass(MyT5, T5Config).from_config(config, dtype=torch.float32)
    """

    def __init__(self, model_class: type, config_class: type):
        self.model_class = model_class
        self._model_mapping = {config_class: model_class}

    def from_config(self, config, trust_remote_code: bool = False, **options):
        """Random weights."""
        return self.model_class._from_config(config, **options)

    def from_pretrained(self, name, config=None, trust_remote_code: bool = False, **options):
        """Trained weights; with `output_loading_info`, also what transformers found of them."""
        loaded = self.model_class.from_pretrained(name, config=config, **options)
        self._fill_buffers(loaded[0] if isinstance(loaded, tuple) else loaded, config)
        return loaded

    def _fill_buffers(self, model, config) -> None:
        """Buffers that are not saved are what the class makes them: transformers 5.23 leaves them as memory was."""
        unsaved = [
            (name, buffer) for name, module in model.named_modules() for buffer in module._non_persistent_buffers_set
        ]
        if not unsaved:
            return
        with torch.random.fork_rng(devices=[]):
            fresh = self.model_class._from_config(config)
        for name, buffer in unsaved:
            made = getattr(fresh.get_submodule(name), buffer)
            if made is not None:
                getattr(model.get_submodule(name), buffer).data.copy_(made)


def unknown_config_class(model_class: type | None) -> type | None:
    """The class's configuration, if it is of a type that transformers does not know."""
    config_class = getattr(model_class, "config_class", None)
    if config_class is None:
        return None
    known = config_class.model_type in CONFIG_MAPPING_NAMES and CONFIG_MAPPING[config_class.model_type] is config_class
    return None if known else config_class


def mark_class(config, model_class: type, spec: str, family: str | None):
    """Writes into a configuration which class it is of, and how its models read and write."""
    if not isinstance(config, model_class.config_class):
        raise ConfigError(
            f"{FLAG} {spec}: it takes a {model_class.config_class.__name__}, and the configuration is a "
            f"{type(config).__name__} (model type {config.model_type!r}); give another --config_name"
        )
    for name in ("pad", "bos", "eos", "decoder_start"):
        if not hasattr(config, f"{name}_token_id"):  # a class of the user's own need not have heard of them
            setattr(config, f"{name}_token_id", None)
    setattr(config, MODEL_CLASS, spec)
    if family not in (None, "auto"):
        setattr(config, MODEL_FAMILY, family)
    return config


# ---------------------------------------------------------------------------------------------------------------------
# Plain modules


# What the collators make: a module is given those of them that its forward takes.
COLLATED = ("input_ids", "attention_mask", "token_type_ids", "decoder_input_ids", "labels")


class OwnModelConfig(PreTrainedConfig):
    """Which class, made with which parameters."""

    model_type = "own_module"


class OwnModel(PreTrainedModel):
    """Holds a plain module: its weights, in its own hands, with a configuration beside them.

    Args:
      module: the module itself, made and initialised.
    """

    config_class = OwnModelConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    accepts_loss_kwargs = False

    def __init__(self, config, module: nn.Module):
        super().__init__(config)
        self.module = module
        self.left_out = _not_taken(module.forward, COLLATED)
        self.post_init()
        # Two names of one weight: it is written by the first of them alone.
        first, names = {}, list(self.named_parameters(remove_duplicate=False))
        kept = {name: first.setdefault(id(parameter), name) for name, parameter in names}
        self.all_tied_weights_keys = {name: other for name, other in kept.items() if other != name}
        self._tied_weights_keys = {f"^{re.escape(name)}$": kept for name, kept in self.all_tied_weights_keys.items()}

    def init_weights(self):
        """The module has its weights already."""

    def tie_weights(self, *args, **kwargs):
        """The module has tied them itself."""

    @property
    def takes_labels(self) -> bool:
        """Whether the module is given labels; if not, its loss is a mean over rows."""
        return "labels" not in self.left_out

    @property
    def writes(self) -> bool:
        """Whether the module can answer in text."""
        return callable(getattr(self.module, "generate", None))

    @property
    def answerer_class(self):
        """How it is evaluated."""
        return ModuleAnswerer

    def forward(self, **batch):
        """The module's own outputs.

        Where no label counts (a rank without rows in an epoch's last update has such a batch) the module's mean would
        be 0/0; it is given zeros then, and its loss weighs nothing.
        """
        labels = batch.pop(MODULE_LABELS, batch.pop("labels", None))
        if labels is not None:
            batch["labels"] = torch.where(labels.ne(IGNORED).any(), labels, torch.zeros_like(labels))
        return self.module(**{name: value for name, value in batch.items() if name not in self.left_out})


def module_loss(outputs) -> torch.Tensor:
    """The loss in a module's outputs: `loss` of an object or a table, the first of a tuple, or the tensor itself.

    Raises:
      ConfigError: there is none, or it is not one number.
    """
    if isinstance(outputs, dict):
        loss = outputs.get("loss")
    elif torch.is_tensor(outputs):
        loss = outputs
    else:
        loss = outputs[0] if isinstance(outputs, tuple) and outputs else getattr(outputs, "loss", None)
    if not torch.is_tensor(loss) or loss.numel() != 1:
        found = f"a tensor of shape {tuple(loss.shape)}" if torch.is_tensor(loss) else f"{type(loss).__name__}"
        raise ConfigError(
            f"{FLAG}: its forward must return a loss (an object or table with `loss`, a tuple that begins with it, or "
            f"the tensor), the mean over the labels that are not -100; it returned {found} for one"
        )
    return loss.reshape(())


class ModuleAnswerer(Answerer):
    """A module is asked for its loss, and for answers by its own `generate`."""

    def read(self, features) -> "ModuleReading":
        """The module's outputs for a batch."""
        return ModuleReading(self, features)

    def class_scores(self, features) -> list[list[float]]:
        """Of a module that classifies: log-probabilities of the classes, or its number."""
        return self.read(features).scores


class ModuleReading:
    """The loss of a batch, divided among its rows by their labels, and what the module writes.

    Attributes:
      nll: by example: the batch's mean loss times the example's number of labels.
      tokens: by example, how many labels count; 1 where the module takes none.
      scores: [B][C], log-probabilities of classes, or numbers: only of a module that classifies (`masked`).
    """

    def __init__(self, answerer: ModuleAnswerer, features):
        model = answerer.model
        features = [{"labels": [IGNORED], **feature} for feature in features]
        self.answerer, self.features = answerer, features
        self.batch = {name: value.to(answerer.device) for name, value in answerer.collator(features).items()}
        labels = self.batch.get("labels")
        counts_B = torch.ones(len(self.batch["input_ids"]), dtype=torch.long)
        if labels is not None and model.takes_labels:
            counts_B = labels.ne(IGNORED).reshape(len(labels), -1).sum(1)
        self.outputs = model(**self.batch)
        loss = float(module_loss(self.outputs).detach())
        self.tokens = counts_B.tolist()
        self.nll = [loss * count if count else 0.0 for count in self.tokens]

    @property
    def scores(self) -> list[list[float]]:
        """The module's logits of classes."""
        outputs = self.outputs
        logits_BC = outputs.get("logits") if isinstance(outputs, dict) else getattr(outputs, "logits", None)
        if logits_BC is None:
            raise ConfigError(
                f"{FLAG}: a classifier must return `logits` [rows, classes] beside its loss; or --eval_method loss"
            )
        logits_BC = logits_BC.float()
        is_number = self.answerer.model.config.problem_type == "regression"
        return (logits_BC if is_number else logits_BC.log_softmax(-1)).reshape(len(logits_BC), -1).tolist()

    def generate(self, generation_config, synced: bool = False, **options):
        """Per row, `[(ids, None)]` of what the module's `generate` writes; it is given what it takes of `input_ids`,
        `attention_mask`, `max_new_tokens` and `num_beams`.

        Raises:
          ConfigError: it has none, or does not take what is asked for.
        """
        module, model = self.answerer.model.module, self.answerer.model
        if not model.writes:
            raise ConfigError(f"{FLAG}: {type(module).__name__} has no generate, so that it can answer nothing")
        names = ("max_new_tokens", "num_beams")
        offered = {**self._prompts(), **{name: getattr(generation_config, name) for name in names}}
        refused = _not_taken(module.generate, offered)
        several = (generation_config.num_return_sequences or 1) > 1
        if options or several or ((generation_config.num_beams or 1) > 1 and "num_beams" in refused):
            raise ConfigError(f"{FLAG}: {type(module).__name__}.generate writes one answer, without sampling or beams")
        written = module.generate(**{name: value for name, value in offered.items() if name not in refused})
        rows = written.tolist() if torch.is_tensor(written) else [list(map(int, row)) for row in written]
        if len(rows) != len(self.tokens):
            raise ConfigError(f"{FLAG}: its generate wrote {len(rows)} answers for {len(self.tokens)} rows")
        return [[(row, None)] for row in rows]

    def _prompts(self) -> dict[str, torch.Tensor]:
        """What is to be answered; a decoder alone reads its prompts without answers, padded on the left."""
        answerer = self.answerer
        if answerer.model.config.model_family != "causal":
            return {name: self.batch[name] for name in ("input_ids", "attention_mask")}
        prompts, pad_left = [feature["input_ids"] for feature in self.features], answerer.collator.pad_left
        ids = pad_left(prompts, answerer.model.config.pad_token_id)
        mask = pad_left([[1] * len(prompt) for prompt in prompts], 0)
        return {"input_ids": ids.to(answerer.device), "attention_mask": mask.to(answerer.device)}

    def candidate_scores(self, candidates, most=None):
        """A module has no scores of candidates: always a ConfigError."""
        raise ConfigError(f"{FLAG}: a plain module cannot score candidates; --eval_method generate or loss")


def _not_taken(function, names) -> tuple[str, ...]:
    """Which of these arguments a function has no parameter for."""
    taken = inspect.signature(function).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in taken.values())
    return () if anything else tuple(name for name in names if name not in taken)


def module_methods(model: OwnModel) -> tuple[str, ...]:
    """How a module can be evaluated, the best first."""
    if model.config.model_family == "masked":
        return ("classify", "loss")
    return ("generate", "loss") if model.writes else ("loss",)


def class_name(model) -> str:
    """What manifests call a model's class; a held module's is its own.

    >>> class_name(OwnModel(config, TinyTagger(64)))
    'TinyTagger'
    """
    return type(getattr(model, "module", model) if isinstance(model, OwnModel) else model).__name__


def load_module(
    spec: str,
    *,
    tokenizer,
    arguments: dict | None = None,
    folder: str | None = None,
    from_scratch: bool = False,
    family: str | None = None,
    tasks=(),
) -> OwnModel:
    """A plain module in its holder: new, or with the weights of a folder.

    Args:
      arguments: what the class is made with: `{"d_model": 64}`.
      folder: a folder that a holder was saved in; its parameters hold where `arguments` says nothing.

    Raises:
      ConfigError: the class does not take the arguments, or the folder has no such model.
    """
    model_class, stored = class_named(spec), stored_settings(folder)
    if folder is not None and stored.get("model_type") != OwnModelConfig.model_type:
        raise ConfigError(
            f"--model_name_or_path {folder}: no module of {FLAG} was saved there; for its tokenizer: --tokenizer_name"
        )
    if family in (None, "auto"):
        family = stored.get(MODEL_FAMILY, "seq2seq")
    config = _module_config(tokenizer, family, tasks)
    config.model_class, config.model_family = spec, family
    parameters = {**stored.get("model_class_args", {}), **(arguments or {})}
    config.model_class_args = _arguments_of(model_class, spec, parameters, config)
    model = OwnModel(config, model_class(**config.model_class_args))
    if folder is not None and not from_scratch:
        load_weights(model, folder, "--model_name_or_path")
    return model.float()


def own_names(model) -> dict[str, torch.Tensor] | None:
    """A held module's weights by the module's own names, each once; None for a model of another kind.

    >>> sorted(own_names(OwnModel(config, TinyTagger(64))))[:1]
    ['embed.weight']
    """
    if not isinstance(model, OwnModel):
        return None
    tied = model.all_tied_weights_keys
    return {name.removeprefix("module."): value for name, value in model.state_dict().items() if name not in tied}


def hold_module(module: nn.Module, *, tokenizer, family: str | None = None, tasks=()) -> OwnModel:
    """A module that is in memory already, in its holder; whoever reads what is saved of it makes it as a class."""
    spec = f"{type(module).__module__}:{type(module).__qualname__}"
    family = "seq2seq" if family in (None, "auto") else family
    config = _module_config(tokenizer, family, tasks)
    config.model_class, config.model_family, config.model_class_args = spec, family, {}
    return OwnModel(config, module.float())


def _module_config(tokenizer, family: str, tasks) -> OwnModelConfig:
    """What the suite needs to know of a module beside its parameters."""
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id", None) for name in ("pad", "bos", "eos")}
    config = OwnModelConfig(is_encoder_decoder=family == "seq2seq", **ids)
    config.vocab_size = rows_for(len(tokenizer))
    config.decoder_start_token_id = config.pad_token_id if family == "seq2seq" else None
    if family == "masked" and tasks:
        words = head_for(tasks).words
        config.problem_type = "regression" if words is None else "single_label_classification"
        config.id2label = dict(enumerate(words or ("value",)))
        config.label2id = {word: i for i, word in config.id2label.items()}
    return config


def _arguments_of(model_class, spec, given: dict, config) -> dict:
    """What the class is made with: what was given, and the vocabulary and special tokens that it has parameters for."""
    known = inspect.signature(model_class).parameters
    for name in _not_taken(model_class, given):
        raise ConfigError(f"--model_class_args: {spec} has no parameter {name!r}; {suggestion(name, known)}")
    filled = {name: getattr(config, name, None) for name in FILLED if name in known}
    arguments = {**{name: value for name, value in filled.items() if value is not None}, **given}
    for name, p in known.items():
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and name not in arguments:
            raise ConfigError(f"{FLAG} {spec}: give --model_class_args {name}=...; it cannot be made without")
    return arguments


# Parameters that a class may have and need not be given.
FILLED = ("vocab_size", "pad_token_id", "eos_token_id", "decoder_start_token_id", "num_labels")
