"""Ragged ids -> padded tensors for an encoder-decoder model.

    >>> Seq2SeqCollator(pad_token_id=0, decoder_start_token_id=0)([{"input_ids": [5, 1], "labels": [9, 1]}])
    {'input_ids': [[5, 1]], 'attention_mask': [[1, 1]], 'labels': [[9, 1]], 'decoder_input_ids': [[0, 9]]}

The collator makes `decoder_input_ids` itself: our loss takes the labels out of the batch before the model sees it.
Dictionaries of ids and the rows of a `TokenArrays` (what its `__getitems__` gives) become the same tensors.
Shapes: B examples, S source tokens, T target tokens.
"""

from dataclasses import dataclass

import numpy as np
import torch

from t5suite.data.features import Picked, TokenRows

IGNORED = -100


@dataclass(frozen=True)
class Seq2SeqCollator:
    """Pads inputs with the padding token and labels with -100; a plain object, so that workers can take it along.

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
            read_BT = np.full_like(labels_BT, self.decoder_start_token_id)  # as `shift_right`, a third of its time
            read_BT[:, 1:] = np.where(labels_BT[:, :-1] == IGNORED, self.pad_token_id, labels_BT[:, :-1])
            batch["labels"], batch["decoder_input_ids"] = torch.from_numpy(labels_BT), torch.from_numpy(read_BT)
        return batch

    def rows(self, features) -> TokenRows:
        """The features as places in flat arrays; of none, a row that counts for nothing."""
        return TokenRows.of(features or [{"input_ids": [self.pad_token_id], "labels": [IGNORED]}])

    def inputs(self, rows: TokenRows) -> dict[str, torch.Tensor]:
        """`input_ids` and `attention_mask`."""
        mask_BS = self.mask(rows.input_ids)
        ids_BS = rows.input_ids.padded(self.pad_token_id, mask_BS)
        return {"input_ids": torch.from_numpy(ids_BS), "attention_mask": torch.from_numpy(mask_BS.astype(np.int64))}

    def mask(self, picked: Picked) -> np.ndarray:
        """Where padded rows have tokens, bool [B, width]."""
        return picked.mask(picked.width(self.pad_to_multiple_of))

    def pad(self, sequences, value: int) -> torch.Tensor:
        """Sequences of ids as one tensor, filled up with `value` on the right."""
        longest = max(map(len, sequences))
        width = -(-max(longest, 1) // self.pad_to_multiple_of) * self.pad_to_multiple_of
        padded = torch.full((len(sequences), width), value, dtype=torch.long)
        for row, sequence in enumerate(sequences):
            padded[row, : len(sequence)] = torch.as_tensor(sequence, dtype=torch.long)
        return padded


def shift_right(labels_BT: torch.Tensor, pad_token_id: int, decoder_start_token_id: int) -> torch.Tensor:
    """What the decoder reads: the start token, then the labels without the last one; -100 becomes padding.

    >>> shift_right(torch.tensor([[9, 1, -100]]), 0, 0)
    tensor([[0, 9, 1]])
    """
    shifted_BT = labels_BT.new_full(labels_BT.shape, decoder_start_token_id)
    shifted_BT[:, 1:] = labels_BT[:, :-1]
    return shifted_BT.masked_fill(shifted_BT == IGNORED, pad_token_id)
