"""Compares CTranslate2 files with the model that they were written from.

>>> compare_ctranslate2(source.model, source.tokenizer, "exported")
{'score_difference': 4.8e-06, 'score_difference_relative': 1.2e-07, 'greedy_equal': 6, 'beams_equal': 6, 'prompts': 6}
"""

import numpy as np
import torch
from transformers import GenerationConfig

from t5suite.base.errors import CheckpointError
from t5suite.export.ctranslate2_files import require_ctranslate2
from t5suite.models.answering.call_settings import generating_by

# Of the largest log-probability compared: rounding (float32) grows with it, as in large models.
TOLERANCE = 1e-4
PROMPT_LENGTHS = (1, 3, 7, 16, 29, 50)
ANSWER_LENGTH = 4
NEW_TOKENS = 8
BEAMS = 4


def check_ctranslate2(model, tokenizer, folder) -> dict:
    """The result of `compare_ctranslate2`.

    Raises:
      CheckpointError: the differences exceed rounding.
    """
    comparison = compare_ctranslate2(model, tokenizer, folder)
    if not comparison["score_difference_relative"] <= TOLERANCE:
        difference = comparison["score_difference"]
        raise CheckpointError(f"the files differ from the model: an answer's score differs by {difference:.3g} nats")
    return comparison


@torch.no_grad()
def compare_ctranslate2(model, tokenizer, folder) -> dict:
    """The largest difference of a random answer's log-probability, and how many written answers are equal.

    Written answers have at most eight tokens: greedy, and the best of four beams; each side uses its own search.
    """
    translator = require_ctranslate2().Translator(str(folder), compute_type="default")
    prompts, answers = _random_texts(tokenizer)
    prompt_pieces = [tokenizer.convert_ids_to_tokens(ids) for ids in prompts]
    answer_pieces = [tokenizer.convert_ids_to_tokens(ids) for ids in answers]
    scores_of_files = [sum(result.log_probs) for result in translator.score_batch(prompt_pieces, answer_pieces)]
    scores_of_model = [
        _score(model, tokenizer, prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)
    ]
    counts = {}
    for name, num_beams in (("greedy_equal", 1), ("beams_equal", BEAMS)):
        counts[name] = 0
        for prompt, pieces in zip(prompts, prompt_pieces, strict=True):
            results = translator.translate_batch(
                [pieces], beam_size=num_beams, max_decoding_length=NEW_TOKENS, min_decoding_length=0
            )
            answer_of_files = tokenizer.convert_tokens_to_ids(results[0].hypotheses[0])
            counts[name] += answer_of_files == _written_answer(model, tokenizer, prompt, num_beams)
    largest = float(np.abs(np.subtract(scores_of_files, scores_of_model)).max())
    relative = largest / float(np.abs(scores_of_model).max())
    return {"score_difference": largest, "score_difference_relative": relative, **counts, "prompts": len(prompts)}


def _random_texts(tokenizer) -> tuple[list[list[int]], list[list[int]]]:
    """`(prompts, answers)` of random ordinary tokens, as ids."""
    rng = np.random.default_rng(0)
    special_ids = set(tokenizer.all_special_ids)
    ordinary_ids = [token for token in range(len(tokenizer)) if token not in special_ids]
    prompts = [[*rng.choice(ordinary_ids, length).tolist(), tokenizer.eos_token_id] for length in PROMPT_LENGTHS]
    answers = [rng.choice(ordinary_ids, ANSWER_LENGTH).tolist() for _ in prompts]
    return prompts, answers


def _score(model, tokenizer, prompt: list[int], answer: list[int]) -> float:
    """The model's log-probability of an answer with its end, in nats."""
    decoder_ids = torch.tensor([[model.config.decoder_start_token_id, *answer]])
    log_probs_TV = model(input_ids=torch.tensor([prompt]), decoder_input_ids=decoder_ids).logits[0].log_softmax(-1)
    targets_T1 = torch.tensor([*answer, tokenizer.eos_token_id])[:, None]
    return float(log_probs_TV.gather(1, targets_T1).sum())


def _written_answer(model, tokenizer, prompt: list[int], num_beams: int) -> list[int]:
    """The model's answer to a prompt, without its end."""
    settings = GenerationConfig(
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        num_beams=num_beams,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=model.config.decoder_start_token_id,
    )
    inputs = torch.tensor([prompt])
    with generating_by(model, settings):
        answer = model.generate(input_ids=inputs, generation_config=settings)[0, 1:].tolist()
    return answer[: answer.index(tokenizer.eos_token_id)] if tokenizer.eos_token_id in answer else answer
