"""Models in a folder of ONNX or CTranslate2 files: written token ids, and log-probabilities of answers.

>>> files = OnnxFiles("onnx", use_cpu=True)
>>> files.log_probabilities([(prompt_ids, answer_ids)])
[-0.21]
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.special import log_softmax

from t5suite.base.errors import ConfigError
from t5suite.base.model_files import GENERATION_FILE, table_or_empty
from t5suite.export.onnx_runtime import OnnxModel, require_onnx

CPU_PROVIDER, CUDA_PROVIDER = "CPUExecutionProvider", "CUDAExecutionProvider"


class OnnxFiles:
    """Log-probabilities and greedy answers from a folder of ONNX files.

    Attributes:
      ends: the tokens that end an answer, besides the tokenizer's: the model's configuration may name several.
    """

    def __init__(self, folder, use_cpu: bool):
        require_onnx("onnxruntime")
        import onnxruntime

        available = onnxruntime.get_available_providers()
        providers = [CPU_PROVIDER] if use_cpu else [CUDA_PROVIDER, CPU_PROVIDER]
        self.model = OnnxModel(folder, providers=[name for name in providers if name in available])
        self.family = self.model.family
        self.ends = self.model.eos

    def write(self, prompts, max_new_tokens: int, eos: int, num_beams: int, length_penalty: float) -> list[list[int]]:
        """Token ids, with the end token if the model wrote it."""
        return self.model.generate(prompts, max_new_tokens, ends=self.ends | {eos})

    def log_probabilities(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[float]:
        """Log-probabilities of answers after their prompts, for `(prompt's ids, answer's ids)`."""
        log_probabilities = [0.0] * len(pairs)
        for length in {len(answer) for _, answer in pairs}:
            places = [place for place, (_, answer) in enumerate(pairs) if len(answer) == length]
            prompts = [pairs[place][0] for place in places]
            answers_BT = np.array([pairs[place][1] for place in places])
            log_p_BTV = log_softmax(self.model.step_logits(prompts, answers_BT), axis=-1)
            sums_B = np.take_along_axis(log_p_BTV, answers_BT[:, :, None], axis=2)[:, :, 0].sum(1)
            for place, total in zip(places, sums_B.tolist(), strict=True):
                log_probabilities[place] = total
        return log_probabilities


class CTranslate2Files:
    """Log-probabilities and answers from a folder of CTranslate2 files; only T5 types are exported to them.

    Attributes:
      ends: as of `OnnxFiles`.
    """

    def __init__(self, folder, tokenizer, use_cpu: bool):
        try:
            import ctranslate2
        except ImportError as error:
            raise ConfigError(f"{folder}: CTranslate2 files: {error}; pip install 't5suite[ctranslate2]'") from None
        self.model = ctranslate2.Translator(str(folder), device="cpu" if use_cpu else "auto", compute_type="default")
        self.tokenizer = tokenizer
        ends = table_or_empty(Path(folder) / GENERATION_FILE).get("eos_token_id")
        self.ends = frozenset(ends if isinstance(ends, list) else [ends]) - {None}

    def write(self, prompts, max_new_tokens: int, eos: int, num_beams: int, length_penalty: float) -> list[list[int]]:
        """Token ids, with the end token if the model wrote it."""
        translations = self.model.translate_batch(
            [self._tokens(prompt) for prompt in prompts],
            beam_size=num_beams,
            end_token=sorted(self.ends | {eos}),
            return_end_token=True,
            max_decoding_length=max_new_tokens,
            min_decoding_length=0,  # 1 by default, with which no answer is empty
            max_input_length=0,
            length_penalty=length_penalty,
        )
        return [self.tokenizer.convert_tokens_to_ids(translation.hypotheses[0]) for translation in translations]

    def log_probabilities(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[float]:
        """Log-probabilities of answers, with their end token, after their prompts."""
        prompts = [self._tokens(prompt) for prompt, _ in pairs]
        # `score_batch` appends the end token itself.
        answers = [self._tokens(answer)[:-1] for _, answer in pairs]
        scores = self.model.score_batch(prompts, answers, max_input_length=0)
        return [math.fsum(score.log_probs) for score in scores]

    def _tokens(self, ids) -> list[str]:
        return self.tokenizer.convert_ids_to_tokens([int(token_id) for token_id in ids])
