"""Rows of a task -> ids, and ids -> answers, in the format of a model's family.

    >>> encoding = PromptEncoding(gpt2_tokenizer, Lengths(512, 16))
    >>> encoding.prompts(["sst2 sentence: It was good."])      # ... "\\nanswer:"
    [[82, 301, 17, 6827, 25, 632, 373, 922, 13, 198, 41484, 25]]
    >>> encoding.answers(["positive"]), encoding.texts([[3967, 50256]])
    ([[3967, 50256]], ['positive'])

| family | an example's `input_ids` | its `labels` |
|---|---|---|
| seq2seq | the input text, as T5's | the target text, with end-of-sequence |
| causal | the input text and a separator | the target text, with end-of-sequence |
| masked | the entry's columns as segments, else the input text | one class, or one number |
| encoder | the input text | one class, or one number |
| both, `token_labels` | the words | a class for the first token of each word |

Long texts are truncated on the right; end-of-sequence, separator and special tokens are kept. Every encoding has
`example_set` (rows -> examples, as the model reads them) and `columns` (examples -> ragged columns); `rows` is both, of
a batch of rows by column. It also has `prompts`, `answers` and `texts`, and a `key` for caches.
"""

from t5suite.data.batches.encodings.labels_encoding import LabelsEncoding, with_spaces
from t5suite.data.batches.encodings.language_encoding import LanguageEncoding, language_ids
from t5suite.data.batches.encodings.prompt_encoding import DEFAULT_SEPARATOR, PromptEncoding
from t5suite.data.batches.encodings.segment_encoding import SegmentEncoding, answer_text
from t5suite.data.batches.encodings.special_tokens import leading_ids
from t5suite.data.batches.encodings.text_encoding import TextEncoding, bind_encoding

__all__ = [
    "DEFAULT_SEPARATOR", "LabelsEncoding", "LanguageEncoding", "PromptEncoding", "SegmentEncoding", "TextEncoding",
    "answer_text", "bind_encoding", "language_ids", "leading_ids", "with_spaces",
]  # fmt: skip
