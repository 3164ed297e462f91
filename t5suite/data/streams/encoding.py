"""The tokenizer of a stream: the fast engine where it is equal on the stream's own documents, and what identifies it.

>>> encode = stream_encoder(tokenizer, [source])
>>> encode(["The end. </s>"])          # text never gives a control token
[[37, 414, 5, 3, 2, 87, 7, 3155]]
>>> encode.fingerprint
'sentencepiece-3 2f0c1d7be6f4a7d1'
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from t5suite.data.corpora.store import tokenizer_fingerprint
from t5suite.data.streams.sources import Share
from t5suite.data.text.encoding import TextEncoder, make_text_encoder

logger = logging.getLogger(__name__)

# Documents of each source on which the fast engine must agree with the tokenizer's own.
DOCUMENTS_COMPARED = 256


@dataclass(frozen=True)
class StreamEncoder:
    """Texts -> ids; goes to the workers. `fingerprint` tells a resumed run that the tokenizer is the same."""

    encoder: TextEncoder
    fingerprint: str

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        return self.encoder.encode(texts)


# What changes a text's ids, however rarely: a resumed run must not go on with another.
WAYS = {
    "sentencepiece": "sentencepiece-3",
    "tokenizers": "tokenizers-2",
    "transformers": "transformers",
}


def stream_encoder(tokenizer, sources: Sequence, engine: str = "auto") -> StreamEncoder:
    """The encoder for the documents of these sources.

    The engine is chosen once, by the first documents of every source, and not changed later: a change in the middle of
    a run would make its data depend on when it happened.
    """
    samples = [_first_documents(source) for source in sources]
    encoder = make_text_encoder(tokenizer, engine)
    for source, texts in zip(sources, samples, strict=True):
        if encoder.engine == "sentencepiece" and encoder.encode(texts) != encoder.reference(texts):
            logger.warning("%r: SentencePiece's ids differ from the tokenizer's, which is slower and is used", source)
            encoder = encoder.by_reference()
    return StreamEncoder(encoder, f"{WAYS[encoder.engine]} {tokenizer_fingerprint(tokenizer)[:16]}")


def _first_documents(source) -> list[str]:
    return [item.text for item in islice(source.read(Share(0, 1)), DOCUMENTS_COMPARED) if item.text is not None]
