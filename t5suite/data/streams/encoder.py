"""The tokenizer of a stream: the fast engine if it gives equal ids on the stream's own documents."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from t5suite.data.corpora.encoding import TextEncoder, make_text_encoder
from t5suite.data.corpora.store import tokenizer_fingerprint
from t5suite.data.streams.shares import Share

logger = logging.getLogger(__name__)

# Documents of each source on which the fast engine must agree with the tokenizer.
DOCUMENTS_COMPARED = 256
# Versions of what changes a text's ids, however rarely: a resumed run must not switch to another.
WAYS = {"sentencepiece": "sentencepiece-4", "tokenizers": "tokenizers-2", "transformers": "transformers"}


def stream_encoder(tokenizer, sources: Sequence, engine: str = "auto") -> TextEncoder:
    """The encoder for the documents of these sources.

    The engine is chosen once, by the first documents of every source, and not changed later: a change in the middle of
    a run would make its data depend on when it happened.
    """
    encoder = make_text_encoder(tokenizer, engine)
    for source in sources:
        items = islice(source.read(Share(0, 1)), DOCUMENTS_COMPARED)
        texts = [item.text for item in items if item.text is not None]
        if encoder.engine == "sentencepiece" and encoder.encode(texts) != encoder.reference(texts):
            logger.warning("%r: SentencePiece's ids differ from the tokenizer's; using the slower tokenizer", source)
            encoder = encoder.by_reference()
    return replace(encoder, fingerprint=f"{WAYS[encoder.engine]} {tokenizer_fingerprint(tokenizer)[:16]}")
