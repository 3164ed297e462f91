"""Ragged ids -> padded tensors for an encoder-decoder model.

    >>> Seq2SeqCollator(pad_token_id=0, decoder_start_token_id=0)([{"input_ids": [5, 1], "labels": [9, 1]}])
    {'input_ids': [[5, 1]], 'attention_mask': [[1, 1]], 'labels': [[9, 1]], 'decoder_input_ids': [[0, 9]]}

The collator makes `decoder_input_ids` itself: our loss takes the labels out of the batch before the model sees it.
Shapes: B examples, S source tokens, T target tokens.
"""

from dataclasses import dataclass

import torch

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

    def __call__(self, features: list[dict]) -> dict[str, torch.Tensor]:
        features = features or [{"input_ids": [self.pad_token_id], "labels": [IGNORED]}]
        input_ids = self.pad([f["input_ids"] for f in features], self.pad_token_id)
        mask = self.pad([[1] * len(f["input_ids"]) for f in features], 0)
        batch = {"input_ids": input_ids, "attention_mask": mask}
        if features[0].get("labels") is not None:
            labels = self.pad([f["labels"] for f in features], IGNORED)
            batch["labels"] = labels
            batch["decoder_input_ids"] = shift_right(labels, self.pad_token_id, self.decoder_start_token_id)
        return batch

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
