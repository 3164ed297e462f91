"""Rows that a small model reads before it is adapted: the bundled benchmark's skills, asked in other words.

    >>> question(random.Random(2), set())["output"] in ANSWERS
    True
    >>> write_rows("runs/rows")     # runs/rows/{questions,continuations}/{train,val}/rows.jsonl

`questions` ask about freshly drawn sentences ("... Would you buy there again?" - "I would not") in words that the
benchmark's prompts and labels do not have. `continuations` break a text off and go on with it, as the language-model
adaptation of prompt tuning's authors does (arXiv:2104.08691, section 3.1.1): half of the texts are judgements ("... I
think that this is a negative" - "opinion."), which say the benchmark's label words, as a web corpus says them; some
are stories of the bundled text; the rest are questions. No sentence of the benchmark is among them.
"""

import gzip
import json
import random
import re
from pathlib import Path

from tools.mini_benchmark import FOLDER
from tools.mini_benchmark.documents import documents
from tools.mini_benchmark.drawing import between, pick, pick_weighted
from tools.mini_benchmark.entailment_rows import entailment
from tools.mini_benchmark.sentiment_rows import sentiment
from tools.mini_benchmark.similarity_rows import similarity

NUM_ROWS = {"train": 96_000, "val": 600}
INFERENCES = ["it is right", "no one can say", "it is wrong"]
ANSWERS = ["I would", "I would not", *INFERENCES, *"012345"]
STORY_WORDS, STORY_REST = 40, 10
# where a judgement is broken off: before what it says of the sentences
VERDICT = re.compile(r" (?=positive|negative|neutral|an entailment|a contradiction|\d\.\d)")


def question(rng, known: set) -> dict:
    """question(rng, set()) -> {"input": "... Would you buy there again?", "output": "I would not"}"""
    kind = pick_weighted(rng, {"opinion": 1, "inference": 2, "likeness": 1})
    first, second, label = _fresh(rng, kind, known)
    if kind == "opinion":
        return {"input": f"{first} Would you buy there again?", "output": ["I would not", "I would"][label]}
    if kind == "inference":
        return {"input": f"They say: {first} And so, is it right to say: {second}", "output": INFERENCES[label]}
    return {"input": f"{first} {second} How many things are like one another?", "output": str(label)}


def judgement(rng, known: set) -> dict:
    """judgement(rng, set()) -> {"input": "... I think that this is a", "output": "negative opinion."}"""
    kind = pick_weighted(rng, {"opinion": 1, "inference": 2, "likeness": 1})
    first, second, label = _fresh(rng, kind, known)
    if kind == "opinion":
        word = ["negative", "positive"][label]
        said = [f"This opinion is {word}.", f"I think that this is a {word} opinion.", f"That was {word}."]
        text = f"{first} {pick(rng, said)}"
    elif kind == "inference":
        word = ["an entailment", "neutral", "a contradiction"][label]
        said = ["{0} {1} This is {2}.", "{0} And so: {1} That is {2}.", "{0} They say: {1} I think that this is {2}."]
        text = pick(rng, said).format(first, second, word)
    else:
        said = ["{0} {1} The similarity of the two is {2}.0.", "{0} And: {1} Their similarity is {2}.0."]
        text = pick(rng, said).format(first, second, label)
    start, rest = VERDICT.split(text, maxsplit=1)
    return {"input": start, "output": rest}


def story(rng, texts: list[str]) -> dict:
    """story(rng, ["There was an old driver."]) -> {"input": "There was", "output": "an old driver."}"""
    words = pick(rng, texts).split()
    cut = between(rng, 1, len(words) - 1)
    rest = words[cut : cut + STORY_REST]
    return {"input": " ".join(words[max(0, cut - STORY_WORDS) : cut]), "output": " ".join(rest)}


def write_rows(folder) -> dict[str, Path]:
    """Writes both sets; {"questions": folder, "continuations": folder}."""
    known, stories = benchmark_sentences(), documents("train")
    kinds = {"questions": {question: 1}, "continuations": {question: 4, judgement: 4, story: 1}}
    folders = {name: Path(folder) / name for name in kinds}
    for name, weights in kinds.items():
        for split, count in NUM_ROWS.items():
            rng = random.Random(f"{name} {split}")
            drawn = (pick_weighted(rng, weights) for _ in range(count))
            rows = [kind(rng, stories if kind is story else known) for kind in drawn]
            path = folders[name] / split / "rows.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folders


def benchmark_sentences() -> set[tuple]:
    """Every row's sentences of the bundled benchmark, all splits; none of them is read before."""
    known = set()
    for path in sorted(FOLDER.glob("*/*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            known.update(tuple(v for v in json.loads(line).values() if isinstance(v, str)) for line in lines)
    return known


def _fresh(rng, kind: str, known: set) -> tuple[str, str, int]:
    """One or two sentences and their label, drawn until the benchmark does not hold them."""
    draw, num_labels = {"opinion": (sentiment, 2), "inference": (entailment, 3), "likeness": (similarity, 6)}[kind]
    while True:
        label = between(rng, 0, num_labels - 1)
        texts = tuple(value for value in draw(rng, label).values() if isinstance(value, str))
        if texts not in known:
            return texts[0], texts[-1], label
