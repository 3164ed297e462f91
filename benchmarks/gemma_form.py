"""A tiny Gemma made here: a tokenizer and decoders of the published form, and none of the published weights.

    python -m benchmarks.gemma_form --output_dir gemma-tiny

>>> tokenizer = gemma_tokenizer(["The cat sat on the mat."] * 9, vocab_size=300)
>>> tokenizer.convert_ids_to_tokens(tokenizer("The cat.").input_ids)
['<bos>', 'The', '▁cat', '.']

Google's tokenizers and weights are behind terms that a reader accepts himself. What is measured here holds for the
form: byte pairs with byte fallback, spaces as U+2581, <pad> 0, <eos> 1, <bos> 2, <unk> 3, <mask> 4.
"""

import argparse
import json
import sys
from collections.abc import Iterable

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma3TextConfig, GemmaTokenizer, set_seed

from tools.mini_benchmark.documents import documents

SPECIAL_TOKENS = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
BYTES = [f"<0x{number:02X}>" for number in range(256)]
SPACE = "\u2581"
CONFIGS = {"gemma3_text": Gemma3TextConfig, "gemma2": Gemma2Config}
# Every second layer slides: short models have both kinds.
SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 32,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "max_position_embeddings": 1024,
}  # fmt: skip


def gemma_tokenizer(texts: Iterable[str], vocab_size: int) -> GemmaTokenizer:
    """Byte pairs trained on texts, in the form of Gemma's tokenizer."""
    trained = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    trained.normalizer = normalizers.Replace(" ", SPACE)
    trained.pre_tokenizer = pre_tokenizers.Split(SPACE, behavior="merged_with_next")
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[*SPECIAL_TOKENS, *BYTES], limit_alphabet=80, show_progress=False
    )
    trained.train_from_iterator(texts, trainer)
    vocabulary = trained.get_vocab()
    merges = [tuple(pair) for pair in json.loads(trained.to_str())["model"]["merges"]]
    return GemmaTokenizer(vocab=vocabulary, merges=merges, add_bos_token=True)


def gemma_decoder(model_type: str = "gemma3_text", seed: int = 0, **settings):
    """A decoder with random weights: SIZES, changed by settings."""
    set_seed(seed)
    return AutoModelForCausalLM.from_config(CONFIGS[model_type](**{**SIZES, **settings}))


def main(argv=None) -> int:
    """Writes a decoder with random weights and its tokenizer, trained on the bundled text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--model_type", default="gemma3_text", choices=sorted(CONFIGS))
    parser.add_argument("--vocab_size", type=int, default=1000)
    options = parser.parse_args(argv)
    tokenizer = gemma_tokenizer(documents("train"), options.vocab_size)
    gemma_decoder(options.model_type, vocab_size=len(tokenizer)).save_pretrained(options.output_dir)
    tokenizer.save_pretrained(options.output_dir)
    return 0


if __name__ == "__main__":
    sys.exit(main())
