"""The SentencePiece model of a tokenizer that has only tokenizer.json: transformers 5 does not write `spiece.model`.

    >>> content = convert_to_spiece(tokenizer)
    >>> SentencePieceProcessor(model_proto=content).encode("the film was good.")
    [4, 304, 501, 513, 509, 503, 9, 325, 3]

Field numbers and types of pieces: sentencepiece's `sentencepiece_model.proto`.
"""

import base64
import json
import logging
import re

logger = logging.getLogger(__name__)

SENTINEL = re.compile(r"\u2581?<extra_id_\d+>")
BYTE = re.compile(r"<0x[0-9A-F]{2}>")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE_PIECE = 1, 2, 3, 4, 6
UNIGRAM = 1
# Spaces, compatibility forms (ligatures, fractions), letters without a piece, and markup. No tabs: a
# model without normalization reads them as letters, and tokenizer.json as spaces.
TEXTS = (
    "the film was good.",
    "  two  spaces ",
    "ﬁne ½ naïve Ångström ＡＢＣ １２３",
    "don't stop: 3.14, (yes) <b>no</b> 你好 🙂",
    "",
)


def convert_to_spiece(tokenizer) -> bytes | None:
    """The content of `spiece.model`, from a tokenizer's tokenizer.json.

    None if it is not of T5's kind (a unigram model with the sentinels after its pieces), or would encode TEXTS
    differently.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    settings = json.loads(backend.to_str())
    model = settings.get("model", {})
    normalizer = settings.get("normalizer")
    if model.get("type") != "Unigram" or not _is_charsmap_or_none(normalizer):
        return None
    from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    pieces = list(model["vocab"])
    while pieces and SENTINEL.fullmatch(pieces[-1][0]):
        pieces.pop()
    _add_pieces(proto, pieces, model, tokenizer)
    _set_trainer(proto.trainer_spec, pieces, model, tokenizer)
    _set_normalizer(proto.normalizer_spec, normalizer)
    content = proto.SerializeToString()
    processor = SentencePieceProcessor(model_proto=content)
    for text in TEXTS:
        if processor.encode(text) != tokenizer(text, add_special_tokens=False)["input_ids"]:
            logger.warning("cannot convert tokenizer.json to spiece.model: it would encode %r differently", text)
            return None
    return content


def _is_charsmap_or_none(normalizer: dict | None) -> bool:
    """Whether SentencePiece can normalize text as this part of tokenizer.json does."""
    if not normalizer:
        return True
    return normalizer["type"] == "Precompiled" and bool(normalizer.get("precompiled_charsmap"))


def _add_pieces(proto, pieces: list, model: dict, tokenizer) -> None:
    """Adds `(piece, score)` pairs, each with its type."""
    special_tokens = {tokenizer.pad_token, tokenizer.eos_token, tokenizer.bos_token}
    for number, (piece, score) in enumerate(pieces):
        if SENTINEL.fullmatch(piece):
            kind = USER_DEFINED
        elif model.get("byte_fallback") and BYTE.fullmatch(piece):
            kind = BYTE_PIECE
        elif number == model["unk_id"]:
            kind = UNKNOWN
        elif piece and piece in special_tokens:
            kind = CONTROL
        else:
            kind = NORMAL
        proto.pieces.add(piece=piece, score=score, type=kind)


def _set_trainer(trainer, pieces: list, model: dict, tokenizer) -> None:
    """Sets the kind of model, and the ids of its special pieces; -1 for one that it lacks."""
    trainer.model_type = UNIGRAM
    trainer.vocab_size = len(pieces)
    trainer.byte_fallback = bool(model.get("byte_fallback"))
    trainer.unk_id = model["unk_id"]
    trainer.unk_piece = pieces[model["unk_id"]][0]
    ids = {piece: number for number, (piece, _) in enumerate(pieces)}
    for name in ("pad", "eos", "bos"):
        token = getattr(tokenizer, f"{name}_token")
        setattr(trainer, f"{name}_id", ids.get(token, -1))
        if token in ids:
            setattr(trainer, f"{name}_piece", token)


def _set_normalizer(spec, normalizer: dict | None) -> None:
    """Sets how text is normalized, as T5's tokenizer.json does."""
    spec.add_dummy_prefix = True
    spec.remove_extra_whitespaces = True
    spec.escape_whitespaces = True
    if normalizer:
        spec.name = "nmt_nfkc"
        spec.precompiled_charsmap = base64.b64decode(normalizer["precompiled_charsmap"])
    else:
        spec.name = "identity"
