"""Frozen weights in 8 or 4 bits under a trained adapter: `--load_in_4bit --adapter lora` (QLoRA, arXiv:2305.14314).

    >>> model = load_model("google/t5-v1_1-xxl", tokenizer=tokenizer, quantization="4bit")
    >>> type(model.encoder.block[0].layer[0].SelfAttention.q).__name__
    'Linear4bit'

bitsandbytes keeps the matrices between the layers in blocks of 8-bit integers (arXiv:2208.07339) or of 4-bit normal
floats, and computes with them in the type of what comes in. Embeddings, output layer and norms stay float32; T5's `wo`,
too, which transformers keeps out of low precision. They cannot be trained: an adapter over them is.
"""

import importlib.util

import torch

from t5suite.base.errors import ConfigError

KINDS = ("8bit", "4bit")


def quantization_of(load_in_8bit: bool, load_in_4bit: bool) -> str | None:
    """What the two flags say.

    >>> quantization_of(False, True)
    '4bit'

    Raises:
      ConfigError: both; bitsandbytes is not there.
    """
    if not (load_in_8bit or load_in_4bit):
        return None
    if load_in_8bit and load_in_4bit:
        raise ConfigError("--load_in_8bit and --load_in_4bit: give one of them")
    kind = "4bit" if load_in_4bit else "8bit"
    if importlib.util.find_spec("bitsandbytes") is None:
        install = "pip install 't5suite[quantization]'"
        raise ConfigError(f"--load_in_{kind} is bitsandbytes', which is not installed: {install}")
    return kind


def quantization_options(kind: str | None, name: str | None, scratch: bool) -> dict:
    """The options of `from_pretrained`; none without a kind.

    Raises:
      ConfigError: weights that are random.
    """
    if kind is None:
        return {}
    if scratch or name is None:
        raise ConfigError(
            f"--load_in_{kind} is for trained weights, which an adapter is trained over; these would be random: leave "
            f"it out, or give --model_name_or_path alone"
        )
    from transformers import BitsAndBytesConfig

    if kind == "8bit":
        config = BitsAndBytesConfig(load_in_8bit=True)
    else:
        computed = torch.bfloat16 if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else torch.float32
        config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=computed)
    device = torch.cuda.current_device() if torch.cuda.is_available() else "cpu"
    return {"quantization_config": config, "device_map": {"": device}}


def is_quantized(model) -> bool:
    """Whether a model's matrices are in 8 or 4 bits."""
    return bool(getattr(model, "is_quantized", False))
