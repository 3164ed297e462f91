"""Ragged ids -> padded tensors for models that are no encoder-decoders: prompt and answer in one row; segments.

    >>> CausalCollator(pad_token_id=0)([{"input_ids": [5, 6], "labels": [9, 1]}])
    {'input_ids': [[5, 6, 9]], 'attention_mask': [[1, 1, 1]], 'labels': [[-100, 9, 1]]}

Labels stand below the token that predicts them, as our loss takes them; the model never sees them. Shapes: B examples,
T tokens.
"""

from dataclasses import dataclass

import numpy as np
import torch

from t5suite.data.collators import IGNORED, Seq2SeqCollator


@dataclass(frozen=True)
class CausalCollator(Seq2SeqCollator):
    """Prompt and answer in one row, padded on the right; only the answer has labels.

    The answer's first token is predicted by the prompt's last one. Without any prompt it is predicted by nothing, and
    has no label.
    """

    decoder_start_token_id: int | None = None

    def __call__(self, features: list[dict]) -> dict[str, torch.Tensor]:
        features = features or [{"input_ids": [self.pad_token_id], "labels": [IGNORED]}]
        rows = [joined(feature["input_ids"], feature["labels"]) for feature in features]
        return {
            "input_ids": self.pad([inputs for inputs, _ in rows], self.pad_token_id),
            "attention_mask": self.pad([np.ones(len(inputs), np.int64) for inputs, _ in rows], 0),
            "labels": self.pad([labels for _, labels in rows], IGNORED),
        }

    def pad_left(self, sequences, value: int) -> torch.Tensor:
        """Sequences as one tensor, filled up with `value` on the left."""
        return self.pad([np.asarray(sequence)[::-1].copy() for sequence in sequences], value).flip(1)


def joined(prompt, answer) -> tuple[np.ndarray, np.ndarray]:
    """One row's `(input_ids, labels)`: all tokens but the last, and below each the one that follows it, if answered.

    >>> joined([5, 6], [9, 1])
    (array([5, 6, 9]), array([-100,    9,    1]))
    """
    whole = np.concatenate([prompt, answer]).astype(np.int64)
    labels = whole[1:].copy()
    labels[: max(len(prompt) - 1, 0)] = IGNORED
    if not len(labels):
        return whole, np.full(len(whole), IGNORED)
    return whole[:-1], labels


@dataclass(frozen=True)
class SegmentCollator(Seq2SeqCollator):
    """Segments padded on the right, and one label a row: a class (int64), or a number (float32).

    >>> SegmentCollator(0)([{"input_ids": [2, 7, 3], "labels": [1], "token_type_ids": [0, 0, 0]}])
    {'input_ids': [[2, 7, 3]], 'attention_mask': [[1, 1, 1]], 'token_type_ids': [[0, 0, 0]], 'labels': [1]}
    """

    decoder_start_token_id: int | None = None

    def __call__(self, features: list[dict]) -> dict[str, torch.Tensor]:
        features = features or [{"input_ids": [self.pad_token_id], "labels": [IGNORED]}]
        batch = {
            "input_ids": self.pad([feature["input_ids"] for feature in features], self.pad_token_id),
            "attention_mask": self.pad([[1] * len(feature["input_ids"]) for feature in features], 0),
        }
        if features[0].get("token_type_ids") is not None:
            batch["token_type_ids"] = self.pad([feature["token_type_ids"] for feature in features], 0)
        labels_B = torch.as_tensor(np.array([feature["labels"][0] for feature in features]))
        return {**batch, "labels": labels_B if labels_B.is_floating_point() else labels_B.long()}


# By the names of `t5suite.models.families.FAMILIES` (a test keeps the two equal).
COLLATORS = {
    "seq2seq": Seq2SeqCollator,
    "causal": CausalCollator,
    "masked": SegmentCollator,
}
