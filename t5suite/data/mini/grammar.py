"""The grammar of the bundled benchmark `mini`: three tasks and a text, written from a seed.

    >>> rows("sentiment")["train"][0]
    {'sentence': 'On the whole, the garden was not perfect.', 'label': 0, 'idx': 0}

    python -m t5suite.data.mini.grammar --check     do the bundled files equal what the grammar writes?
    python -m t5suite.data.mini.grammar --write     write them anew

What a row means never follows from which words it has, only from how they are put together:

    sentiment    which clause of two is the main one, what is negated, who is agreed with
    entailment   quantifiers, negation, antonyms, hypernyms, and who did it to whom
    similarity   how many of five roles (agent, verb, patient, place, time) agree in meaning, from 0 to 5

For each label the words have (nearly) the same frequencies, so that a bag of words does little better than guessing.
Every draw comes from `random.Random(seed).random()`, whose sequence Python promises to keep.
"""

import argparse
import gzip
import json
import random
import sys
from pathlib import Path

SEED = 2026
NUM_ROWS = {"train": 8000, "validation": 400, "test": 200}
NUM_LINES = {"train": 5000, "validation": 250}
UNLABELLED = {"sentiment": -1, "entailment": -1, "similarity": -1.0}

# ---------------------------------------------------------------------------------------------------- the words

GOOD = [
    "wonderful",
    "excellent",
    "delightful",
    "superb",
    "impressive",
    "charming",
    "lovely",
    "brilliant",
    "memorable",
    "pleasant",
    "terrific",
    "splendid",
    "marvellous",
    "fantastic",
    "enjoyable",
    "outstanding",
    "remarkable",
    "perfect",
    "great",
    "beautiful",
]
BAD = [
    "awful",
    "terrible",
    "dreadful",
    "disappointing",
    "poor",
    "horrible",
    "bad",
    "unpleasant",
    "mediocre",
    "forgettable",
    "annoying",
    "boring",
    "dull",
    "miserable",
    "shabby",
    "sloppy",
    "weak",
    "tedious",
    "lousy",
    "ugly",
]
THINGS = [
    "soup",
    "service",
    "coffee",
    "dessert",
    "menu",
    "plot",
    "acting",
    "ending",
    "music",
    "dialogue",
    "room",
    "bed",
    "view",
    "lobby",
    "breakfast",
    "cover",
    "story",
    "chapter",
    "style",
    "cast",
    "waiter",
    "garden",
    "pool",
    "concert",
    "sound",
    "stage",
]
OPENERS = [
    "to be honest",
    "in my opinion",
    "on our last visit",
    "this time",
    "on the whole",
    "as far as I can tell",
    "for once",
    "last weekend",
]
JUDGES = ["my friends", "the critics", "our guests", "many people", "the papers", "the reviewers"]
NEGATIONS = ["was not", "was never", "was hardly", "was far from", "was anything but"]
# Below a half, so that the words alone say a little: without that hint a small model takes ten times as long to learn.
NEGATED = 0.3
RIGHT = 0.6
CONTRAST = 0.7
DEGREES = ["", "", "very ", "really ", "quite ", "rather ", "truly "]

# One concept a line: the usual word, then its synonym.
PEOPLE = [
    ("doctor", "physician"),
    ("lawyer", "attorney"),
    ("teacher", "instructor"),
    ("farmer", "grower"),
    ("sailor", "seaman"),
    ("soldier", "trooper"),
    ("thief", "robber"),
    ("author", "writer"),
    ("cook", "chef"),
    ("singer", "vocalist"),
    ("king", "monarch"),
    ("student", "pupil"),
    ("guard", "watchman"),
    ("merchant", "trader"),
    ("priest", "clergyman"),
    ("tailor", "dressmaker"),
]
PLACES = [
    ("in the forest", "in the woods"),
    ("at the harbour", "at the port"),
    ("in the shop", "in the store"),
    ("on the road", "on the street"),
    ("near the house", "near the cottage"),
    ("in the village", "in the hamlet"),
    ("by the river", "by the stream"),
    ("at the hotel", "at the inn"),
]
TIMES = [
    ("at noon", "at midday"),
    ("at dawn", "before sunrise"),
    ("at night", "after dark"),
    ("in autumn", "in the fall"),
    ("last week", "a week ago"),
    ("in the evening", "after sunset"),
    ("on Sunday", "at the weekend"),
    ("in May", "in spring"),
]
# past form, base form, synonym of the past form; each pair of lines are antonyms.
VERBS = [
    ("praised", "praise", "commended"),
    ("criticised", "criticise", "faulted"),
    ("helped", "help", "assisted"),
    ("hindered", "hinder", "obstructed"),
    ("loved", "love", "adored"),
    ("hated", "hate", "despised"),
    ("trusted", "trust", "believed"),
    ("doubted", "doubt", "distrusted"),
    ("hired", "hire", "employed"),
    ("dismissed", "dismiss", "fired"),
    ("attacked", "attack", "assaulted"),
    ("defended", "defend", "protected"),
    ("noticed", "notice", "spotted"),
    ("ignored", "ignore", "overlooked"),
    ("obeyed", "obey", "heeded"),
    ("defied", "defy", "disobeyed"),
]
KINDS = {
    "animal": ["horse", "goat", "donkey", "dog"],
    "vehicle": ["wagon", "bicycle", "carriage", "truck"],
    "fruit": ["pear", "melon", "peach", "lemon"],
    "tool": ["hammer", "spade", "saw", "drill"],
    "weapon": ["sword", "dagger", "rifle", "spear"],
}
DEALS = [("bought", "buy"), ("sold", "sell"), ("found", "find"), ("lost", "lose"), ("stole", "steal"), ("hid", "hide")]
REASONS = [
    "in secret",
    "in public",
    "without delay",
    "without a reason",
    "for money",
    "for a friend",
    "out of kindness",
    "out of fear",
]
TRAITS = ["old", "young", "tall", "quiet", "proud", "clever", "poor", "rich", "tired", "cheerful"]

# ------------------------------------------------------------------------------------------------------- drawing


def pick(rng, options):
    """pick(rng, ["at noon", "at dawn"]) -> 'at dawn'"""
    return options[int(rng.random() * len(options))]


def chance(rng, probability) -> bool:
    """chance(rng, 0.25) -> True once in four draws"""
    return rng.random() < probability


def pick_weighted(rng, weights: dict):
    """pick_weighted(rng, {"every": 3, "some": 1}) -> 'every', three times in four"""
    draw = rng.random() * sum(weights.values())
    for option, weight in weights.items():
        draw -= weight
        if draw < 0:
            return option
    return option


def pick_two(rng, options):
    """pick_two(rng, THINGS) -> ('soup', 'service'), never the same twice"""
    first = int(rng.random() * len(options))
    step = 1 + int(rng.random() * (len(options) - 1))
    return options[first], options[(first + step) % len(options)]


def shuffled(rng, items) -> list:
    """shuffled(rng, [1, 2, 3]) -> [3, 1, 2]"""
    keys = [rng.random() for _ in items]
    return [items[i] for i in sorted(range(len(items)), key=keys.__getitem__)]


def sentence(text) -> str:
    """sentence("at noon , the cook sang") -> 'At noon, the cook sang.'"""
    text = " ".join(text.replace(" ,", ",").split())
    return text[0].upper() + text[1:] + "."


def article(noun) -> str:
    """article("animal") -> 'an animal'"""
    return ("an " if noun[0] in "aeiou" else "a ") + noun


# ----------------------------------------------------------------------------------------------------- sentiment


def opinion(rng, thing, positive: bool) -> str:
    """opinion(rng, "soup", True) -> 'the soup was very good' or 'the soup was not bad'"""
    negated = chance(rng, NEGATED)
    adjective = pick(rng, GOOD if positive != negated else BAD)
    verb = pick(rng, NEGATIONS) if negated else "was " + pick(rng, DEGREES)
    return f"the {thing} {verb} {adjective}"


def plain(rng, positive):
    """'To be honest, the soup was not bad.'"""
    return f"{pick(rng, OPENERS)} , {opinion(rng, pick(rng, THINGS), positive)}"


def concession(rng, positive):
    """'Although the soup was bad, the service was wonderful.': the main clause decides."""
    thing, other = pick_two(rng, THINGS)
    main, aside = opinion(rng, thing, positive), opinion(rng, other, positive != chance(rng, CONTRAST))
    orders = [
        f"although {aside} , {main}",
        f"{aside} , but what counts is that {main}",
        f"{main} , and it matters little that {aside}",
    ]
    return pick(rng, orders)


def despite(rng, positive):
    """'Despite the awful soup, the service was wonderful.'"""
    thing, other = pick_two(rng, THINGS)
    main, aside = opinion(rng, thing, positive), f"the {pick(rng, BAD if positive else GOOD)} {other}"
    return pick(rng, [f"despite {aside} , {main}", f"{main} , despite {aside}"])


def report(rng, positive):
    """'The critics said that the plot was dull, but they were wrong.'"""
    right = chance(rng, RIGHT)
    verdict = pick(rng, [("and they were right", "but they were wrong"), ("and I agree", "but I disagree")])
    claim = opinion(rng, pick(rng, THINGS), positive == right)
    return f"{pick(rng, JUDGES)} said that {claim} , {verdict[0 if right else 1]}"


def sentiment(rng, label) -> dict:
    """sentiment(rng, 1) -> {'sentence': 'Although the soup was bad, the service was wonderful.'}"""
    shape = pick(rng, [plain, concession, despite, report])
    return {"sentence": sentence(shape(rng, label == 1))}


# ---------------------------------------------------------------------------------------------------- entailment

ENTAILMENT, NEUTRAL, CONTRADICTION = 0, 1, 2

# (premise, hypothesis): weight, by label. Under each label each side has every word at the same frequency; for the
# neutral label this needs the rows about something else, which `quantified` and its like mix in.
QUANTIFIERS = [
    {
        ("every", "every"): 2,
        ("every", "some"): 1,
        ("some", "some"): 1,
        ("no", "no"): 2,
        ("no", "not every"): 1,
        ("not every", "not every"): 1,
    },
    {
        ("some", "every"): 1,
        ("some", "not every"): 1,
        ("not every", "some"): 1,
        ("not every", "no"): 1,
    },
    {
        ("every", "no"): 1,
        ("every", "not every"): 2,
        ("some", "no"): 1,
        ("no", "some"): 2,
        ("no", "every"): 1,
        ("not every", "every"): 1,
    },
]
# (premise negated, hypothesis negated, hypothesis has the antonym): weight, by label.
ANTONYMS = [
    {(0, 0, 0): 2, (0, 1, 1): 1, (1, 1, 0): 1},
    {(1, 0, 1): 1, (1, 1, 1): 1},
    {(0, 0, 1): 1, (0, 1, 0): 2, (1, 0, 0): 1},
]
# (premise negated, premise names the kind, hypothesis negated, hypothesis names the kind): weight, by label.
HYPERNYMS = [
    {(0, 0, 0, 1): 1, (1, 1, 1, 0): 1},
    {(0, 1, 0, 0): 1, (1, 0, 1, 1): 1, (0, 1, 1, 0): 1, (1, 0, 0, 1): 1},
    {(0, 0, 1, 1): 1, (1, 1, 0, 0): 1},
]


def act(rng, verb, negated) -> str:
    """act(rng, ("praised", "praise"), True) -> 'did not praise' or 'never praised'"""
    past, base = verb[:2]
    return pick(rng, [f"did not {base}", f"never {past}"]) if negated else past


def strangers(rng, agent, patient):
    """strangers(rng, "cook", "king") -> ('king', 'cook'), or one of the two is somebody else."""
    other = pick(rng, [usual for usual, _ in PEOPLE if usual not in (agent, patient)])
    return pick(rng, [(patient, agent), (patient, agent), (other, patient), (agent, other)])


def people(rng):
    """people(rng) -> ('cook', 'king')"""
    (agent, _), (patient, _) = pick_two(rng, PEOPLE)
    return agent, patient


def adjunct(rng, besides=None) -> str:
    """adjunct(rng) -> 'at the harbour'"""
    return pick(rng, [usual for usual, _ in PLACES + TIMES if usual != besides])


def quantified(rng, label, who, others, unrelated):
    """'every cook praised the king' entails 'some cook praised the king'"""
    verb, _, _ = pick(rng, VERBS)
    first, second = pick_weighted(rng, QUANTIFIERS[label])
    if unrelated:
        first, second = pick(rng, ["every", "no"]), pick(rng, ["every", "some", "no", "not every"])
    return (
        f"{first} {who[0]} {verb} the {pick(rng, TRAITS)} {who[1]}",
        f"{second} {others[0]} {verb} the {others[1]}",
    )


def opposed(rng, label, who, others, unrelated):
    """'the cook praised the king' entails 'the cook did not criticise the king'"""
    line = int(rng.random() * len(VERBS))
    first, second, antonym = pick_weighted(rng, ANTONYMS[label])
    if unrelated:
        first, second, antonym = False, chance(rng, 0.5), chance(rng, 0.5)
    return (
        f"the {pick(rng, TRAITS)} {who[0]} {act(rng, VERBS[line], first)} the {who[1]}",
        f"the {others[0]} {act(rng, VERBS[line ^ 1 if antonym else line], second)} the {others[1]}",
    )


def dealt(rng, label, who, others, unrelated):
    """'the cook bought a horse' entails 'the cook bought an animal'"""
    verb, kind = pick(rng, DEALS), pick(rng, list(KINDS))
    example = pick(rng, KINDS[kind])
    first, general, second, general2 = pick_weighted(rng, HYPERNYMS[label])
    if unrelated:
        first, general, second, general2 = [chance(rng, 0.5) for _ in range(4)]
    return (
        f"the {pick(rng, TRAITS)} {who[0]} {act(rng, verb, first)} {article(kind if general else example)}",
        f"the {others[0]} {act(rng, verb, second)} {article(kind if general2 else example)}",
    )


def entailment(rng, label) -> dict:
    """entailment(rng, 2) -> {'premise': 'At noon, no cook helped the king.', 'hypothesis': 'Every cook ...'}

    Three neutral rows in four are about somebody else, another time or place, or a reason that the premise omits.
    """
    unrelated = pick(rng, ["people", "where", "reason", "reason"]) if label == NEUTRAL and chance(rng, 0.75) else None
    who, where, reason = people(rng), adjunct(rng), pick(rng, REASONS) if chance(rng, 0.3) else ""
    others = strangers(rng, *who) if unrelated == "people" else who
    where2 = adjunct(rng, besides=where) if unrelated == "where" else where
    reason2 = reason
    if unrelated == "reason":
        reason, reason2 = "", pick(rng, REASONS)
    first, second = pick(rng, [quantified, opposed, dealt])(rng, label, who, others, unrelated)
    return {
        "premise": sentence(f"{where} , {first} {reason}"),
        "hypothesis": sentence(f"{second} {reason2} {where2}"),
    }


# ---------------------------------------------------------------------------------------------------- similarity

# One concept a line, in two words. Every phrase of a role begins alike, so that function words tell nothing.
ROLES = {
    "agent": PEOPLE[:8],
    "verb": [(past, synonym) for past, _, synonym in VERBS[:8]],
    "patient": PEOPLE[:8],
    "place": [("forest", "woods"), ("shop", "store"), ("village", "hamlet"), ("harbour", "port"), ("hotel", "inn")],
    "time": [("noon", "midday"), ("dawn", "sunrise"), ("dusk", "sunset"), ("night", "midnight")],
}
MAX_SHARED = 2


def scene(rng) -> dict:
    """scene(rng) -> {'agent': 3, 'verb': 0, 'patient': 7, 'place': 1, 'time': 4}: a line of each role's table"""
    lines = {role: int(rng.random() * len(table)) for role, table in ROLES.items()}
    lines["agent"], lines["patient"] = pick_two(rng, range(len(ROLES["agent"])))
    return lines


def other_scene(rng, first: dict, kept: set, num_crossed: int) -> dict:
    """other_scene(rng, first, {'place'}, 2) -> a scene that agrees with `first` in the roles `kept` alone.

    Crossed people change sides: the first scene's patient acts (1), or the two swap (2).
    """
    crossing = [{}, {"agent": first["patient"]}, {"agent": first["patient"], "patient": first["agent"]}][num_crossed]
    while True:
        second = scene(rng) | {role: first[role] for role in kept} | crossing
        crossed = (second["agent"] == first["patient"]) + (second["patient"] == first["agent"])
        agreeing = {role for role in ROLES if second[role] == first[role]}
        if agreeing == kept and crossed == num_crossed and second["agent"] != second["patient"]:
            return second


def tell(lines: dict, words: dict) -> str:
    """'The cook praised the king in the village at noon.'; words[role] says which of the two words is taken"""
    said = {role: ROLES[role][line][words[role]] for role, line in lines.items()}
    return sentence("the {agent} {verb} the {patient} in the {place} at {time}".format(**said))


def similarity(rng, num_kept) -> dict:
    """similarity(rng, 4) -> two events that agree in four of five roles: {'sentence1', 'sentence2', 'label': 4.0}

    How many words the two sentences share says nothing about how many roles agree: no, one or both people go by the
    same word in both, equally often at every label - in the same role, or in the other one's. All else that agrees is
    said in other words.
    """
    num_shared = int(rng.random() * (MAX_SHARED + 1))
    kept = set(shuffled(rng, list(ROLES))[:num_kept])
    while num_shared == 2 and len(kept & {"agent", "patient"}) == 1:
        kept = set(shuffled(rng, list(ROLES))[:num_kept])
    people_kept = shuffled(rng, sorted(kept & {"agent", "patient"}))
    num_crossed = 0 if people_kept else num_shared
    first = scene(rng)
    second = other_scene(rng, first, kept, num_crossed)
    words = {role: int(chance(rng, 0.5)) for role in ROLES}
    words2 = {role: 1 - words[role] if role in kept else int(chance(rng, 0.5)) for role in ROLES}
    words2 |= {role: words[role] for role in people_kept[:num_shared]}
    if num_crossed:
        words2["agent"] = words["patient"]
    if num_crossed == 2:
        words2["patient"] = words["agent"]
    return {"sentence1": tell(first, words), "sentence2": tell(second, words2), "label": float(num_kept)}


# --------------------------------------------------------------------------------------------------- rows, files

# task: the function that writes a row, and the values of its second argument, all equally frequent
TASKS = {
    "sentiment": (sentiment, [0, 1]),
    "entailment": (entailment, [ENTAILMENT, NEUTRAL, CONTRADICTION]),
    "similarity": (similarity, [0, 1, 2, 3, 4, 5]),
}


def rows(task) -> dict:
    """rows("sentiment") -> {'train': [{'sentence': ..., 'label': 1, 'idx': 0}, ...], 'validation': ..., 'test': ...}"""
    write, classes = TASKS[task]
    rng = random.Random(f"{SEED} {task}")
    seen, splits = set(), {}
    for split, num_rows in NUM_ROWS.items():
        drawn = [fresh(rng, write, classes[i % len(classes)], seen) for i in range(num_rows)]
        splits[split] = [row | {"idx": i} for i, row in enumerate(shuffled(rng, drawn))]
    for row in splits["test"]:
        row["label"] = UNLABELLED[task]
    return splits


def fresh(rng, write, label, seen: set) -> dict:
    """fresh(rng, sentiment, 1, seen) -> a row whose text is not in `seen` yet; adds it there"""
    while True:
        row = write(rng, label)
        text = tuple(value for value in row.values() if isinstance(value, str))
        if text not in seen:
            seen.add(text)
            return row if "label" in row else row | {"label": label}


def text_lines(split="train") -> list:
    """text_lines()[0] -> 'At noon, the cook praised the king. ...': short documents for pre-training, one a line"""
    rng = random.Random(f"{SEED} text {split}")
    return [pick(rng, [review, tale])(rng) for _ in range(NUM_LINES[split])]


def review(rng) -> str:
    """Two to four opinions of the same tendency."""
    label = pick(rng, [0, 1])
    return " ".join(sentiment(rng, label)["sentence"] for _ in range(pick(rng, [2, 3, 4])))


def tale(rng) -> str:
    """Three to five events among the same two people; every word as at first."""
    start, sentences = scene(rng), []
    words = {role: int(chance(rng, 0.3)) for role in ROLES}
    for _ in range(pick(rng, [3, 4, 5])):
        lines = scene(rng) | {role: start[role] for role in ("agent", "patient", pick(rng, ["place", "time"]))}
        sentences.append(tell(lines, words))
    return " ".join(sentences)


def contents() -> dict:
    """contents() -> {'sentiment/train.jsonl.gz': '{"sentence": ...}\\n...', ..., 'text/train.txt.gz': ...}"""
    files = {}
    for task in TASKS:
        for split, members in rows(task).items():
            files[f"{task}/{split}.jsonl.gz"] = "".join(json.dumps(row) + "\n" for row in members)
    for split in NUM_LINES:
        files[f"text/{split}.txt.gz"] = "".join(line + "\n" for line in text_lines(split))
    return files


def write_files(folder: Path):
    """Writes every file of `contents()` under `folder`; the same bytes each time (gzip's clock and name left out)."""
    for name, text in contents().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode(), mtime=0))


def stale_files(folder: Path) -> list:
    """stale_files(folder) -> ['sentiment/test.jsonl.gz']: the files that are missing or hold something else"""
    return [name for name, text in contents().items() if read_text(folder / name) != text]


def read_text(path: Path):
    """The text of a .gz file, or None where there is no such file."""
    return gzip.decompress(path.read_bytes()).decode() if path.exists() else None


def main(argv=None) -> int:
    """`--check` exits with 1 where a bundled file differs from the grammar; `--write` mends that."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent, help="where the files lie")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="compare the files with the grammar")
    action.add_argument("--write", action="store_true", help="write the files")
    options = parser.parse_args(argv)
    if options.write:
        write_files(options.folder)
    stale = stale_files(options.folder)
    for name in stale:
        print(f"{name}: not what the grammar writes; run with --write", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
