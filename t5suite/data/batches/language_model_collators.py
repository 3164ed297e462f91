"""Blocks of tokens -> batches for masked and causal language models.

    >>> collate = CausalLMCollator(inputs_length=4)
    >>> batch = collate([{"input_ids": np.array([464, 7372, 286, 262]), "index": 0}])
    >>> batch["labels"].tolist()
    [[7372, 286, 262, -100]]

Labels and logits belong together place by place, as our loss (`t5suite.training.losses`) takes them.
Shape suffixes: B rows, L tokens of a block, T tokens of a row.
"""

from dataclasses import dataclass, field

import numpy as np
import torch

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import find
from t5suite.data.batches.collators import IGNORED
from t5suite.data.corpora.collocations import Collocations
from t5suite.data.objectives.masked import MASK_UNITS, causal_lm_batch, masked_lm_batch
from t5suite.data.objectives.random_numbers import DatumRngs
from t5suite.data.objectives.vocabulary import MaskVocabulary

PAIR_LABELS = {"next": "next_sentence_label", "order": "sentence_order_label"}


@dataclass
class CausalLMCollator:
    """Blocks for a decoder-only model: `input_ids`, `attention_mask` and `labels`, int64 [B, inputs_length].

    Labels are shifted by one already, the last being -100. Hugging Face's own loss shifts once more: it must not be
    used on these batches (take "labels" out of the batch before the model sees it, as our trainer does).

    Every example is `{"input_ids": [inputs_length], "index": j}`; text is what the blocks hold, without anything
    added: separators between documents are the corpus's matter. Nothing is padded.

    Attributes: `tokens_length` (and `tokens_lengths`, [tokens_length]), the raw tokens of a block.
    """

    inputs_length: int = 512
    tokens_length: int = field(init=False)

    weights = (1.0,)

    def __post_init__(self):
        if self.inputs_length < 2:
            raise ConfigError(f"--inputs_length {self.inputs_length}: a causal language model needs 2 tokens or more")
        self.tokens_length = self.inputs_length

    @property
    def tokens_lengths(self):
        return [self.tokens_length]

    def __call__(self, examples):
        if not examples:
            return _counting_for_nothing(self([{"input_ids": np.zeros(self.tokens_length, np.int64), "index": 0}]))
        tokens_BL = stack_blocks(examples, self.tokens_length, self.inputs_length)
        input_ids, labels = (side.padded(self.inputs_length, IGNORED) for side in causal_lm_batch(tokens_BL))
        return _tensors(input_ids=input_ids, attention_mask=np.ones_like(input_ids), labels=labels)


@dataclass
class MaskedLMCollator:
    """Blocks, or sentence pairs, for an encoder-only model, masked by chance that depends on (seed, index) alone.

    >>> vocabulary = MaskVocabulary(mask_token_id=4, special_V=np.arange(30) < 5)
    >>> collate = MaskedLMCollator(vocabulary, inputs_length=7, cls_token_id=2, sep_token_id=3, noise_density=0.3)
    >>> collate.tokens_length
    5
    >>> batch = collate([{"input_ids": np.array([11, 12, 13, 14, 15]), "index": 0}])
    >>> batch["input_ids"].tolist(), batch["labels"].tolist()
    ([[2, 11, 12, 4, 14, 15, 3]], [[-100, -100, -100, 13, 14, -100, -100]])

    An example is a block, `{"input_ids": [tokens_length], "index": j}`, around which [CLS] and [SEP] are put. With
    `sentence_pairs` it is a pair from `SentencePairDataset`, which has its special tokens and is padded.
    The batch has `input_ids`, `attention_mask` and `labels` [B, inputs_length], int64, labels being -100 wherever
    nothing was chosen; with pairs also `token_type_ids` and, under its name, the pairs' label [B].

    Args:
      vocabulary: of the tokenizer (`mask_vocabulary`).
      cls_token_id, sep_token_id: what stands around a block; None puts nothing there.
      pad_token_id: fills up pairs; like those two, it must be one of the vocabulary's special tokens.
      sentence_pairs: "next" or "order", the dataset's kind; None for blocks.
      noise_density, mask_units, exact_count, collocations, mean_span_length: as in `masked_lm_batch`.

    Attributes: `tokens_length` (and `tokens_lengths`, [tokens_length]), the raw tokens of a block.

    Raises ConfigError when made: settings that cannot work; when called: a block of another length, a pair that is
    too long, blocks where pairs are expected, an example without "index".
    """

    vocabulary: MaskVocabulary
    inputs_length: int = 512
    cls_token_id: int | None = None
    sep_token_id: int | None = None
    pad_token_id: int = 0
    sentence_pairs: str | None = None
    noise_density: float = 0.15
    mask_units: str = "token"
    exact_count: bool = True
    collocations: Collocations | None = None
    mean_span_length: float = 5.0
    seed: int = 0
    tokens_length: int = field(init=False)

    weights = (1.0,)

    def __post_init__(self):
        find(self.mask_units, MASK_UNITS, "unit", where="--mask_units")
        if self.sentence_pairs is not None:
            find(self.sentence_pairs, PAIR_LABELS, "kind of sentence pair", where="--sentence_pairs")
        around = [token_id for token_id in (self.cls_token_id, self.sep_token_id) if token_id is not None]
        self.tokens_length = self.inputs_length - len(around)
        if self.tokens_length < 1:
            raise ConfigError(f"--inputs_length {self.inputs_length} leaves no place between [CLS] and [SEP]")
        for token_id in (*around, self.pad_token_id):
            if not self.vocabulary.special_V[token_id]:
                raise ConfigError(
                    f"[CLS], [SEP] and padding must be the tokenizer's special tokens; id {token_id} is not"
                )
        self([])  # tells at once what cannot work

    @property
    def tokens_lengths(self):
        return [self.tokens_length]

    def __call__(self, examples):
        if not examples:
            return self._batch_that_counts_for_nothing()
        return self._pairs(examples) if self.sentence_pairs else self._blocks(examples)

    def _batch_that_counts_for_nothing(self):
        ids, label = np.full(self.tokens_length, self.pad_token_id), PAIR_LABELS.get(self.sentence_pairs)
        batch = _counting_for_nothing(self([{"input_ids": ids, "token_type_ids": ids * 0, label: 0, "index": 0}]))
        return {**batch, label: torch.tensor([IGNORED])} if label else batch

    def _blocks(self, examples):
        first = int(self.cls_token_id is not None)
        tokens_BT = np.empty((len(examples), self.inputs_length), dtype=np.int64)
        tokens_BL = stack_blocks(examples, self.tokens_length, self.inputs_length)
        tokens_BT[:, first : first + self.tokens_length] = tokens_BL
        if self.cls_token_id is not None:
            tokens_BT[:, 0] = self.cls_token_id
        if self.sep_token_id is not None:
            tokens_BT[:, -1] = self.sep_token_id
        return self._masked(examples, tokens_BT, np.full(len(examples), self.inputs_length))

    def _pairs(self, examples):
        label = PAIR_LABELS[self.sentence_pairs]
        check_names(examples, ("index", "token_type_ids", label))
        lengths_B = np.array([len(example["input_ids"]) for example in examples])
        if lengths_B.max() > self.inputs_length:
            raise ConfigError(f"a sentence pair has {lengths_B.max()} tokens, --inputs_length is {self.inputs_length}")
        batch = self._masked(examples, self._padded(examples, "input_ids", self.pad_token_id), lengths_B)
        batch["token_type_ids"] = torch.from_numpy(self._padded(examples, "token_type_ids", 0))
        batch[label] = torch.tensor([example[label] for example in examples])
        return batch

    def _padded(self, examples, name, value):
        padded_BT = np.full((len(examples), self.inputs_length), value, dtype=np.int64)
        for row, example in enumerate(examples):
            padded_BT[row, : len(example[name])] = example[name]
        return padded_BT

    def _masked(self, examples, tokens_BT, lengths_B):
        input_ids, labels = masked_lm_batch(
            tokens_BT,
            DatumRngs(self.seed, [example["index"] for example in examples]),
            self.vocabulary,
            noise_density=self.noise_density,
            mask_units=self.mask_units,
            exact_count=self.exact_count,
            lengths_B=lengths_B,
            collocations=self.collocations,
            mean_span_length=self.mean_span_length,
        )
        width = self.inputs_length
        attention_mask = (np.arange(width) < lengths_B[:, None]).astype(np.int64)
        return _tensors(
            input_ids=input_ids.padded(width, 0), attention_mask=attention_mask, labels=labels.padded(width, 0)
        )


def stack_blocks(examples, tokens_length, inputs_length):
    """The examples' blocks, [B, tokens_length]; raises ConfigError for another length, or a missing index."""
    check_names(examples, ("index",))
    for example in examples:
        if len(example["input_ids"]) != tokens_length:
            raise ConfigError(
                f"example {example['index']} has {len(example['input_ids'])} tokens: --inputs_length {inputs_length} "
                f"needs blocks of {tokens_length}"
            )
    return np.stack([np.asarray(example["input_ids"]) for example in examples])


def check_names(examples, names):
    """Raises ConfigError for an example that lacks one of its parts, such as the "index" its noise is drawn from."""
    for name in names:
        if any(name not in example for example in examples):
            raise ConfigError(
                f'an example has no "{name}": set remove_unused_columns=False in the training arguments, and use a '
                "dataset that gives it (BlockDataset; SentencePairDataset for sentence pairs)"
            )


def _counting_for_nothing(batch):
    """For a rank left without rows, where an epoch's last batch is smaller than the number of ranks."""
    return {**batch, "labels": torch.full_like(batch["labels"], IGNORED)}


def _tensors(**arrays):
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
