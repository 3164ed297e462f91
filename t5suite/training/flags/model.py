"""The flags of the model, its configuration and its placement.

>>> ModelArguments(model_name_or_path="t5-small", device_map="auto").device_map
'auto'
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from t5suite.base.model_files import check_has_model, check_model_files
from t5suite.models.placement import check_placement_flags
from t5suite.training.flags.fields import check_needed_flags, facts, flag

AttentionKernel = Literal["sdpa", "eager", "flash_attention_2", "flex_attention"]


@dataclass
class ModelArguments:
    """The model, its configuration, and its placement.

    `flag(default, help, marks)`: marks and other facts are explained in `flags.fields`.
    """

    shared_facts = facts(theme="model")  # of each flag here that has no theme of its own

    model_name_or_path: str | None = flag(
        None, "Hub name or folder of a model. Default: the bundled tiny T5, untrained.", "common report shapes intro"
    )
    tokenizer_name: str | None = flag(
        None, "Hub name, folder or spiece.model, if not the model's.", "common shapes object"
    )
    from_scratch: bool = flag(False, "Take random weights instead of the trained ones.", "common shapes")
    model_revision: str | None = flag(
        None, "Branch, tag or commit of the hub's model; of several models: NAME=REVISION,NAME=REVISION.", "shapes"
    )
    model_family: Literal["auto", "seq2seq", "causal", "masked", "encoder"] = flag(
        "auto", "What the model is trained as; auto: what its configuration says.", "shapes"
    )
    allow_missing_keys: bool = flag(False, "Take a model or --init_checkpoint that lacks tensors, or has too many.")
    num_sentinels: int | None = flag(
        None, "Number of sentinels, in tokenizer and model (T5: 100).", "shapes", bounds="[1, inf) tokens"
    )
    max_memory: str | None = flag(
        None,
        "What --device_map may fill: 0=10GiB,cpu=30GiB. Default: what is free.",
        "object",
        theme="speed",
        change="layout",
    )
    freeze: str | None = flag(
        None,
        "Frozen parts: encoder,decoder,embeddings,head,layers:N (the first N),encoder:N,decoder:N.",
        "report shapes object",
        needs="training",
    )
    freeze_regex: str | None = flag(
        None, "Freeze parameters by name: a regular expression.", "report shapes object", needs="training"
    )
    model_class: str | None = flag(None, "module:Class of your own, a PreTrainedModel.")
    trust_remote_code: bool = flag(False, "Run code that a hub repository brings along.", "shapes")

    config_name: str | None = flag(
        None,
        "A configuration, for --from_scratch: a preset (mini), a model type (bert), a folder, file or hub name.",
        "common report shapes intro",
    )
    config_overrides: str | None = flag(None, "Changes to the configuration: d_model=256,num_layers=4.", "shapes pairs")
    dropout_rate: float | None = flag(
        None, "Dropout's rate, in place of the configuration's.", "common report", bounds="[0, 1) a share"
    )
    init_checkpoint: str | None = flag(
        None, "Weights in place of the model's: a file (.safetensors, .pth, .bin) or folder."
    )
    add_tokens: str | None = flag(
        None,
        r"New tokens: '<turn>,<speaker>', or a file with one a line; \n is a line break. Not for letters in words.",
        "shapes fresh",
    )
    attn_implementation: AttentionKernel | None = flag(
        None, "Attention kernels. Default: sdpa, else eager.", "shapes", theme="speed"
    )
    device_map: Literal["balanced", "auto", "sequential"] | None = flag(
        None,
        "Spread layers over this process's devices; auto is the same as balanced.",
        "object",
        theme="speed",
        change="layout",
    )
    embedding_on_cpu: bool = flag(
        False, "Train an untied embedding on the CPU.", "object", theme="speed", change="layout"
    )
    load_in_8bit: bool = flag(False, "Load the frozen matrices below an --adapter in 8 bits.", "report", theme="speed")
    load_in_4bit: bool = flag(
        False, "Load the frozen matrices below an --adapter in 4 bits (QLoRA).", "report", theme="speed"
    )
    adapter_base: str | None = flag(None, "An adapter's base model, if not where the adapter says.", "shapes")

    def __post_init__(self):
        for name in ("model_name_or_path", "config_name", "tokenizer_name"):
            if getattr(self, name):
                check_model_files(f"--{name}", getattr(self, name))
        needs_weights = not (self.config_name or self.from_scratch)
        is_local = bool(self.model_name_or_path) and Path(self.model_name_or_path).exists()
        if needs_weights and is_local:
            check_has_model("--model_name_or_path", self.model_name_or_path)
        check_placement_flags(self.device_map, self.max_memory, self.embedding_on_cpu)
        check_needed_flags(self)
