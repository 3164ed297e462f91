"""The encoder of an encoder-decoder (T5, mT5, umT5, LongT5, T5Gemma) by itself, with a head over T5's input text."""

from t5suite.data.batches.collators import SegmentCollator
from t5suite.data.batches.encodings import SegmentEncoding
from t5suite.models.answering.heads import HeadAnswerer
from t5suite.models.encoders import TEXT_CLASSIFIERS, WORD_CLASSIFIERS
from t5suite.models.families.family import Family
from t5suite.models.heads import head_encoding
from t5suite.tasks.languages import Languages
from t5suite.tasks.tokenization import Lengths


def input_text_encoding(
    model, tokenizer, lengths: Lengths, separator: str | None, languages: Languages
) -> SegmentEncoding:
    """T5's input text as one segment, and what the head predicts."""
    return head_encoding(model, tokenizer, lengths, whole_text=True)


ENCODER = Family(
    name="encoder",
    auto_class=TEXT_CLASSIFIERS,
    special_tokens=("pad", "bos", "eos"),
    forward_arguments=("input_ids",),
    encoding=input_text_encoding,
    collator=SegmentCollator,
    answerer=HeadAnswerer,
    text_head_class=TEXT_CLASSIFIERS,
    word_head_class=WORD_CLASSIFIERS,
    takes_encoder_out=True,
)
