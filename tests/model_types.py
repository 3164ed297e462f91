"""The documented model types, a tiny configuration for each, and its tokenizer where it is not the bundled one."""

import json
import tempfile
from pathlib import Path
from typing import NamedTuple

from tokenizer_folders import bart_tokenizer
from transformers import ByT5Tokenizer

from t5suite.testing import bundled_model


class ModelType(NamedTuple):
    """A row of a table of docs/models.md.

    Attributes:
      family: seq2seq, causal, masked or encoder.
      cells: what the table says, by the headings of its columns.
    """

    family: str
    model_type: str
    cells: dict[str, str]

    def can(self, work: str) -> bool:
        return self.cells[work] == "yes"


def documented_types() -> dict[str, ModelType]:
    """The rows of the tables of docs/models.md, by name, with what the line above a table says of all its rows.

    >>> documented_types()["NLLB"].model_type, documented_types()["NLLB"].can("ONNX")
    ('m2m_100', False)
    """
    types = {}
    page = (Path(__file__).parent.parent / "docs" / "models.md").read_text(encoding="utf-8")
    for part in page.split("<!-- made by docs/builders/models_page.py: ")[1:]:
        family = part.partition(" ")[0]
        lines = part.partition("<!-- end -->")[0].splitlines()
        (line,) = [line for line in lines if line.startswith("All of them: ")]
        shared = {}
        for heads, _, cell in (text.rpartition(": ") for text in line[len("All of them: ") : -1].split("; ")):
            shared |= dict.fromkeys(heads.split(", "), cell)
        headings, _, *rows = [line for line in lines if line.startswith("|")]
        for row in rows:
            cells = shared | dict(zip(_cells(headings), _cells(row), strict=True))
            types[cells["model"]] = ModelType(family, cells["type"].strip("`"), cells)
    return types


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


MODEL_TYPES = documented_types()
_WIDTH = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
_DECODER = {**_WIDTH, "num_key_value_heads": 2, "vocab_size": 1152}
_GEMMA = {**_DECODER, "head_dim": 16}
_T5 = {
    "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2, "vocab_size": 1152,
    "decoder_start_token_id": 0,
}  # fmt: skip
_V1_1 = {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1, "decoder_start_token_id": 0}
_BART = {
    **_TOKENS, "vocab_size": 1152, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 128,
    "forced_eos_token_id": None,
}  # fmt: skip
_BERT = {**_WIDTH, "vocab_size": 1152}
_VISION = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}

SETTINGS = {
    "T5": _T5,
    "T5 v1.1": _V1_1,
    "FLAN-T5": _V1_1,
    "ByT5": {**_V1_1, "vocab_size": 384},
    "CodeT5+": _T5,
    "mT5": _T5,
    "umT5": _T5,
    "LongT5, local": {**_T5, "encoder_attention_type": "local", "local_radius": 7},
    "LongT5, global": {**_T5, "encoder_attention_type": "transient-global", "local_radius": 7, "global_block_size": 4},
    "Switch": {
        **_T5, "num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "expert_capacity": 64,
    },
    "T5Gemma": {"encoder": _GEMMA, "decoder": _GEMMA, "vocab_size": 1152},
    "T5Gemma 2": {
        "encoder": {"text_config": _GEMMA, "vision_config": _VISION, "mm_tokens_per_image": 4},
        "decoder": _GEMMA,
        "vocab_size": 1152,
    },
    **dict.fromkeys(("BART", "mBART", "Pegasus", "Marian", "M2M100", "NLLB", "Blenderbot"), _BART),
    "NLLB-MoE": {
        **_BART, "num_experts": 4, "encoder_sparse_step": 2, "decoder_sparse_step": 2, "expert_capacity": 64,
        "moe_eval_capacity_token_fraction": -1.0,
    },
    "ProphetNet": {
        **_TOKENS, "vocab_size": 1152, "hidden_size": 32, "num_encoder_layers": 1, "num_decoder_layers": 1,
        "num_encoder_attention_heads": 2, "num_decoder_attention_heads": 2, "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32, "max_position_embeddings": 128,
    },
    "LED": {
        **{key: value for key, value in _BART.items() if key != "max_position_embeddings"}, "attention_window": [8, 8],
        "max_encoder_position_embeddings": 128, "max_decoder_position_embeddings": 128,
    },
    "GPT-2": {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 128, "vocab_size": 1152},
    "OPT": {
        "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 32, "word_embed_proj_dim": 32,
        "max_position_embeddings": 128, "vocab_size": 1152,
    },
    "BLOOM": {"hidden_size": 32, "n_layer": 1, "n_head": 2, "vocab_size": 1152},
    "GPT-NeoX": _BERT,
    "Llama": _DECODER,
    "Gemma 3": _GEMMA,
    "Mixtral": {**_DECODER, "num_local_experts": 4, "num_experts_per_tok": 2},
    "OLMoE": {**_DECODER, **_EXPERTS},
    "Qwen3 MoE": {**_GEMMA, **_EXPERTS, "moe_intermediate_size": 32, "decoder_sparse_step": 1},
    "DeepSeek V3": {
        **_BERT, "num_key_value_heads": 2, "moe_intermediate_size": 16, "n_routed_experts": 4, "n_group": 1,
        "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16,
        "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "n_shared_experts": 1,
    },
    "Granite MoE": {**_DECODER, "num_local_experts": 4, "num_experts_per_tok": 2},
    **dict.fromkeys(("BERT", "RoFormer", "ModernBERT", "NomicBERT", "GTE"), _BERT),
    **{key: {**_BERT, "pad_token_id": 0} for key in ("RoBERTa", "RoBERTa, norms first")},
    "BigBird": {**_BERT, "block_size": 8, "num_random_blocks": 1, "attention_type": "original_full"},
    "DistilBERT": {
        "dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 128, "vocab_size": 1152,
    },
}  # fmt: skip
SETTINGS |= {
    f"{name}'s encoder": SETTINGS[{"LongT5": "LongT5, local"}.get(name, name)]
    for name in ("T5", "ByT5", "mT5", "umT5", "LongT5", "T5Gemma")
}


def tokenizer_of(name: str) -> str:
    """The folder of a row's tokenizer: bytes for ByT5, a byte-level BPE between <s> and </s> for CodeT5+."""
    if name.startswith("ByT5"):
        folder = tempfile.mkdtemp()
        ByT5Tokenizer().save_pretrained(folder)
        return folder
    return bart_tokenizer() if name == "CodeT5+" else bundled_model()


def configured(name: str, **changes) -> str:
    """A folder with a config.json and nothing else.

    >>> configured("Mixtral", num_hidden_layers=1)
    """
    folder = Path(tempfile.mkdtemp())
    settings = {"model_type": MODEL_TYPES[name].model_type, **SETTINGS[name], **changes}
    (folder / "config.json").write_text(json.dumps(settings))
    return str(folder)
