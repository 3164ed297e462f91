"""Texts -> BERT's kind of tokenizer: word pieces."""

import math
from collections import Counter

from t5suite.base.errors import DataError
from t5suite.data.tokenizers.files import tokenizer_files
from t5suite.data.tokenizers.settings import Texts, TokenizerSettings, check_size

BERT_TOKENS = {
    "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
}  # fmt: skip


def train_wordpiece(texts: Texts, settings: TokenizerSettings) -> dict[str, bytes]:
    """BERT's kind (arXiv:1810.04805): [PAD] 0, [UNK], [CLS], [SEP], [MASK], characters, pieces; `##` inside of a word.

    The texts are read twice, first for their characters: the trainer would number those inside words in the order
    of a hash table, and break ties between pieces by these numbers, so no two runs would give the same vocabulary.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    normalizer = normalizers.BertNormalizer(lowercase=settings.lowercase)
    alphabet = covered_characters(map(normalizer.normalize_str, texts()), settings.character_coverage)
    specials = list(BERT_TOKENS.values())
    inner_characters = [f"##{character}" for character in alphabet]
    smallest = len(specials) + len(alphabet) + len(inner_characters)
    check_size(settings.vocab_size, smallest)
    trained = Tokenizer(models.WordPiece(unk_token=BERT_TOKENS["unk_token"]))
    trained.normalizer = normalizer
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=settings.vocab_size,
        special_tokens=specials + inner_characters,  # numbered in this order, before anything is counted
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    trained.train_from_iterator(texts(), trainer)
    vocabulary = trained.get_vocab()
    check_size(settings.vocab_size, smallest, largest=len(vocabulary))
    # Rebuilt from the pieces alone, or the characters inside words would stay special tokens.
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=BERT_TOKENS["unk_token"]))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(specials)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return tokenizer_files(tokenizer, "PreTrainedTokenizerFast", BERT_TOKENS, names)


def covered_characters(texts, coverage: float) -> list[str]:
    """The most frequent characters that make up this share of the text, sorted; white space is ignored.

    >>> covered_characters(["aaab bbbc"], 0.9), covered_characters(["aaab bbbc"], 0.8)
    (['a', 'b', 'c'], ['a', 'b'])
    """
    counts = Counter()
    for text in texts:
        counts.update(text)
    counts = {character: count for character, count in counts.items() if not character.isspace()}
    if not counts:
        raise DataError("no text to train a tokenizer on")
    smallest_count = math.ceil(sum(counts.values()) * coverage)
    covered_count = 0
    characters = []
    for character in sorted(counts, key=lambda character: (-counts[character], character)):
        if covered_count >= smallest_count:
            break
        characters.append(character)
        covered_count += counts[character]
    return sorted(characters)
