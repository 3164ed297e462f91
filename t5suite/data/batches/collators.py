"""Ragged ids -> padded tensors for an encoder-decoder model.

    >>> Seq2SeqCollator(pad_token_id=0, decoder_start_token_id=0)([{"input_ids": [5, 1], "labels": [9, 1]}])
    {'input_ids': [[5, 1]], 'attention_mask': [[1, 1]], 'labels': [[9, 1]], 'decoder_input_ids': [[0, 9]]}

The collator makes `decoder_input_ids` itself: our loss removes the labels from the batch before the model sees it.
Dictionaries of ids and the rows of a `TokenArrays` (returned by `__getitems__`) give the same tensors.
Shapes: B examples, S source tokens, T target tokens.
"""

from dataclasses import dataclass

import numpy as np
import torch

from t5suite.data.batches.features import Picked, TokenRows

IGNORED = -100
UNKNOWN_LABEL = -101  # the first token of a word without a known label


@dataclass(frozen=True)
class Seq2SeqCollator:
    """Pads inputs with the padding token and labels with -100; a plain object, so it can be sent to workers.

    Args:
      pad_to_multiple_of: lengths are rounded up to a multiple of this many tokens.
    """

    pad_token_id: int
    decoder_start_token_id: int
    pad_to_multiple_of: int = 1

    def __call__(self, features: list[dict] | TokenRows) -> dict[str, torch.Tensor]:
        rows = self.rows(features)
        batch = self.inputs(rows)
        if rows.labels is not None:
            labels_BT = rows.labels.padded(IGNORED, self.mask(rows.labels))
            batch["labels"] = torch.from_numpy(labels_BT)
            batch["decoder_input_ids"] = shift_right(batch["labels"], self.pad_token_id, self.decoder_start_token_id)
        return batch

    def rows(self, features) -> TokenRows:
        """The features as slices of flat arrays; without features, one row that is ignored by the loss."""
        return TokenRows.of(features or [{"input_ids": [self.pad_token_id], "labels": [IGNORED]}])

    def inputs(self, rows: TokenRows) -> dict[str, torch.Tensor]:
        """`input_ids` and `attention_mask`."""
        mask_BS = self.mask(rows.input_ids)
        ids_BS = rows.input_ids.padded(self.pad_token_id, mask_BS)
        return {"input_ids": torch.from_numpy(ids_BS), "attention_mask": torch.from_numpy(mask_BS.astype(np.int64))}

    def mask(self, picked: Picked) -> np.ndarray:
        """True where padded rows have tokens, bool [B, width]."""
        return picked.mask(self.width(int(picked.lengths_B.max(initial=1))))

    def width(self, longest: int) -> int:
        """The padded length of rows, the longest of which has this many tokens."""
        return -(-longest // self.pad_to_multiple_of) * self.pad_to_multiple_of

    def pad(self, sequences, value: int) -> torch.Tensor:
        """Sequences of ids as one tensor, padded with `value` on the right."""
        longest = max(map(len, sequences))
        width = -(-max(longest, 1) // self.pad_to_multiple_of) * self.pad_to_multiple_of
        padded = torch.full((len(sequences), width), value, dtype=torch.long)
        for row, sequence in enumerate(sequences):
            padded[row, : len(sequence)] = torch.as_tensor(sequence, dtype=torch.long)
        return padded


def shift_right(labels_BT: torch.Tensor, pad_token_id: int, decoder_start_token_id: int) -> torch.Tensor:
    """The decoder's inputs: the start token, then the labels without the last one; -100 becomes padding.

    >>> shift_right(torch.tensor([[9, 1, -100]]), 0, 0)
    tensor([[0, 9, 1]])
    """
    shifted_BT = labels_BT.new_full(labels_BT.shape, decoder_start_token_id)
    shifted_BT[:, 1:] = labels_BT[:, :-1]
    return shifted_BT.masked_fill(shifted_BT == IGNORED, pad_token_id)


# ---------------------------------------------------------------------------------------------------------------------
# Ragged ids -> padded tensors for models other than encoder-decoders: prompt and answer in one row; segments.
#
# A label is at the position of the token that predicts it, as our loss expects; the model never sees labels. Shapes: B
# examples, T tokens.


@dataclass(frozen=True)
class CausalCollator(Seq2SeqCollator):
    """Prompt and answer in one row, padded on the right; only the answer has labels.

    The answer's first token is predicted by the prompt's last one. Without a prompt nothing predicts it, and it
    has no label.
    """

    decoder_start_token_id: int | None = None

    def __call__(self, features: list[dict] | TokenRows) -> dict[str, torch.Tensor]:
        rows = self.rows(features)
        prompt = rows.input_ids
        answer = rows.labels
        prompts_B1 = prompt.lengths_B[:, None]
        both_B1 = prompts_B1 + answer.lengths_B[:, None]
        read_B1 = np.where(both_B1 > 1, both_B1 - 1, both_B1)  # the last token is predicted, not read
        columns_T = np.arange(self.width(int(read_B1.max(initial=1))))
        mask_BT = columns_T < read_B1
        ids_BT = np.where(columns_T < prompts_B1, prompt.at(columns_T), answer.at(columns_T - prompts_B1))
        answered_BT = (columns_T >= prompts_B1 - 1) & (columns_T < both_B1 - 1)
        labels_BT = np.where(answered_BT, answer.at(columns_T + 1 - prompts_B1), np.int64(IGNORED))
        return {
            "input_ids": torch.from_numpy(np.where(mask_BT, ids_BT, np.int64(self.pad_token_id))),
            "attention_mask": torch.from_numpy(mask_BT.astype(np.int64)),
            "labels": torch.from_numpy(labels_BT),
        }

    def pad_left(self, sequences, value: int) -> torch.Tensor:
        """Sequences as one tensor, padded with `value` on the left."""
        return self.pad([np.asarray(sequence)[::-1].copy() for sequence in sequences], value).flip(1)


def joined(prompt, answer) -> tuple[np.ndarray, np.ndarray]:
    """One row's `(input_ids, labels)`: all tokens but the last, and for each the next token if it is in the answer.

    >>> joined([5, 6], [9, 1])
    (array([5, 6, 9]), array([-100,    9,    1]))
    """
    ids = np.concatenate([prompt, answer]).astype(np.int64)
    if len(ids) < 2:
        return ids, np.full(len(ids), IGNORED)
    labels = ids[1:].copy()
    labels[: max(len(prompt) - 1, 0)] = IGNORED
    return ids[:-1], labels


@dataclass(frozen=True)
class SegmentCollator(Seq2SeqCollator):
    """Segments padded on the right, with one label per row, a class (int64) or a number (float32), or one per token.

    >>> SegmentCollator(0)([{"input_ids": [2, 7, 3], "labels": [1], "token_type_ids": [0, 0, 0]}])
    {'input_ids': [[2, 7, 3]], 'attention_mask': [[1, 1, 1]], 'token_type_ids': [[0, 0, 0]], 'labels': [1]}
    """

    decoder_start_token_id: int | None = None

    def __call__(self, features: list[dict] | TokenRows) -> dict[str, torch.Tensor]:
        rows = self.rows(features)
        batch = self.inputs(rows)
        if rows.token_type_ids is not None:
            types_BT = rows.token_type_ids.padded(0, self.mask(rows.input_ids))
            batch["token_type_ids"] = torch.from_numpy(types_BT)
        lengths_B = rows.labels.lengths_B
        if lengths_B.max() > 1:  # one per token; a word without a known label counts as unlabelled
            labels = rows.labels.padded(IGNORED, self.mask(rows.input_ids))
            labels = torch.from_numpy(np.where(labels == UNKNOWN_LABEL, IGNORED, labels))
        else:
            labels = torch.from_numpy(rows.labels.first())
        return {**batch, "labels": labels if labels.is_floating_point() else labels.long()}
