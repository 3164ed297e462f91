"""Encoders: BERT, RoFormer. Pre-trained to fill masks; fine-tuned with a head that reads an entry's columns."""

from transformers import (
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from t5suite.data.batches.collators import SegmentCollator
from t5suite.data.batches.encodings import SegmentEncoding
from t5suite.models.answering.heads import HeadAnswerer
from t5suite.models.families.family import Family
from t5suite.models.heads import head_encoding
from t5suite.tasks.languages import Languages
from t5suite.tasks.tokenization import Lengths


def column_encoding(model, tokenizer, lengths: Lengths, separator: str | None, languages: Languages) -> SegmentEncoding:
    """The entry's columns as segments, and what the head predicts."""
    return head_encoding(model, tokenizer, lengths)


MASKED = Family(
    name="masked",
    auto_class=AutoModelForMaskedLM,
    special_tokens=("pad", "bos", "eos", "cls", "sep", "mask"),
    forward_arguments=("input_ids", "labels"),
    encoding=column_encoding,
    collator=SegmentCollator,
    answerer=HeadAnswerer,
    text_head_class=AutoModelForSequenceClassification,
    word_head_class=AutoModelForTokenClassification,
    pair_head_class=AutoModelForPreTraining,
)
