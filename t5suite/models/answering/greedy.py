"""Whether settings of `generate` ask for nothing but greedy decoding, which `t5.greedy` does faster."""

from t5suite.models.generation_settings import UNSUPPORTED_DECODING

# Settings that do not affect greedy decoding, or are checked separately.
SETTINGS_WITHOUT_EFFECT = frozenset(
    "max_length max_new_tokens length_penalty early_stopping temperature top_k top_p typical_p min_p top_h "
    "epsilon_cutoff eta_cutoff bos_token_id eos_token_id pad_token_id decoder_start_token_id use_cache "
    "transformers_version _from_model_config output_attentions output_hidden_states num_assistant_tokens "
    "num_assistant_tokens_schedule assistant_confidence_threshold assistant_lookbehind target_lookbehind "
    "cache_implementation cache_config max_cache_len compile_config disable_compile prefill_chunk_size".split()
)
# Values of the other settings that have no effect, in addition to None; settings not listed must be None.
NEUTRAL_SETTINGS = {
    **UNSUPPORTED_DECODING,
    **dict.fromkeys("num_beams num_return_sequences repetition_penalty encoder_repetition_penalty".split(), 1),
    "length_penalty": 1,
    "early_stopping": False,
    **dict.fromkeys("min_length min_new_tokens no_repeat_ngram_size encoder_no_repeat_ngram_size".split(), 0),
    **dict.fromkeys("do_sample remove_invalid_values renormalize_logits return_dict_in_generate".split(), False),
    **dict.fromkeys("output_scores output_logits is_assistant".split(), False),
}


def decodes_greedily(model, generation_config, eos: int, start: int) -> bool:
    """Whether `generate` would decode greedily, with unprocessed logits, from the token `start` to the token `eos`.

    Settings that the call omits come from the checkpoint, as in transformers.
    """
    call_settings = generation_config.to_diff_dict()
    settings = {**model.generation_config.to_diff_dict(), **call_settings}
    for name, value in settings.items():
        if name not in SETTINGS_WITHOUT_EFFECT and value not in (None, NEUTRAL_SETTINGS.get(name)):
            return False
    if settings.get("eos_token_id") != eos or settings.get("decoder_start_token_id") != start:
        return False
    return (call_settings.get("max_new_tokens") or 0) > 0
