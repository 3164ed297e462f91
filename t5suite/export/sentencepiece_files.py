"""tokenizer.json -> `spiece.model`, which transformers 5 does not write and older versions, and other programs, read.

    >>> content = spiece_of(tokenizer)
    >>> SentencePieceProcessor(model_proto=content).encode("the film was good.")
    [4, 304, 501, 513, 509, 503, 9, 325, 3]

For T5's kind: a unigram model, with the sentinels behind its pieces. What is made is compared with the tokenizer over
some texts; where the two differ, there is no file rather than a wrong one. Field numbers and types of pieces:
sentencepiece's `sentencepiece_model.proto`.
"""

import base64
import json
import logging
import re

logger = logging.getLogger(__name__)

SENTINEL = re.compile(r"▁?<extra_id_\d+>")
BYTE = re.compile(r"<0x[0-9A-F]{2}>")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE_PIECE = 1, 2, 3, 4, 6
# Spaces, compatibility forms (ligatures, fractions), letters without a piece, and what looks like markup. No tabs: a
# model without normalization reads them as letters, and tokenizer.json as spaces.
TEXTS = (
    "the film was good.",
    "  two  spaces ",
    "ﬁne ½ naïve Ångström ＡＢＣ １２３",
    "don't stop: 3.14, (yes) <b>no</b> 你好 🙂",
    "",
)


def spiece_of(tokenizer) -> bytes | None:
    """sentencepiece's file of a tokenizer; None where it is not of T5's kind, or would read texts otherwise."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = json.loads(backend.to_str()) if backend is not None else {}
    normalizer = content.get("normalizer")
    known = normalizer is None or (normalizer["type"] == "Precompiled" and normalizer["precompiled_charsmap"])
    if content.get("model", {}).get("type") != "Unigram" or not known:
        return None
    made = _proto(content["model"], normalizer, tokenizer).SerializeToString()
    differing = next((text for text in TEXTS if _ids(made, text) != _own_ids(tokenizer, text)), None)
    if differing is not None:
        logger.warning("no spiece.model is written: it would read %r otherwise than tokenizer.json", differing)
        return None
    return made


def _proto(model: dict, normalizer: dict | None, tokenizer):
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    special = {token for token in (tokenizer.pad_token, tokenizer.eos_token, tokenizer.bos_token) if token}
    unknown = model["unk_id"]
    pieces = list(model["vocab"])
    while pieces and SENTINEL.fullmatch(pieces[-1][0]):
        pieces.pop()
    for number, (piece, score) in enumerate(pieces):
        kind = UNKNOWN if number == unknown else CONTROL if piece in special else NORMAL
        kind = BYTE_PIECE if model.get("byte_fallback") and BYTE.fullmatch(piece) else kind
        proto.pieces.add(piece=piece, score=score, type=USER_DEFINED if SENTINEL.fullmatch(piece) else kind)
    places = {piece: number for number, (piece, _) in enumerate(pieces)}
    trainer = proto.trainer_spec
    trainer.model_type, trainer.vocab_size, trainer.byte_fallback = 1, len(pieces), bool(model.get("byte_fallback"))
    trainer.unk_id, trainer.unk_piece = unknown, pieces[unknown][0]
    for name in ("pad", "eos", "bos"):
        token = getattr(tokenizer, f"{name}_token")
        setattr(trainer, f"{name}_id", places.get(token, -1))
        if token in places:
            setattr(trainer, f"{name}_piece", token)
    settings = proto.normalizer_spec
    settings.add_dummy_prefix = settings.remove_extra_whitespaces = settings.escape_whitespaces = True
    if normalizer is not None:
        settings.name, settings.precompiled_charsmap = "nmt_nfkc", base64.b64decode(normalizer["precompiled_charsmap"])
    else:
        settings.name = "identity"
    return proto


def _ids(content: bytes, text: str) -> list[int]:
    from sentencepiece import SentencePieceProcessor

    return SentencePieceProcessor(model_proto=content).encode(text)


def _own_ids(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]
