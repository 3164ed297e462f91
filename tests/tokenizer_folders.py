"""Folders with tokenizers in the manner of GPT-2 and of BART."""

import tempfile

from odd_tokenizers import byte_tokenizer
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast


def gpt2_tokenizer() -> str:
    """A folder with a tokenizer in GPT-2's manner."""
    folder = tempfile.mkdtemp()
    byte_tokenizer().save_pretrained(folder)
    return folder


def bart_tokenizer() -> str:
    """A folder with a tokenizer in BART's manner: bytes between <s> and </s>."""
    folder = tempfile.mkdtemp()
    backend = Tokenizer.from_str(byte_tokenizer().backend_tokenizer.to_str())
    backend.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    ids = [(token, backend.token_to_id(token)) for token in ("<s>", "</s>")]
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=ids
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.save_pretrained(folder)
    return folder
