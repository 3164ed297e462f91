"""Texts -> T5's kind of tokenizer: unigram pieces, trained by sentencepiece."""

import io
import re
from collections.abc import Iterator

from t5suite.base.errors import ConfigError, DataError
from t5suite.data.tokenizers.files import tokenizer_files
from t5suite.data.tokenizers.settings import Texts, TokenizerSettings, check_size

SENTINEL = re.compile(r"\u2581?<extra_id_\d+>")
T5_TOKENS = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
# Sums of floating-point numbers depend on the number of threads, so it is fixed.
UNIGRAM_THREADS = 16
# sentencepiece skips longer lines (4192 bytes) and lines with its own mark for an unknown character. It reads its
# special tokens' names as tokens, not as text, so that < and > would have no pieces in a text like WikiText.
LONGEST_LINE = 1000  # characters, of at most 4 bytes
UNKNOWN_MARK = "\u2585"
SPECIAL_NAME = re.compile(r"(<)(pad>|/s>|unk>)")


def train_unigram(texts: Texts, settings: TokenizerSettings) -> dict[str, bytes]:
    """T5's kind (arXiv:1804.10959, arXiv:1910.10683): <pad> 0, </s> 1, <unk> 2, pieces, then the sentinels."""
    import sentencepiece

    _check_room(settings)
    num_pieces = settings.vocab_size - settings.num_sentinels
    model = io.BytesIO()
    reading_errors = []

    def lines():
        try:
            yield from training_lines(texts())
        except (Exception, KeyboardInterrupt, SystemExit) as error:  # of each, sentencepiece makes a RuntimeError
            reading_errors.append(error)
            raise

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines(),
            model_writer=model,
            model_type="unigram",
            vocab_size=num_pieces,
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
        if reading_errors:
            raise reading_errors[0] from None
        _explain_error(str(error), settings)
        raise DataError(
            f"sentencepiece cannot train on this text with --vocab_size {settings.vocab_size}: {error}"
        ) from error
    return t5_tokenizer_files(model.getvalue(), settings.num_sentinels)


def _check_room(settings: TokenizerSettings) -> None:
    """Raises ConfigError if the special tokens leave no room for pieces."""
    specials = "<pad>, </s>, <unk>"
    num_specials = 3
    if settings.byte_fallback:
        specials += ", 256 bytes"
        num_specials += 256
    smallest = num_specials + settings.num_sentinels + 1
    if settings.vocab_size < smallest:
        raise ConfigError(
            f"--vocab_size {settings.vocab_size} has no room for pieces besides {settings.num_sentinels} sentinels, "
            f"{specials}; give at least {smallest}, or fewer --num_sentinels"
        )


def _explain_error(message: str, settings: TokenizerSettings) -> None:
    """Raises ConfigError or DataError if sentencepiece's message names a cause that we know."""
    too_large = re.search(r"Vocabulary size too high \(\d+\). Please set it to a value <= (\d+)", message)
    if too_large:
        check_size(settings.vocab_size, 0, largest=int(too_large[1]) + settings.num_sentinels)
    too_small = re.search(r"smaller than required_chars. (\d+) vs (\d+)", message)
    if too_small:
        check_size(settings.vocab_size, max(int(too_small[1]), int(too_small[2])) + settings.num_sentinels)
    if "!sentences_.empty()" in message:
        raise DataError("no text to train a tokenizer on")


def training_lines(texts) -> Iterator[str]:
    """The lines of the texts, cut (at white space, if there is any) so that sentencepiece skips none.

    >>> list(training_lines(["One  line.\\nAnother.", "x" * 1500]))[:2]
    ['One line.', 'Another.']

    All white space becomes one space, as the saved tokenizer reads it whatever the normalization.
    """
    for text in texts:
        text = SPECIAL_NAME.sub(r"\1 \2", text)  # `<unk>` -> `< unk>`
        text = text.replace("\0", " ").replace(UNKNOWN_MARK, " ")
        for line in text.splitlines():
            yield from _short_lines(" ".join(line.split()))


def _short_lines(line: str) -> Iterator[str]:
    while len(line) > LONGEST_LINE:
        end = line.rfind(" ", 1, LONGEST_LINE)
        if end == -1:
            end = LONGEST_LINE
        yield line[:end]
        line = line[end:].lstrip()
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
    model_sentinels = [name for name in names if SENTINEL.fullmatch(name)]
    pieces = [(piece.piece, piece.score) for piece in model.pieces]
    if model_sentinels:
        sentinels = [name for name in model_sentinels if not name.startswith("▁")]
    else:
        sentinels = [f"<extra_id_{number}>" for number in range(num_sentinels)]
        pieces += [(sentinel, 0.0) for sentinel in reversed(sentinels)]
    byte_fallback = model.trainer_spec.byte_fallback
    eos = T5_TOKENS["eos_token"]
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
    special_tokens = {**T5_TOKENS, "additional_special_tokens": sentinels}
    input_names = ["input_ids", "attention_mask"]
    if is_beyond_t5(model):
        files = tokenizer_files(tokenizer, "PreTrainedTokenizerFast", special_tokens, input_names)
    else:
        t5_settings = {"extra_ids": len(sentinels), "legacy": False}
        files = tokenizer_files(tokenizer, "T5Tokenizer", special_tokens, input_names, t5_settings)
    return {"spiece.model": spiece_model, **files}


def is_beyond_t5(model) -> bool:
    """Whether `T5Tokenizer` of transformers 5 would read texts otherwise than sentencepiece does by this model: it
    ignores bytes, takes the third piece for the unknown one, and adds sentinels to those that are there."""
    has_sentinels = any(SENTINEL.fullmatch(piece.piece) for piece in model.pieces)
    return model.trainer_spec.byte_fallback or model.trainer_spec.unk_id != 2 or has_sentinels
