"""Documents cut into sentences -> numbered sentence pairs for `MaskedLMCollator`.

    >>> documents = [[[5, 6], [7, 8, 9]], [[20, 21]], [[30], [31], [32, 33]]]
    >>> dataset = SentencePairDataset(documents, inputs_length=9, cls_token_id=101, sep_token_id=102, kind="order")
    >>> len(dataset), dataset.num_passed_over
    (3, 1)
    >>> dataset[0]["input_ids"].tolist(), dataset[0]["token_type_ids"].tolist(), dataset[0]["sentence_order_label"]
    ([101, 31, 102, 32, 33, 102], [0, 0, 0, 1, 1, 1], 0)

A document of one sentence begins no pair: these are counted in `num_passed_over`.
"""

from collections.abc import Sequence

import numpy as np
from torch.utils.data import Dataset

from t5suite.data.blocks import block_order
from t5suite.data.objectives.sentence_pairs import next_sentence_pair, pair_inputs, pair_rng, sentence_order_pair
from t5suite.errors import ConfigError, DataError
from t5suite.lookup import find


class SentencePairDataset(Dataset):
    """Pairs by run-long index: every sentence that another one follows begins one pair an epoch, in random order.

    Which pair index j is depends on (seed, j) alone. Since a pair goes on over several sentences, an epoch shows each
    sentence about as often as a pair has sentences.

    Args:
      documents: `documents[d]` -> its sentences, each a sequence of token ids; read where needed, not copied.
      inputs_length: tokens of a pair at most, [CLS] and both [SEP] included.
      kind: "next" (BERT: from where does the second part come?) or "order" (ALBERT: which came first?).
      num_examples: the length in examples; None means one epoch.

    Attributes:
      num_passed_over: documents of fewer than two sentences, in which no pair begins.

    Raises DataError where no document has two sentences, or "next" has no second document to draw from.
    """

    def __init__(
        self,
        documents: Sequence,
        inputs_length: int,
        cls_token_id: int,
        sep_token_id: int,
        kind: str = "next",
        seed: int = 0,
        num_examples: int | None = None,
    ):
        self.make_pair = find(kind, KINDS, "kind of sentence pair", where="--sentence_pairs")
        if inputs_length < 5:
            raise ConfigError(f"--inputs_length {inputs_length}: a sentence pair and its special tokens need 5")
        self.documents, self.inputs_length, self.seed = documents, inputs_length, seed
        self.special_ids = cls_token_id, sep_token_id
        num_sentences = np.array([len(sentences) for sentences in documents], dtype=np.int64)
        self.nonempty = np.flatnonzero(num_sentences)
        self.ends = np.cumsum(np.maximum(num_sentences - 1, 0))  # numbers of the pairs that each document ends before
        self.num_passed_over = int((num_sentences < 2).sum())
        self.num_pairs = int(self.ends[-1]) if len(self.ends) else 0
        if self.num_pairs == 0:
            raise DataError(f"none of {len(num_sentences)} documents has two sentences, as a sentence pair needs")
        if kind == "next" and len(self.nonempty) < 2:
            raise DataError("there is one document, but next-sentence pairs also need text from another")
        self.num_examples = self.num_pairs if num_examples is None else num_examples

    def __len__(self):
        return self.num_examples

    def __getitem__(self, index):
        if not 0 <= index < self.num_examples:
            raise IndexError(f"example {index} of a dataset of {self.num_examples}")
        epoch, position = divmod(int(index), self.num_pairs)
        number = int(block_order(self.seed, epoch, self.num_pairs)[position])
        document = int(np.searchsorted(self.ends, number, side="right"))
        start = number - (int(self.ends[document - 1]) if document else 0)
        rng = pair_rng(self.seed, int(index))
        pair, label_name = self.make_pair(self, document, rng, start)
        input_ids, token_type_ids = pair_inputs(pair, *self.special_ids)
        return {"input_ids": input_ids, "token_type_ids": token_type_ids, label_name: pair.label, "index": int(index)}

    def _next(self, document, rng, start):
        def other_document(rng):
            place = int(rng.integers(len(self.nonempty) - 1))
            return self.documents[int(self.nonempty[place + (self.nonempty[place] >= document)])]

        pair = next_sentence_pair(self.documents[document], rng, self.inputs_length - 3, other_document, start)
        return pair, "next_sentence_label"

    def _order(self, document, rng, start):
        return sentence_order_pair(self.documents[document], rng, self.inputs_length - 3, start), "sentence_order_label"


KINDS = {"next": SentencePairDataset._next, "order": SentencePairDataset._order}
