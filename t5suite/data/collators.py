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

from t5suite.data.features import Picked, TokenArrays, TokenRows

IGNORED = -100


@dataclass(frozen=True)
class Seq2SeqCollator:
    """Pads inputs with the padding token and labels with -100; a plain object, so that workers can take it along.

    Args:
      pad_to_multiple_of: lengths are rounded up to a multiple of this many tokens.
      widths, target_widths: lengths are rounded up to the next of these, ascending, where one is that long.
      num_rows: smaller batches are filled up to this many rows, with rows that count for nothing.
    """

    pad_token_id: int
    decoder_start_token_id: int
    pad_to_multiple_of: int = 1
    widths: tuple[int, ...] = ()
    target_widths: tuple[int, ...] = ()
    num_rows: int = 0

    def __call__(self, features: list[dict] | TokenRows) -> dict[str, torch.Tensor]:
        rows = self.rows(features)
        batch = self.inputs(rows)
        if rows.labels is not None:
            labels_BT = rows.labels.padded(IGNORED, self.mask(rows.labels, self.target_widths))
            read_BT = np.empty_like(labels_BT)  # as `shift_right`, in a third of its time
            read_BT[:, 0] = self.decoder_start_token_id
            if self.pad_token_id == 0:
                np.maximum(labels_BT[:, :-1], 0, out=read_BT[:, 1:])  # IGNORED is the only one below 0
            else:
                read_BT[:, 1:] = np.where(labels_BT[:, :-1] == IGNORED, self.pad_token_id, labels_BT[:, :-1])
            batch["labels"], batch["decoder_input_ids"] = torch.from_numpy(labels_BT), torch.from_numpy(read_BT)
        return self.filled(batch)

    @property
    def num_shapes(self) -> int:
        """How many shapes its batches may have; 0 where any."""
        return len(self.widths) * max(len(self.target_widths), 1)

    def rows(self, features) -> TokenRows:
        """The features as places in flat arrays; of none, a row that counts for nothing."""
        return TokenRows.of(features or [{"input_ids": [self.pad_token_id], "labels": [IGNORED]}])

    def inputs(self, rows: TokenRows) -> dict[str, torch.Tensor]:
        """`input_ids` and `attention_mask`."""
        mask_BS = self.mask(rows.input_ids, self.widths)
        ids_BS = rows.input_ids.padded(self.pad_token_id, mask_BS)
        return {"input_ids": torch.from_numpy(ids_BS), "attention_mask": torch.from_numpy(mask_BS.astype(np.int64))}

    def mask(self, picked: Picked, widths: tuple[int, ...] = ()) -> np.ndarray:
        """Where padded rows have tokens, bool [B, width]."""
        return picked.mask(self.width(int(picked.lengths_B.max(initial=1)), widths))

    def width(self, longest: int, widths: tuple[int, ...] = ()) -> int:
        """What rows are padded to, the longest of which has so many tokens."""
        wide_enough = next((width for width in widths if width >= longest), None)
        return wide_enough or -(-longest // self.pad_to_multiple_of) * self.pad_to_multiple_of

    def lengths_of(self, features: TokenArrays) -> tuple[np.ndarray, np.ndarray | None]:
        """Tokens of every example's inputs and targets, as batches have them; None where targets have no width."""
        return features.input_ids.lengths, features.labels.lengths

    def filled(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The batch, with `num_rows` rows: of those added, the first place alone is seen, and no label counts."""
        missing = self.num_rows and self.num_rows - len(batch["input_ids"])
        if missing <= 0:
            return batch
        fills = {"attention_mask": 0, "token_type_ids": 0, "labels": IGNORED}
        filled = {}
        for name, rows in batch.items():
            blank = rows.new_full((missing, *rows.shape[1:]), fills.get(name, self.pad_token_id))
            if name == "attention_mask":
                blank[:, 0] = 1
            filled[name] = torch.cat([rows, blank])
        return filled

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
