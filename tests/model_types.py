"""Tiny configurations of model types, as their config.json says it; `configured(type)` is a folder with one."""

import json
import tempfile
from pathlib import Path

_WIDTH = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
_DECODER = {**_WIDTH, "num_key_value_heads": 2, "vocab_size": 1152}
_GEMMA = {**_DECODER, "head_dim": 16}
_T5 = {
    "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2, "vocab_size": 1152,
    "decoder_start_token_id": 0,
}  # fmt: skip
_BART = {
    "vocab_size": 1152, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 128,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": None,
}  # fmt: skip
_BERT = {**_WIDTH, "vocab_size": 1152}
_VISION = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip

TYPES = {
    "t5": _T5,
    "t5gemma": {"encoder": _GEMMA, "decoder": _GEMMA, "vocab_size": 1152},
    "t5gemma2": {
        "encoder": {"text_config": _GEMMA, "vision_config": _VISION, "mm_tokens_per_image": 4},
        "decoder": _GEMMA,
        "vocab_size": 1152,
    },
    "bart": _BART,
    "m2m_100": _BART,
    "switch_transformers": {
        **_T5, "num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "expert_capacity": 64,
    },
    "nllb-moe": {
        **_BART, "num_experts": 4, "encoder_sparse_step": 2, "decoder_sparse_step": 2, "expert_capacity": 64,
        "moe_eval_capacity_token_fraction": -1.0,
    },
    "gpt_neox": _BERT,
    "mixtral": {**_DECODER, "num_local_experts": 4, "num_experts_per_tok": 2},
    "olmoe": {**_DECODER, "num_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {
        **_DECODER, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "decoder_sparse_step": 1,
    },
    "deepseek_v3": {
        **_BERT, "num_key_value_heads": 2, "moe_intermediate_size": 16, "n_routed_experts": 4, "n_group": 1,
        "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16,
        "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "n_shared_experts": 1,
    },
    "gemma3_text": _GEMMA,
    "granitemoe": {**_DECODER, "num_local_experts": 4, "num_experts_per_tok": 2},
    "bert": _BERT,
    "nomic_bert": _BERT,
    "gte": _BERT,
    "modernbert": _BERT,
    "big_bird": {**_BERT, "block_size": 8, "num_random_blocks": 1, "attention_type": "original_full"},
}  # fmt: skip


def configured(model_type: str, **changes) -> str:
    """A folder with a config.json and nothing else.

    >>> configured("mixtral", num_hidden_layers=1)
    """
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, **TYPES[model_type], **changes}))
    return str(folder)
