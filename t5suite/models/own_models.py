"""Models of the user's own: `--model_class module:Class`, a transformers class or any `torch.nn.Module` with a loss.

    class TinyTagger(nn.Module):                                     # my_models.py
        def __init__(self, vocab_size, d_model=32): ...
        def forward(self, input_ids, attention_mask, labels):
            ...
            return {"loss": F.cross_entropy(logits.transpose(1, 2), labels), "logits": logits}

    python fine_tune_t5.py --model_class my_models:TinyTagger --model_class_args d_model=64

A `PreTrainedModel` is made, trained and read as transformers' own are. A plain module is held by an `OwnModel`, whose
configuration records the class's name and its parameters: that makes it save, check out and go on like the others.

    {"model_type": "own_module", "model_class": "my_models:TinyTagger",
     "model_class_args": {"vocab_size": 1152, "d_model": 64}, "model_family": "seq2seq", ...}

A folder that names a class is read with `--model_class` alone: nothing that a checkpoint says is imported.
"""

import inspect
import re

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import suggestion
from t5suite.data.collators import IGNORED
from t5suite.data.module_batches import MODULE_LABELS
from t5suite.models.heads import head_for
from t5suite.models.module_answering import ModuleAnswerer
from t5suite.models.own_classes import FLAG, MODEL_FAMILY, class_named, stored_settings
from t5suite.models.vocabulary import rows_for
from t5suite.models.whole_weights import load_weights

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
        taken = inspect.signature(module.forward).parameters
        anything = any(p.kind is p.VAR_KEYWORD for p in taken.values())
        self.left_out = () if anything else tuple(name for name in COLLATED if name not in taken)
        self.post_init()
        # Two names of one weight: it is written by the first of them alone.
        first = {}
        for name, parameter in self.named_parameters(remove_duplicate=False):
            first.setdefault(id(parameter), name)
        self.all_tied_weights_keys = {
            name: first[id(parameter)]
            for name, parameter in self.named_parameters(remove_duplicate=False)
            if first[id(parameter)] != name
        }
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
    config.model_class_args = _with_filled(model_class, spec, parameters, config)
    model = OwnModel(config, _made(model_class, spec, config.model_class_args))
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


def _with_filled(model_class, spec, parameters: dict, config) -> dict:
    """The parameters, with those that the class has and nobody gave: the vocabulary and its special tokens."""
    known = inspect.signature(model_class).parameters
    for name in parameters:
        if name not in known and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
            raise ConfigError(f"--model_class_args: {spec} has no parameter {name!r}; {suggestion(name, known)}")
    filled = {name: getattr(config, name, None) for name in FILLED if name in known and name not in parameters}
    return {**parameters, **{name: value for name, value in filled.items() if value is not None}}


def _made(model_class, spec: str, parameters: dict) -> nn.Module:
    missing = [
        name
        for name, p in inspect.signature(model_class).parameters.items()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and name not in parameters
    ]
    if missing:
        raise ConfigError(f"{FLAG} {spec}: give --model_class_args {missing[0]}=...; it cannot be made without")
    return model_class(**parameters)


# Parameters that a class may have and need not be given.
FILLED = ("vocab_size", "pad_token_id", "eos_token_id", "decoder_start_token_id", "num_labels")
