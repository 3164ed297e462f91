"""Exported files against the model that they came from, over rows of many lengths.

    >>> compare(source.model, "seq2seq", OnnxModel("exported"))
    {'encoder_states': 1.2e-06, 'first_step_logits': 1.9e-06, 'cached_step_logits': 2.1e-06, 'answers_equal': 12, ...}

Differences are the largest absolute ones, over tokens that are not padding. Greedy answers are compared token by token,
in one batch and one by one; end-of-sequence does not end them, so that every one has `NEW_TOKENS`.
"""

import numpy as np
import torch
from transformers import GenerationConfig

from t5suite.base.errors import CheckpointError
from t5suite.export.onnx_runtime import OnnxModel

# None of them is the length that was traced; beyond 128 tokens T5's distances share their last bucket.
LENGTHS = (1, 2, 9, 31, 64, 150)
NEW_TOKENS = 24
# Of the largest value compared. Float32 sums in another order differ by about 1e-6 of it.
TOLERANCE = 1e-4


def compare(model, family: str, exported: OnnxModel, lengths=LENGTHS) -> dict:
    """The largest differences between a model and its exported files, over prompts of these lengths."""
    prompts = prompts_for(model, lengths)
    with torch.no_grad():
        return COMPARISONS[family](model, exported, prompts)


def check(model, family: str, exported: OnnxModel) -> dict:
    """What `compare` finds, plus an error where it is more than rounding.

    Raises:
      CheckpointError: the files are not the model.
    """
    found = compare(model, family, exported)
    wrong = [name for name, value in found.items() if name.endswith("_relative") and not value <= TOLERANCE]
    if wrong:
        raise CheckpointError(f"the ONNX files are not the model: {', '.join(f'{n} {found[n]:.2g}' for n in wrong)}")
    return found


def prompts_for(model, lengths=LENGTHS) -> list[list[int]]:
    """Rows of tokens of these lengths, as far as the model has positions for them and an answer."""
    config = model.config.get_text_config()
    room = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or max(lengths) * 9
    lengths = [length for length in lengths if length + NEW_TOKENS <= room] or [max(1, room - NEW_TOKENS)]
    draw = np.random.default_rng(0)
    return [draw.choice(plain_tokens(model), length).tolist() for length in lengths]


def plain_tokens(model) -> list[int]:
    """All tokens but those that pad, begin or end rows."""
    names = ("pad", "eos", "bos", "decoder_start")
    special = {getattr(model.config, f"{name}_token_id", None) for name in names}
    return [token for token in range(model.config.get_text_config().vocab_size) if token not in special]


def _compare_seq2seq(model, exported: OnnxModel, prompts) -> dict:
    states_BSD, mask_BS = exported.encode(prompts)
    batch = {"input_ids": torch.as_tensor(exported.padded(prompts)[0]), "attention_mask": torch.as_tensor(mask_BS)}
    own_BSD = model.get_encoder()(**batch).last_hidden_state.numpy()
    real_BS = mask_BS.astype(bool)
    answers_BT = _answers_for(model, prompts)
    start_B1 = torch.full((len(prompts), 1), model.config.decoder_start_token_id)
    read_BT = torch.cat([start_B1, answers_BT[:, :-1]], dim=1)
    return {
        **_difference("encoder_states", states_BSD[real_BS], own_BSD[real_BS]),
        **_compare_steps(exported, prompts, answers_BT, model(**batch, decoder_input_ids=read_BT).logits.numpy()),
        **_compare_answers(model, exported, prompts, batch, 1),
    }


def _compare_causal(model, exported: OnnxModel, prompts) -> dict:
    ids_BT, mask_BT = map(torch.as_tensor, exported.padded(prompts, left=True))
    answers_BT = _answers_for(model, prompts)
    alone = []
    for prompt, answer in zip(prompts, answers_BT, strict=True):
        row_1T = torch.cat([torch.tensor(prompt), answer[:-1]])[None]
        alone.append(model(input_ids=row_1T).logits[0, len(prompt) - 1 :].numpy())
    batch = {"input_ids": ids_BT, "attention_mask": mask_BT}
    return {
        **_compare_steps(exported, prompts, answers_BT, np.stack(alone)),
        **_compare_answers(model, exported, prompts, batch, ids_BT.shape[1]),
    }


def _compare_steps(exported: OnnxModel, prompts, answers_BT, own_BTV) -> dict:
    """Logits of given answers: those of the first token, and of the others, which are made from what is kept."""
    found_BTV = exported.step_logits(prompts, answers_BT.numpy())
    return {
        **_difference("first_step_logits", found_BTV[:, 0], own_BTV[:, 0]),
        **_difference("cached_step_logits", found_BTV[:, 1:], own_BTV[:, 1:]),
    }


def _answers_for(model, prompts) -> torch.Tensor:
    """Any tokens, [B, `NEW_TOKENS`]: a model with random weights would write the same one again and again."""
    return torch.tensor(np.random.default_rng(1).choice(plain_tokens(model), (len(prompts), NEW_TOKENS)))


def _compare_encoder(model, exported: OnnxModel, prompts) -> dict:
    ids_BS, mask_BS = exported.padded(prompts)
    own = model(input_ids=torch.as_tensor(ids_BS), attention_mask=torch.as_tensor(mask_BS)).logits.numpy()
    found = exported.logits(prompts)
    if own.ndim == 3:
        found, own = found[mask_BS.astype(bool)], own[mask_BS.astype(bool)]
    return {**_difference("logits", found, own), "rows": len(prompts)}


def _compare_answers(model, exported: OnnxModel, prompts, batch, start: int) -> dict:
    """Greedy answers, all rows in one batch, and each row alone."""
    own = [ids[start:] for ids in _generate(model, batch, exported).tolist()]
    together = exported.generate(prompts, NEW_TOKENS, ends=frozenset())
    alone = [exported.generate([prompt], NEW_TOKENS, ends=frozenset())[0] for prompt in prompts]
    equal = sum(a == b for answers in (together, alone) for a, b in zip(answers, own, strict=True))
    return {"answers_equal": equal, "answers": 2 * len(own), "tokens": sum(map(len, own))}


def _generate(model, batch, exported: OnnxModel) -> torch.Tensor:
    """transformers' own greedy answers; a model's own generation settings (beams, penalties) are left aside."""
    before = model.generation_config
    plain = GenerationConfig(
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        num_beams=1,
        pad_token_id=exported.pad,
        decoder_start_token_id=model.config.decoder_start_token_id if model.config.is_encoder_decoder else None,
    )
    model.generation_config = plain
    try:
        return model.generate(**batch, generation_config=plain)
    finally:
        model.generation_config = before


def _difference(name: str, found: np.ndarray, own: np.ndarray) -> dict:
    largest = float(np.abs(found - own).max())
    return {name: largest, f"{name}_relative": largest / max(float(np.abs(own).max()), 1e-30)}


COMPARISONS = {
    "seq2seq": _compare_seq2seq,
    "causal": _compare_causal,
    "masked": _compare_encoder,
    "classification": _compare_encoder,
}
