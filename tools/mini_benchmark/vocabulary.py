"""Writes the tokenizer and the configuration of the tiny T5 that comes with the benchmark `mini`.

    >>> AutoTokenizer.from_pretrained(MODEL_FOLDER).tokenize("sentiment sentence: The lamp was not bad.")
    ['▁sentiment', '▁sentence', ':', '▁The', '▁lamp', '▁was', '▁not', '▁bad', '.']

    python -m tools.mini_benchmark.vocabulary --write

A unigram model (arXiv:1804.10959) is trained by sentencepiece on the benchmark's own text, on one thread, so that
the same version of the library writes the same pieces. Every printable ASCII character is a piece too: free English
text is spelt out where it has words that the benchmark lacks.
"""

import argparse
import io
import re
import string
import sys
from pathlib import Path

from tools.mini_benchmark import MODEL_FOLDER, grammar
from tools.mini_benchmark.documents import documents

PREFIXES = ["sentiment sentence:", "entailment premise:", "hypothesis:", "similarity sentence1:", "sentence2:"]
LABELS = ["negative", "positive", "entailment", "neutral", "contradiction"]
SCORES = [f"{fifths / 5:.1f}" for fifths in range(26)]
# Words of free text, of which the benchmark has few.
COMMON = (
    "about after again all also an any are as be because been before both can come could day did do does each even "
    "first for from get give go good had has have he her here him his how if into is it its just know like little "
    "look made make man many may me more most much must my new now of old one only or other our out own people say "
    "see she should so some take tell than that their them then there these they thing think this those time to two "
    "up use very want way we well were what when where which while who why will bill broke chat email form paid pay "
    "twice with work would year yes you your The He She It We They This That There And But In On At A"
)
COPIES = 300  # fewer, and the trainer splits rare words
MOST_PIECES = 1500  # a bound; the trainer stops when every word is a piece

# A quarter of a million parameters: three encoder layers are enough to compare two sentences, and a step stays short.
CONFIG = {
    "architectures": ["T5ForConditionalGeneration"],
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 256,
    "num_layers": 3,
    "num_decoder_layers": 1,
    "num_heads": 4,
    "dropout_rate": 0.0,
    "feed_forward_proj": "relu",
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": True,
}


def training_sentences() -> list:
    """training_sentences() -> ['The lamp was bad.', ..., 'positive', ..., '4.8']: what the pieces are chosen from"""
    texts = [value for task in grammar.TASKS for row in grammar.rows(task)["train"] for value in row.values()]
    sentences = [text for text in texts if isinstance(text, str)]
    words = sorted(
        set(re.findall(r"[A-Za-z]+", " ".join([*sentences, *documents("train"), *PREFIXES, *LABELS, COMMON])))
    )
    # A candidate piece has to occur in two different strings, hence each word alone and with a full stop.
    return sentences + SCORES * COPIES + words * COPIES + [word + "." for word in words] * COPIES


def train_pieces() -> bytes:
    """train_pieces() -> the bytes of spiece.model: <pad> 0, </s> 1, <unk> 2, then the pieces"""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(training_sentences()),
        model_writer=model,
        model_type="unigram",
        vocab_size=MOST_PIECES,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        normalization_rule_name="identity",
        required_chars=string.ascii_letters + string.digits + string.punctuation,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def write_model(folder: Path):
    """Writes spiece.model, the tokenizer's JSON files and config.json under `folder`."""
    from transformers import T5Config, T5Tokenizer

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").unlink(missing_ok=True)  # else it is read instead of spiece.model
    (folder / "spiece.model").write_bytes(train_pieces())
    tokenizer = T5Tokenizer.from_pretrained(folder, extra_ids=100)
    tokenizer.save_pretrained(folder)
    T5Config(**CONFIG, vocab_size=len(tokenizer)).save_pretrained(folder)


def main(argv=None) -> int:
    """`--write` writes the folder anew."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=MODEL_FOLDER, help="where the model lies")
    parser.add_argument("--write", action="store_true", required=True, help="write the files")
    write_model(parser.parse_args(argv).folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
