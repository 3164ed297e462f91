"""Texts -> T5's kind of tokenizer: unigram pieces, trained by sentencepiece."""

import io
import re
from collections.abc import Iterator

from t5suite.base.errors import ConfigError, DataError
from t5suite.data.tokenizers.files import tokenizer_files
from t5suite.data.tokenizers.settings import Texts, TokenizerSettings, _check_size

SENTINEL = re.compile(r"\u2581?<extra_id_\d+>")
T5_TOKENS = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
# Sums of floating-point numbers depend on the number of threads, so it is fixed.
UNIGRAM_THREADS = 16
# sentencepiece skips longer lines (4192 bytes) and lines with its own mark for an unknown character. It reads its
# special tokens' names as tokens, not as text, so that < and > would have no pieces in a text like WikiText.
LONGEST_LINE = 1000  # characters, of at most 4 bytes
UNKNOWN_MARK = "\u2585"
NOT_AS_TEXT = re.compile("|".join(map(re.escape, ["\0", UNKNOWN_MARK, *T5_TOKENS.values()])))


def train_unigram(texts: Texts, settings: TokenizerSettings) -> dict[str, bytes]:
    """T5's kind (arXiv:1804.10959, arXiv:1910.10683): <pad> 0, </s> 1, <unk> 2, pieces, then the sentinels."""
    import sentencepiece

    vocab_size, num_sentinels = settings.vocab_size, settings.num_sentinels
    least = 3 + (256 if settings.byte_fallback else 0)
    if vocab_size - num_sentinels <= least:
        specials = "<pad>, </s>, <unk>" + (", 256 bytes" if settings.byte_fallback else "")
        raise ConfigError(
            f"--vocab_size {vocab_size} has no room for pieces besides {num_sentinels} sentinels, {specials}; "
            f"give at least {least + num_sentinels + 1}, or fewer --num_sentinels"
        )
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=training_lines(texts()),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size - num_sentinels,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            normalization_rule_name=settings.normalization,
            byte_fallback=settings.byte_fallback,
            character_coverage=settings.character_coverage,
            num_threads=UNIGRAM_THREADS,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:  # what sentencepiece raises when a check fails
        if found := re.search(r"Vocabulary size too high \(\d+\). Please set it to a value <= (\d+)", str(error)):
            _check_size(vocab_size, 0, largest=int(found[1]) + num_sentinels)
        if found := re.search(r"smaller than required_chars. (\d+) vs (\d+)", str(error)):
            _check_size(vocab_size, max(map(int, found.groups())) + num_sentinels)
        if "!sentences_.empty()" in str(error):
            raise DataError("no text to train a tokenizer on") from None
        raise DataError(f"sentencepiece cannot train on this text with --vocab_size {vocab_size}: {error}") from error
    return t5_tokenizer_files(model.getvalue(), num_sentinels)


def training_lines(texts) -> Iterator[str]:
    """The lines of the texts, cut (at white space, if there is any) so that sentencepiece skips none.

    >>> list(training_lines(["One  line.\\nAnother.", "x" * 1500]))[:2]
    ['One line.', 'Another.']

    All white space becomes one space, as the saved tokenizer reads it whatever the normalization.
    """
    apart = lambda found: f"{found[0][0]} {found[0][1:]}"  # `<unk>` -> `< unk>`
    for text in texts:
        for line in NOT_AS_TEXT.sub(apart, text).replace("\0", " ").replace(UNKNOWN_MARK, " ").splitlines():
            line = " ".join(line.split())
            while len(line) > LONGEST_LINE:
                cut = line.rfind(" ", 1, LONGEST_LINE)
                cut = cut if cut > 0 else LONGEST_LINE
                yield line[:cut]
                line = line[cut:].lstrip()
            if line:
                yield line


def t5_tokenizer_files(spiece_model: bytes, num_sentinels: int = 100) -> dict[str, bytes]:
    """sentencepiece's model -> a folder for `T5Tokenizer`; the sentinels get the last ids, counting down.

    A model that has sentinels among its pieces gets no others. With byte pieces, or another unknown piece than the
    third, the class is `PreTrainedTokenizerFast`, because `T5Tokenizer` of transformers 5 ignores byte
    fallback and reads every character without a piece as unknown.
    """
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    model = sentencepiece_model_pb2.ModelProto.FromString(spiece_model)
    names = [piece.piece for piece in model.pieces]
    own_sentinels = [name for name in names if SENTINEL.fullmatch(name)]
    new_sentinels = [] if own_sentinels else [f"<extra_id_{i}>" for i in range(num_sentinels)]
    sentinels = new_sentinels or [name for name in own_sentinels if not name.startswith("▁")]
    byte_fallback, eos = model.trainer_spec.byte_fallback, T5_TOKENS["eos_token"]
    pieces = [(piece.piece, piece.score) for piece in model.pieces]
    pieces += [(sentinel, 0.0) for sentinel in reversed(new_sentinels)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=model.trainer_spec.unk_id, byte_fallback=byte_fallback))
    if model.normalizer_spec.precompiled_charsmap:
        tokenizer.normalizer = normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)
    metaspace = {"replacement": "▁", "prepend_scheme": "always"}
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(**metaspace)]
    )
    decoder = decoders.Metaspace(**metaspace)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoder]) if byte_fallback else decoder
    tokenizer.add_special_tokens([*T5_TOKENS.values(), *sentinels])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", pair=f"$A {eos} $B {eos}", special_tokens=[(eos, tokenizer.token_to_id(eos))]
    )
    special = {**T5_TOKENS, "additional_special_tokens": sentinels}
    name, more = "T5Tokenizer", {"extra_ids": len(sentinels), "legacy": False}
    if is_beyond_t5(model):
        name, more = "PreTrainedTokenizerFast", {}
    files = tokenizer_files(tokenizer, name, special, ["input_ids", "attention_mask"], more)
    return {"spiece.model": spiece_model, **files}


def is_beyond_t5(model) -> bool:
    """Whether `T5Tokenizer` of transformers 5 would read texts otherwise than sentencepiece does by this model: it
    ignores bytes, takes the third piece for the unknown one, and adds sentinels to those that are there."""
    has_sentinels = any(SENTINEL.fullmatch(piece.piece) for piece in model.pieces)
    return model.trainer_spec.byte_fallback or model.trainer_spec.unk_id != 2 or has_sentinels
