"""Trained matrices in 8 or 4 bits, below an adapter (`--load_in_8bit`, `--load_in_4bit`): bitsandbytes.

>>> quantization_options("8bit", "t5-base", scratch=False)
{'quantization_config': BitsAndBytesConfig {...}, 'device_map': {'': 'cpu'}}
"""

import importlib.util

import torch

from t5suite.base.errors import ConfigError


def quantization_kind(load_in_8bit: bool, load_in_4bit: bool) -> str | None:
    """The kind that the two flags name; None without a flag.

    >>> quantization_kind(False, True)
    '4bit'

    Raises:
      ConfigError: both; bitsandbytes is not installed.
    """
    if not (load_in_8bit or load_in_4bit):
        return None
    if load_in_8bit and load_in_4bit:
        raise ConfigError("--load_in_8bit and --load_in_4bit: give one of them")
    kind = "4bit" if load_in_4bit else "8bit"
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError(
            f"--load_in_{kind} needs bitsandbytes, which is not installed: pip install 't5suite[quantization]'"
        )
    return kind


def quantization_options(kind: str | None, name: str | None, scratch: bool) -> dict:
    """The options of `from_pretrained`; none without a kind.

    Args:
      name: what the weights are loaded from.
      scratch: whether they are random instead.

    Raises:
      ConfigError: weights that are random.
    """
    if kind is None:
        return {}
    if scratch or name is None:
        raise ConfigError(
            f"--load_in_{kind} is for trained weights below an adapter; these would be random: leave "
            f"it out, or give --model_name_or_path alone"
        )
    from accelerate import PartialState
    from transformers import BitsAndBytesConfig

    # The device of the training arguments, which accelerate keeps for the process: --use_cpu counts.
    uses_gpu = PartialState().device.type == "cuda"
    if kind == "8bit":
        config = BitsAndBytesConfig(load_in_8bit=True)
    else:
        has_bfloat16 = uses_gpu and torch.cuda.is_bf16_supported(including_emulation=False)
        compute_dtype = torch.bfloat16 if has_bfloat16 else torch.float32
        config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=compute_dtype)
    device = torch.cuda.current_device() if uses_gpu else "cpu"
    return {"quantization_config": config, "device_map": {"": device}}


def is_quantized(model) -> bool:
    """Whether a model's matrices are in 8 or 4 bits."""
    return bool(getattr(model, "is_quantized", False))
