"""Texts -> GPT-2's kind of tokenizer: byte pairs."""

from t5suite.base.errors import ConfigError
from t5suite.data.tokenizers.files import tokenizer_files
from t5suite.data.tokenizers.settings import Texts, TokenizerSettings, check_size

GPT_TOKENS = dict(bos_token="<|endoftext|>", eos_token="<|endoftext|>", unk_token="<|endoftext|>", pad_token="<|pad|>")


def train_bpe(texts: Texts, settings: TokenizerSettings) -> dict[str, bytes]:
    """GPT-2's kind (Radford et al. 2019; arXiv:1508.07909): <|endoftext|> 0, <|pad|> 1, 256 bytes, pieces.

    Padding has its own token: if it were the end-of-text token, losses that ignore padding would never teach a model
    to stop.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    specials = list(dict.fromkeys(GPT_TOKENS.values()))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    smallest = len(specials) + len(alphabet)
    if settings.vocab_size < smallest:
        raise ConfigError(
            f"--vocab_size {settings.vocab_size}: the bytes and special tokens alone are {smallest}; give a larger one"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts(), trainer)
    check_size(settings.vocab_size, smallest, largest=tokenizer.get_vocab_size())
    return tokenizer_files(tokenizer, "PreTrainedTokenizerFast", GPT_TOKENS, ["input_ids", "attention_mask"])
