"""Encoder-decoders: T5, BART, and those that read and write given languages (mBART, M2M100, NLLB, Marian)."""

import logging

from transformers import AutoModelForSeq2SeqLM

from t5suite.data.batches.collators import Seq2SeqCollator
from t5suite.data.batches.encodings import LanguageEncoding, TextEncoding, language_ids
from t5suite.models.answering.seq2seq import Seq2SeqAnswerer
from t5suite.models.families.family import Family
from t5suite.tasks.languages import Languages
from t5suite.tasks.tokenization import Lengths

logger = logging.getLogger(__name__)


def text_encoding(model, tokenizer, lengths: Lengths, separator: str | None, languages: Languages) -> TextEncoding:
    """Text to text, in given languages where the tokenizer has languages."""
    if not language_ids(tokenizer):
        return TextEncoding(tokenizer, lengths)
    encoding = LanguageEncoding(tokenizer, lengths, languages=languages)
    if not any(languages):
        _warn_of_default_language(encoding)
    store_languages(model, encoding)
    return encoding


def _warn_of_default_language(encoding: LanguageEncoding) -> None:
    effect = ""
    if not encoding.is_marked:
        effect = f"; without them texts are read and written as {encoding.tokenizer.src_lang}"
    logger.warning("the model has %d languages: give --source_lang and --target_lang%s", len(encoding.ids), effect)


def store_languages(model, encoding: LanguageEncoding) -> None:
    """Stores the languages in the settings of tokenizer and model, so that plain transformers has them, too."""
    if encoding.is_marked:
        return
    languages = encoding.languages
    tokenizer = encoding.tokenizer
    if languages.source_lang:
        tokenizer.src_lang = languages.source_lang
    code = languages.target_lang or tokenizer.tgt_lang or languages.source_lang or tokenizer.src_lang
    token_id = encoding.ids.get(code)
    if encoding.form == "first":
        model.generation_config.forced_bos_token_id = None if languages.target_lang_column else token_id
    else:
        model.config.decoder_start_token_id = token_id
        model.generation_config.decoder_start_token_id = token_id


SEQ2SEQ = Family(
    name="seq2seq",
    auto_class=AutoModelForSeq2SeqLM,
    special_tokens=("pad", "bos", "eos"),
    forward_arguments=("input_ids", "labels", "decoder_input_ids"),
    encoding=text_encoding,
    collator=Seq2SeqCollator,
    answerer=Seq2SeqAnswerer,
)
