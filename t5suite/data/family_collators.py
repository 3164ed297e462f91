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
from t5suite.data.features import TokenArrays, TokenRows


@dataclass(frozen=True)
class CausalCollator(Seq2SeqCollator):
    """Prompt and answer in one row, padded on the right; only the answer has labels.

    The answer's first token is predicted by the prompt's last one. Without any prompt it is predicted by nothing, and
    has no label.
    """

    decoder_start_token_id: int | None = None

    def __call__(self, features: list[dict] | TokenRows) -> dict[str, torch.Tensor]:
        rows = self.rows(features)
        prompt, answer = rows.input_ids, rows.labels
        prompts_B1, both_B1 = prompt.lengths_B[:, None], (prompt.lengths_B + answer.lengths_B)[:, None]
        kept_B1 = np.where(both_B1 > 1, both_B1 - 1, both_B1)  # the last token is predicted, not read
        columns_T = np.arange(self.width(int(kept_B1.max(initial=1)), self.widths))
        mask_BT = columns_T < kept_B1
        ids_BT = np.where(columns_T < prompts_B1, prompt.at(columns_T), answer.at(columns_T - prompts_B1))
        answered_BT = (columns_T >= prompts_B1 - 1) & (columns_T < both_B1 - 1)
        labels_BT = np.where(answered_BT, answer.at(columns_T + 1 - prompts_B1), np.int64(IGNORED))
        return self.filled(
            {
                "input_ids": torch.from_numpy(np.where(mask_BT, ids_BT, np.int64(self.pad_token_id))),
                "attention_mask": torch.from_numpy(mask_BT.astype(np.int64)),
                "labels": torch.from_numpy(labels_BT),
            }
        )

    def lengths_of(self, features: TokenArrays) -> tuple[np.ndarray, None]:
        """Prompt and answer are one row, less the last token."""
        return np.maximum(features.input_ids.lengths + features.labels.lengths - 1, 1), None

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

    def __call__(self, features: list[dict] | TokenRows) -> dict[str, torch.Tensor]:
        rows = self.rows(features)
        batch = self.inputs(rows)
        if rows.token_type_ids is not None:
            types_BT = rows.token_type_ids.padded(0, self.mask(rows.input_ids, self.widths))
            batch["token_type_ids"] = torch.from_numpy(types_BT)
        labels_B = torch.from_numpy(rows.labels.first())
        return self.filled({**batch, "labels": labels_B if labels_B.is_floating_point() else labels_B.long()})

    def lengths_of(self, features: TokenArrays) -> tuple[np.ndarray, None]:
        """A row has one label."""
        return features.input_ids.lengths, None


# By the names of `t5suite.models.families.FAMILIES` (a test keeps the two equal).
COLLATORS = {
    "seq2seq": Seq2SeqCollator,
    "causal": CausalCollator,
    "masked": SegmentCollator,
}
