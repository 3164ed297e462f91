"""The files of a tokenizer's folder, in forms that transformers 4 and 5 both read.

    >>> sorted(t5_tokenizer_files(spiece_model, num_sentinels=100))
    ['special_tokens_map.json', 'spiece.model', 'tokenizer.json', 'tokenizer_config.json']

transformers 5 writes its folders with names that 4.57 does not know (`"tokenizer_class": "TokenizersBackend"`, a list
under `extra_special_tokens`), so that the older one fails to load them. These are written in the older form, which
both know. Each function returns file names and contents; `write_folder` puts them in place at once.
"""

import json
import os
import shutil
from pathlib import Path

from t5suite.base.errors import ConfigError

T5_TOKENS = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
BERT_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
GPT_TOKENS = {
    "bos_token": "<|endoftext|>",
    "eos_token": "<|endoftext|>",
    "unk_token": "<|endoftext|>",
    "pad_token": "<|pad|>",
}


def t5_tokenizer_files(spiece_model: bytes, num_sentinels: int = 100) -> dict[str, bytes]:
    """A folder for `T5Tokenizer`: sentencepiece's model, the same as tokenizer.json, and the special tokens' names.

    With byte pieces the class is `PreTrainedTokenizerFast`, because `T5Tokenizer` of transformers 5 ignores that they
    are a fall-back and reads every character without a piece as unknown.
    """
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(spiece_model)
    sentinels = [f"<extra_id_{i}>" for i in range(num_sentinels)]
    byte_fallback = model.trainer_spec.byte_fallback
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast" if byte_fallback else "T5Tokenizer",
        **T5_TOKENS,
        **({} if byte_fallback else {"extra_ids": num_sentinels, "legacy": False}),
        "additional_special_tokens": sentinels,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    return {
        "spiece.model": spiece_model,
        "tokenizer.json": t5_tokenizer_json(model, sentinels),
        "tokenizer_config.json": _json(config),
        "special_tokens_map.json": _json({**T5_TOKENS, "additional_special_tokens": sentinels}),
    }


def t5_tokenizer_json(model, sentinels: list[str]) -> bytes:
    """sentencepiece's parsed model -> tokenizer.json; the sentinels get the last ids, `<extra_id_0>` the very last."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    byte_fallback = model.trainer_spec.byte_fallback
    pieces = [(piece.piece, piece.score) for piece in model.pieces]
    pieces += [(sentinel, 0.0) for sentinel in reversed(sentinels)]
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
    eos = T5_TOKENS["eos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", pair=f"$A {eos} $B {eos}", special_tokens=[(eos, tokenizer.token_to_id(eos))]
    )
    return tokenizer.to_str(pretty=True).encode()


def fast_tokenizer_files(tokenizer, special_tokens: dict[str, str], pair_of_sentences=False) -> dict[str, bytes]:
    """A folder for `AutoTokenizer`, from a tokenizer of the `tokenizers` library.

    Args:
      special_tokens: as `{"pad_token": "[PAD]", ...}`.
      pair_of_sentences: `[CLS] a [SEP]`, `[CLS] a [SEP] b [SEP]` with token types 0 and 1, as BERT reads them.
    """
    from tokenizers import processors

    tokenizer.add_special_tokens(list(dict.fromkeys(special_tokens.values())))
    if pair_of_sentences:
        cls, sep = special_tokens["cls_token"], special_tokens["sep_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{cls} $A {sep}",
            pair=f"{cls} $A {sep} $B:1 {sep}:1",
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in (cls, sep)],
        )
    names = ["input_ids", *(["token_type_ids"] if pair_of_sentences else []), "attention_mask"]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special_tokens,
        "model_input_names": names,
        "clean_up_tokenization_spaces": False,
    }
    return {
        "tokenizer.json": tokenizer.to_str(pretty=True).encode(),
        "tokenizer_config.json": _json(config),
        "special_tokens_map.json": _json(special_tokens),
    }


def check_new_folder(output_dir) -> Path:
    """`output_dir` as a path; it must not exist, or be empty.

    Raises:
      ConfigError: there is something in it, or a file of that name.
    """
    folder = Path(output_dir)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--output_dir {output_dir}: there already, and not an empty folder; give a new one")
    return folder


def write_folder(output_dir, files: dict[str, bytes]) -> None:
    """Writes the files beside `output_dir` and renames: the folder is there with all of them, or not at all."""
    folder = check_new_folder(output_dir)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True)
    try:
        for name, content in files.items():
            (temporary / name).write_bytes(content)
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _json(value: dict) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
