"""Folders with models whose vocabularies have the published forms, trained on a text: form, not checkpoint.

`make_folder("NLLB", folder, lines, 600)` writes configuration, random weights and tokenizer. T5's and umT5's have both
`tokenizer.json` and `spiece.model`, mT5's `spiece.model` alone; mBART's is unigram, with fairseq's order of special
tokens and the codes of languages after the pieces; NLLB's and Gemma's are byte-pair encodings whose merges are all
pairs that give a piece, as transformers' converter writes them.
"""

import io
from pathlib import Path

import sentencepiece
import torch
from sentencepiece import sentencepiece_model_pb2
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    GemmaTokenizer,
    MBart50Tokenizer,
    MBartTokenizer,
    NllbTokenizer,
    set_seed,
)

UNIGRAM, BPE = 1, 2
T5_IDS = dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
UMT5_IDS = dict(pad_id=0, eos_id=1, bos_id=2, unk_id=3)
GEMMA_IDS = dict(pad_id=0, eos_id=1, bos_id=2, unk_id=3)
FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>"]
SENTINELS = [f"\u2581<extra_id_{number}>" for number in range(99, -1, -1)]
T5_SIZES = dict(d_model=32, d_kv=8, d_ff=48, num_layers=1, num_decoder_layers=1, num_heads=4)
BART_SIZES = dict(
    d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
    encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=256,
)  # fmt: skip
GEMMA_SIZES = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=16
)


def train_spiece(lines, vocab_size: int, kind: str, **settings) -> bytes:
    """SentencePiece's model of a text."""
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=content,
        model_type=kind,
        vocab_size=vocab_size,
        hard_vocab_limit=False,
        character_coverage=0.999,
        minloglevel=2,
        **settings,
    )
    return content.getvalue()


def pieces_of(spiece: bytes) -> list[tuple[str, float]]:
    model = sentencepiece_model_pb2.ModelProto.FromString(spiece)
    return [(piece.piece, piece.score) for piece in model.pieces]


def all_merges(ids: dict[str, int]) -> list[tuple[str, str]]:
    """Every pair of pieces that gives a piece, by the id of what it gives, then by theirs."""
    merges = []
    for piece in sorted(ids, key=ids.__getitem__):
        splits = [(piece[:place], piece[place:]) for place in range(1, len(piece))]
        pairs = [pair for pair in splits if pair[0] in ids and pair[1] in ids]
        merges += sorted(pairs, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    return merges


def write_t5(folder: Path, lines, vocab_size: int) -> int:
    from t5suite.data.tokenizers.unigram import t5_tokenizer_files

    spiece = train_spiece(lines, vocab_size, "unigram", **T5_IDS)
    for name, content in t5_tokenizer_files(spiece).items():
        (folder / name).write_bytes(content)
    return len(pieces_of(spiece)) + 100


def write_mt5(folder: Path, lines, vocab_size: int) -> int:
    symbols = dict(user_defined_symbols=SENTINELS, byte_fallback=True)
    spiece = train_spiece(lines, vocab_size + 356, "unigram", **T5_IDS, **symbols)
    model = sentencepiece_model_pb2.ModelProto.FromString(spiece)
    sentinels = [piece for piece in model.pieces if piece.piece in SENTINELS]
    others = [piece for piece in model.pieces if piece.piece not in SENTINELS]
    del model.pieces[:]
    model.pieces.extend([*others, *sentinels])  # mT5 has them at its end
    (folder / "spiece.model").write_bytes(model.SerializeToString())
    return len(model.pieces)


def write_umt5(folder: Path, lines, vocab_size: int) -> int:
    from t5suite.data.tokenizers.unigram import t5_tokenizer_files

    spiece = train_spiece(lines, vocab_size + 256, "unigram", **UMT5_IDS, byte_fallback=True)
    for name, content in t5_tokenizer_files(spiece, num_sentinels=300).items():
        (folder / name).write_bytes(content)
    return len(pieces_of(spiece)) + 300


def write_mbart(folder: Path, lines, vocab_size: int, tokenizer_class=MBartTokenizer) -> int:
    spiece = train_spiece(lines, vocab_size, "unigram", unk_id=0, bos_id=1, eos_id=2)
    pieces = [(name, 0.0) for name in FAIRSEQ] + pieces_of(spiece)[3:]
    tokenizer = tokenizer_class(vocab=pieces)
    tokenizer.save_pretrained(folder)
    (folder / "sentencepiece.bpe.model").write_bytes(spiece)
    return len(tokenizer)


def write_mbart50(folder: Path, lines, vocab_size: int) -> int:
    spiece = train_spiece(lines, vocab_size, "unigram", unk_id=0, bos_id=1, eos_id=2)
    tokenizer = MBart50Tokenizer(vocab=pieces_of(spiece))
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


def write_nllb(folder: Path, lines, vocab_size: int) -> int:
    spiece = train_spiece(lines, vocab_size, "bpe", unk_id=0, bos_id=1, eos_id=2)
    ids = {name: number for number, name in enumerate([*FAIRSEQ, *(name for name, _ in pieces_of(spiece)[3:])])}
    model = sentencepiece_model_pb2.ModelProto.FromString(spiece)
    charsmap = model.normalizer_spec.precompiled_charsmap
    tokenizer = NllbTokenizer(vocab=ids, merges=all_merges(ids), _spm_precompiled_charsmap=charsmap)
    tokenizer.save_pretrained(folder)
    (folder / "sentencepiece.bpe.model").write_bytes(spiece)
    return len(tokenizer)


def write_gemma(folder: Path, lines, vocab_size: int) -> int:
    spiece = train_spiece(
        lines, vocab_size + 256, "bpe", **GEMMA_IDS, byte_fallback=True, add_dummy_prefix=False,
        remove_extra_whitespaces=False, normalization_rule_name="identity",
    )  # fmt: skip
    ids = {name: number for number, (name, _) in enumerate(pieces_of(spiece))}
    tokenizer = GemmaTokenizer(vocab=ids, merges=all_merges(ids))
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


def t5_config(model_type: str, tied: bool, ends: dict):
    config = AutoConfig.for_model(model_type, **T5_SIZES, feed_forward_proj="gated-gelu", **ends)
    config.tie_word_embeddings = tied
    config.decoder_start_token_id = 0
    return config


def bart_config(model_type: str):
    ends = dict(bos_token_id=0, pad_token_id=1, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=2)
    return AutoConfig.for_model(model_type, **BART_SIZES, **ends)


def gemma_config():
    part = dict(GEMMA_SIZES, pad_token_id=0, eos_token_id=1, bos_token_id=2, query_pre_attn_scalar=16)
    return AutoConfig.for_model("t5gemma", encoder=dict(part), decoder=dict(part))


T5_ENDS = dict(pad_token_id=0, eos_token_id=1)
# By model: how its tokenizer is written (which returns its number of pieces), its configuration, rows without pieces.
MODELS = {
    "T5": (write_t5, lambda: t5_config("t5", True, T5_ENDS), 28),
    "T5 v1.1": (write_t5, lambda: t5_config("t5", False, T5_ENDS), 28),
    "mT5": (write_mt5, lambda: t5_config("mt5", False, T5_ENDS), 12),
    "umT5": (write_umt5, lambda: t5_config("umt5", False, T5_ENDS), 84),
    "mBART": (write_mbart, lambda: bart_config("mbart"), 0),
    "mBART-50": (write_mbart50, lambda: bart_config("mbart"), 0),
    "NLLB": (write_nllb, lambda: bart_config("m2m_100"), 2),
    "T5Gemma": (write_gemma, gemma_config, 0),
}


def make_folder(name: str, folder, lines, vocab_size: int) -> Path:
    """Writes a model's folder; its weights are random."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer, make_config, spare_rows = MODELS[name]
    rows = write_tokenizer(folder, list(lines), vocab_size) + spare_rows
    config = make_config()
    config.vocab_size = rows
    for part in ("encoder", "decoder"):
        if hasattr(getattr(config, part, None), "vocab_size"):
            getattr(config, part).vocab_size = rows
    set_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(config)
    if hasattr(model, "shared"):  # untied T5s have an output layer of their own, not three tables of embeddings
        model.encoder.embed_tokens.weight = model.shared.weight
        model.decoder.embed_tokens.weight = model.shared.weight
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
    model.save_pretrained(folder)
    return folder
