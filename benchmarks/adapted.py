"""Does adapting help? A tiny Gemma 3 is trained as a decoder; what it becomes is compared at equal cost, by seeds.

    python -m benchmarks.adapted --text ../shared/data/text --output_dir runs/adapted        # some 8 processor minutes

Arms, each with the tokenizer, the layers, the batches and the rates of all others:

* `causal`: the decoder, trained further as a decoder;
* `adapted`: `t5suite adapt` makes a T5Gemma 2 of the decoder, which is trained further by prefix LM;
* `scratch, same continuation`: the same T5Gemma 2 from random weights, trained for the cost of the continuation alone;
* `scratch, same total`: the same for the cost of the decoder's training and the continuation together.

Cost is counted in products of weights: six for each weight of a matrix and each token that passes it. A block is 64
tokens: a decoder learns all of them, an encoder-decoder reads 32 and learns 32. Then every arm is fine-tuned alike on
restoring case and punctuation of sentences. The numbers are nats a token on blocks and sentences that no arm has seen,
and chrF of greedy answers, with that of copying the input beside it. Written with torch alone, so that an update costs
what is counted; `t5suite adapt` is the suite's.
"""

import argparse
import contextlib
import io
import json
import math
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from benchmarks.gemma_form import gemma_decoder, gemma_tokenizer
from t5suite.tasks.metrics import METRICS
from t5suite.testing import run_cli

SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention"], "max_position_embeddings": 256,
}  # fmt: skip
VOCABULARY = 640
BLOCK = 64
HALF = BLOCK // 2
ROWS = 16
DECODER_STEPS = 750
CONTINUATION_STEPS = 250
FINE_TUNING_STEPS = 200
PRE_TRAINING_RATE = 3e-3
FINE_TUNING_RATE = 2e-3
WARMUP_STEPS = 20
HELD_OUT_BLOCKS = 256
HELD_OUT_SENTENCES = 200
LONGEST_SENTENCE = 30
ARMS = ("causal", "adapted", "scratch, same continuation", "scratch, same total")
MEASURES = {
    "continuation": "nats a token, 32 tokens after 32",
    "restoration": "nats a token, restored sentences",
    "chrf": "chrF of greedy answers",
}


@dataclass(frozen=True)
class Texts:
    """What is trained and scored on, as ids.

    Attributes:
      train_blocks, held_out_blocks: of BLOCK tokens; shape (blocks, BLOCK).
      train_pairs, held_out_pairs: `(source ids, target ids)`; each target ends with <eos>.
      held_out_sentences: `(source, target)` as texts.
    """

    tokenizer: object
    train_blocks: np.ndarray
    held_out_blocks: np.ndarray
    train_pairs: list[tuple[list[int], list[int]]]
    held_out_pairs: list[tuple[list[int], list[int]]]
    held_out_sentences: list[tuple[str, str]]


def read_texts(folder: Path) -> Texts:
    """Paragraphs of the files, every twentieth held out; the tokenizer is trained on the others."""
    paragraphs = [paragraph for file in sorted(folder.rglob("*")) for paragraph in _paragraphs(file)]
    held_out = paragraphs[::20]
    train = [paragraph for number, paragraph in enumerate(paragraphs) if number % 20]
    tokenizer = gemma_tokenizer(train[::4], VOCABULARY)
    sentences = _sentences(train[1::7], tokenizer)
    held_out_sentences = _sentences(held_out, tokenizer)[:HELD_OUT_SENTENCES]
    return Texts(
        tokenizer,
        _blocks(train, tokenizer),
        _blocks(held_out, tokenizer)[:HELD_OUT_BLOCKS],
        [_ids_of_pair(sentence, tokenizer) for sentence in sentences],
        [_ids_of_pair(sentence, tokenizer) for sentence in held_out_sentences],
        held_out_sentences,
    )


def _paragraphs(file: Path) -> list[str]:
    """The paragraphs of a text, or of the documents of JSON lines, that hold more than a heading."""
    if file.suffix == ".jsonl":
        documents = [json.loads(line)["text"] for line in file.read_text(encoding="utf-8").splitlines()]
    elif file.suffix == ".txt":
        documents = re.split(r"\n\s*\n", file.read_text(encoding="utf-8", errors="replace"))
    else:
        return []
    texts = [" ".join(document.split()) for document in documents]
    return [text for text in texts if len(text) > 200]


def _blocks(paragraphs: list[str], tokenizer) -> np.ndarray:
    """Paragraphs in a row, each ended, cut into blocks; a block begins wherever the one before ends."""
    ids: list[int] = []
    for row in tokenizer(paragraphs, add_special_tokens=False)["input_ids"]:
        ids += [*row, tokenizer.eos_token_id]
    return np.array(ids[: len(ids) // BLOCK * BLOCK]).reshape(-1, BLOCK)


def _sentences(paragraphs: list[str], tokenizer) -> list[tuple[str, str]]:
    """`(in lower case, without marks; as it was)` of short sentences."""
    pairs = []
    for paragraph in paragraphs:
        for sentence in re.split(r"(?<=[.?!]) ", paragraph):
            source = " ".join(re.findall(r"[a-z0-9]+", sentence.lower()))
            if len(source) > 20 and len(tokenizer(sentence)["input_ids"]) <= LONGEST_SENTENCE:
                pairs.append((source, sentence))
    return pairs


def _ids_of_pair(pair: tuple[str, str], tokenizer) -> tuple[list[int], list[int]]:
    source, target = tokenizer(list(pair), add_special_tokens=False)["input_ids"]
    return source, [*target, tokenizer.eos_token_id]


def cost_of_step(model) -> int:
    """Products of weights in an update of ROWS blocks, forwards and backwards."""
    config = model.config
    is_pair = config.is_encoder_decoder
    matrices = {name: p.numel() for name, p in model.named_parameters() if p.ndim == 2 and "layers." in name}
    of_encoder = sum(size for name, size in matrices.items() if ".encoder." in name)
    of_decoder = sum(size for name, size in matrices.items() if ".encoder." not in name)
    of_source = sum(size for name, size in matrices.items() if ".encoder." not in name and re.search("[kv]_proj", name))
    head = config.vocab_size * SIZES["hidden_size"]
    products = HALF * (of_encoder + of_source + of_decoder + head) if is_pair else BLOCK * (of_decoder + head)
    return 6 * ROWS * products


def loss_of_pairs(model, sources: list[list[int]], targets: list[list[int]]) -> tuple[torch.Tensor, int]:
    """`(nats over the targets, their tokens)`: in one row for a decoder, in two sequences for an encoder-decoder."""
    bos = model.config.bos_token_id
    pad = model.config.pad_token_id
    if model.config.is_encoder_decoder:
        inputs = _padded([[bos, *source] for source in sources], pad)
        outputs = _padded([[bos, *target[:-1]] for target in targets], pad)
        labels = _padded(targets, -100)
        mask = _padded([[1] * (len(source) + 1) for source in sources], 0)
        logits = model(input_ids=inputs, attention_mask=mask, decoder_input_ids=outputs, use_cache=False).logits
    else:
        rows = [[bos, *source, bos, *target] for source, target in zip(sources, targets, strict=True)]
        inputs = _padded([row[:-1] for row in rows], pad)
        ignored = [[-100] * (len(source) + 1) for source in sources]
        labels = _padded([[*row, *target] for row, target in zip(ignored, targets, strict=True)], -100)
        logits = model(input_ids=inputs, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    return loss, int((labels >= 0).sum())


def _padded(rows: list[list[int]], filler: int) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[filler] * (longest - len(row))] for row in rows])


def loss_of_blocks(model, blocks: np.ndarray) -> tuple[torch.Tensor, int]:
    """`(nats, tokens)` of a block's training: all of it for a decoder, the second half for an encoder-decoder."""
    if model.config.is_encoder_decoder:
        return loss_of_pairs(model, blocks[:, :HALF].tolist(), blocks[:, HALF:].tolist())
    starts = np.full((len(blocks), 1), model.config.bos_token_id)
    inputs = torch.from_numpy(np.concatenate([starts, blocks[:, :-1]], axis=1))
    logits = model(input_ids=inputs, use_cache=False).logits
    labels = torch.from_numpy(blocks)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    return loss, labels.numel()


def train(model, batches: Iterator, loss_of: Callable, steps: int, rate: float) -> None:
    """AdamW, warmed up, then a cosine to a tenth; gradients clipped at 1."""
    trained = [parameter for name, parameter in model.named_parameters() if "vision" not in name]
    optimizer = torch.optim.AdamW(trained, lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    model.train()
    for step in range(steps):
        share = step / steps
        factor = min((step + 1) / WARMUP_STEPS, 0.55 + 0.45 * math.cos(math.pi * share))
        for group in optimizer.param_groups:
            group["lr"] = rate * factor
        loss, tokens = loss_of(model, next(batches))
        (loss / tokens).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


def drawn_blocks(texts: Texts, seed: int) -> Iterator[np.ndarray]:
    """Batches of blocks, in an order that the seed decides."""
    rng = np.random.default_rng(seed)
    while True:
        yield texts.train_blocks[rng.integers(len(texts.train_blocks), size=ROWS)]


def drawn_pairs(texts: Texts, seed: int) -> Iterator[list]:
    """Batches of pairs, in an order that the seed decides."""
    rng = np.random.default_rng(seed)
    while True:
        yield [texts.train_pairs[number] for number in rng.integers(len(texts.train_pairs), size=ROWS)]


def pre_train(model, texts: Texts, steps: int, seed: int) -> None:
    """Trains on blocks; every seed has an order of its own for every phase."""
    train(model, drawn_blocks(texts, seed), loss_of_blocks, steps, PRE_TRAINING_RATE)


def nats_of_pairs(model, pairs: list) -> float:
    """Nats a target token over pairs."""
    total_loss = 0.0
    total_tokens = 0
    with torch.no_grad():
        for start in range(0, len(pairs), 64):
            sources, targets = zip(*pairs[start : start + 64], strict=True)
            loss, tokens = loss_of_pairs(model, list(sources), list(targets))
            total_loss += float(loss)
            total_tokens += tokens
    return total_loss / total_tokens


def answers(model, texts: Texts) -> list[str]:
    """Greedy answers for the held-out sentences, a row at a time for a decoder, whose rows would need padding."""
    config = model.config
    tokenizer = texts.tokenizer
    sources = [[config.bos_token_id, *source] for source, _ in texts.held_out_pairs]
    settings = {"max_new_tokens": LONGEST_SENTENCE, "do_sample": False, "eos_token_id": tokenizer.eos_token_id}
    if config.is_encoder_decoder:
        mask = _padded([[1] * len(source) for source in sources], 0)
        rows = model.generate(input_ids=_padded(sources, config.pad_token_id), attention_mask=mask, **settings)
        return tokenizer.batch_decode(rows, skip_special_tokens=True)
    texts_of_rows = []
    for source in sources:
        prompt = torch.tensor([[*source, config.bos_token_id]])
        row = model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), **settings)[0]
        texts_of_rows.append(tokenizer.decode(row[prompt.shape[1] :], skip_special_tokens=True))
    return texts_of_rows


def measure(model, texts: Texts, seed: int) -> dict[str, float]:
    """Scores the held-out blocks, then fine-tunes and scores the held-out sentences."""
    blocks = texts.held_out_blocks
    halves = [(block[:HALF].tolist(), block[HALF:].tolist()) for block in blocks]
    continuation = (
        nats_of_blocks(model, blocks) if not model.config.is_encoder_decoder else nats_of_pairs(model, halves)
    )

    def loss_of(model, pairs):
        sources, targets = zip(*pairs, strict=True)
        return loss_of_pairs(model, list(sources), list(targets))

    train(model, drawn_pairs(texts, seed), loss_of, FINE_TUNING_STEPS, FINE_TUNING_RATE)
    targets = [target for _, target in texts.held_out_sentences]
    return {
        "continuation": continuation,
        "restoration": nats_of_pairs(model, texts.held_out_pairs),
        "chrf": METRICS["chrf"](answers(model, texts), targets),
    }


@torch.no_grad()
def nats_of_blocks(model, blocks: np.ndarray) -> float:
    """A decoder's nats a token over the second halves of blocks, after their first halves."""
    starts = np.full((len(blocks), 1), model.config.bos_token_id)
    inputs = torch.from_numpy(np.concatenate([starts, blocks[:, :-1]], axis=1))
    logits = model(input_ids=inputs, use_cache=False).logits[:, HALF:]
    labels = torch.from_numpy(blocks[:, HALF:])
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()))


def run_seed(texts: Texts, folder: Path, seed: int) -> dict:
    """`{arm: {measure: number}}`, and processor seconds and costs, of one seed."""
    decoder = gemma_decoder(seed=seed, vocab_size=len(texts.tokenizer), **SIZES)
    pre_train(decoder, texts, DECODER_STEPS, seed=10 * seed)
    source = folder / f"decoder-{seed}"
    adapted_folder = folder / f"adapted-{seed}"
    decoder.save_pretrained(source)
    texts.tokenizer.save_pretrained(source)
    with contextlib.redirect_stdout(io.StringIO()):
        run_cli("adapt", "--model_name_or_path", source, "--output_dir", adapted_folder, "--check")
    of_decoder = cost_of_step(decoder)
    continuation_cost = CONTINUATION_STEPS * of_decoder
    decoder_cost = DECODER_STEPS * of_decoder
    results = {}
    for arm in ARMS:
        started = time.process_time()
        torch.manual_seed(seed)
        if arm == "causal":
            model = AutoModelForCausalLM.from_pretrained(source)
        else:
            model = AutoModelForSeq2SeqLM.from_pretrained(adapted_folder)
        if arm.startswith("scratch"):
            model = AutoModelForSeq2SeqLM.from_config(model.config)
        cost = continuation_cost + (decoder_cost if arm == "scratch, same total" else 0)
        steps = round(cost / cost_of_step(model))
        pre_train(model, texts, steps, seed=10 * seed + 1)
        results[arm] = measure(model, texts, seed=10 * seed + 2)
        results[arm] |= {"steps": steps, "cost": steps * cost_of_step(model)}
        results[arm]["seconds"] = time.process_time() - started
        print(seed, arm, results[arm], file=sys.stderr, flush=True)
    return results


def table(results: list[dict], copying: float) -> str:
    """Markdown: a line an arm, mean and standard deviation over the seeds."""
    lines = [
        f"| | {' | '.join(MEASURES.values())} | steps | 1e9 products | processor seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for arm in ARMS:
        runs = [result[arm] for result in results]
        cells = [_mean_and_deviation([run[name] for run in runs]) for name in MEASURES]
        means = [statistics.mean(run[name] for run in runs) for name in ("steps", "cost", "seconds")]
        lines.append(f"| {arm} | {' | '.join(cells)} | {means[0]:.0f} | {means[1] / 1e9:.0f} | {means[2]:.0f} |")
    lines.append(f"| copying the input | | | {copying:.2f} | | | |")
    return "\n".join(lines)


def _mean_and_deviation(numbers: list[float]) -> str:
    deviation = f" ± {statistics.stdev(numbers):.3f}" if len(numbers) > 1 else ""
    return f"{statistics.mean(numbers):.3f}{deviation}"


def main(argv=None) -> int:
    """Runs seed after seed, keeps what is finished, and prints the table of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, type=Path, help="a folder of .txt and .jsonl files")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--output_dir", type=Path, default=Path("runs/adapted"))
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    options.output_dir.mkdir(parents=True, exist_ok=True)
    texts = read_texts(options.text)
    results = []
    for seed in options.seeds:
        file = options.output_dir / f"seed-{seed}.json"
        if not file.is_file():
            file.write_text(json.dumps(run_seed(texts, options.output_dir, seed), indent=1) + "\n", encoding="utf-8")
        results.append(json.loads(file.read_text(encoding="utf-8")))
    sources, targets = zip(*texts.held_out_sentences, strict=True)
    print(table(results, METRICS["chrf"](list(sources), list(targets))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
