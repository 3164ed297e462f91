"""Compares ONNX files with the model that they were written from.

    >>> compare_onnx(source.model, OnnxModel("exported"))
    {'first_step_logits': 1.9e-06, 'cached_step_logits': 2.1e-06, 'answers_equal': 12, ...}

The model answers one prompt at a time, the files all prompts at once, padded. Shapes: B rows, T target tokens, V
vocabulary.
"""

import numpy as np
import torch
from transformers import GenerationConfig

from t5suite.base.errors import CheckpointError
from t5suite.export.onnx_runtime import OnnxModel
from t5suite.models.answering.call_settings import generating_by

# None of these is the traced length; beyond 128 tokens T5's distances share their last bucket.
LENGTHS = (1, 2, 9, 31, 64, 150)
NEW_TOKENS = 24
# Of the largest value compared. Float32 sums in another order differ by about 1e-6 of it.
TOLERANCE = 1e-4


def check_onnx(model, exported: OnnxModel) -> dict:
    """The result of `compare_onnx`.

    Raises:
      CheckpointError: the differences exceed rounding.
    """
    comparison = compare_onnx(model, exported)
    too_large = {}
    for name, value in comparison.items():
        if name.endswith("_relative") and not value <= TOLERANCE:
            too_large[name] = value
    if too_large:
        differences = ", ".join(f"{name} {value:.2g}" for name, value in too_large.items())
        raise CheckpointError(f"ONNX files differ from the model: {differences}")
    return comparison


@torch.no_grad()
def compare_onnx(model, exported: OnnxModel, lengths=LENGTHS) -> dict:
    """The largest differences between a model, on one prompt at a time, and its files, on all prompts padded.

    Differences are absolute, and relative to the largest value. For models that write: the logits of random answers
    (the first token's, and those made with a cache), and how many greedy answers are equal token by token, in one batch
    and one by one; end-of-sequence does not end them, so that each has `NEW_TOKENS`.
    """
    rng = np.random.default_rng(0)
    token_ids = ordinary_ids(model.config)
    prompts = [rng.choice(token_ids, length).tolist() for length in _lengths_with_room(model.config, lengths)]
    if exported.family == "encoder":
        return _compare_encoder(model, exported, prompts)
    # Random tokens: a model with random weights would repeat one token.
    answers_BT = rng.choice(token_ids, (len(prompts), NEW_TOKENS))
    logits_of_model_BTV = _logits_of_answers(model, exported.family, prompts, answers_BT.tolist())
    logits_of_files_BTV = exported.step_logits(prompts, answers_BT)
    answers_of_model = _greedy_answers(model, exported, prompts)
    answers_in_a_batch = exported.generate(prompts, NEW_TOKENS, ends=frozenset())
    answers_one_by_one = [exported.generate([prompt], NEW_TOKENS, ends=frozenset())[0] for prompt in prompts]
    pairs = zip([*answers_in_a_batch, *answers_one_by_one], answers_of_model * 2, strict=True)
    return {
        **_difference("first_step_logits", logits_of_files_BTV[:, 0], logits_of_model_BTV[:, 0]),
        **_difference("cached_step_logits", logits_of_files_BTV[:, 1:], logits_of_model_BTV[:, 1:]),
        "answers_equal": sum(of_files == of_model for of_files, of_model in pairs),
        "answers": 2 * len(prompts),
        "tokens": sum(map(len, answers_of_model)),
    }


def _lengths_with_room(config, lengths) -> list[int]:
    """The lengths of prompts that leave room for an answer; at least one."""
    config = config.get_text_config()
    num_positions = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if not num_positions:
        return list(lengths)
    with_room = [length for length in lengths if length + NEW_TOKENS <= num_positions]
    return with_room or [max(1, num_positions - NEW_TOKENS)]


def ordinary_ids(config) -> list[int]:
    """The ids without those that begin, end or pad."""
    special_ids = set()
    for name in ("pad", "eos", "bos", "decoder_start"):
        ids = getattr(config, f"{name}_token_id", None)
        special_ids.update(ids if isinstance(ids, list) else [ids])  # a model may have several end tokens
    return [token for token in range(config.get_text_config().vocab_size) if token not in special_ids]


def _compare_encoder(model, exported: OnnxModel, prompts: list[list[int]]) -> dict:
    """The largest difference of the logits of an encoder with a head."""
    logits_of_model = [model(input_ids=torch.tensor([prompt])).logits[0].numpy() for prompt in prompts]
    logits_of_files = exported.logits(prompts)
    if logits_of_files.ndim == 3:  # of every token: without those of the padding
        logits_of_files = [logits[: len(prompt)] for logits, prompt in zip(logits_of_files, prompts, strict=True)]
    difference = _difference("logits", np.concatenate(logits_of_files), np.concatenate(logits_of_model))
    return {**difference, "rows": len(prompts)}


def _logits_of_answers(model, family: str, prompts: list[list[int]], answers: list[list[int]]) -> np.ndarray:
    """The model's logits for each token of the answers, [B, T, V]."""
    logits_of_answers = []
    for prompt, answer in zip(prompts, answers, strict=True):
        read_tokens = answer[:-1]  # the last one is only predicted
        if family == "seq2seq":
            decoder_ids = torch.tensor([[model.config.decoder_start_token_id, *read_tokens]])
            logits_TV = model(input_ids=torch.tensor([prompt]), decoder_input_ids=decoder_ids).logits[0]
        else:
            logits_TV = model(input_ids=torch.tensor([[*prompt, *read_tokens]])).logits[0, len(prompt) - 1 :]
        logits_of_answers.append(logits_TV.numpy())
    return np.stack(logits_of_answers)


def _greedy_answers(model, exported: OnnxModel, prompts: list[list[int]]) -> list[list[int]]:
    """The model's answers to the prompts, one by one, NEW_TOKENS long."""
    settings = GenerationConfig(
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        num_beams=1,
        pad_token_id=exported.pad,
        decoder_start_token_id=model.config.decoder_start_token_id if exported.family == "seq2seq" else None,
    )
    answers = []
    with generating_by(model, settings):
        for prompt in prompts:
            tokens = model.generate(input_ids=torch.tensor([prompt]), generation_config=settings)[0].tolist()
            answers.append(tokens[-NEW_TOKENS:])
    return answers


def _difference(name: str, of_files: np.ndarray, of_model: np.ndarray) -> dict:
    largest = float(np.abs(of_files - of_model).max())
    return {name: largest, f"{name}_relative": largest / max(float(np.abs(of_model).max()), 1e-30)}
