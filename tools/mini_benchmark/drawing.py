"""Draws from a seeded generator, and the joining of words to a sentence.

    >>> pick(random.Random(1), ["at noon", "at dawn", "at night"])
    'at noon'

Every draw comes from `random.Random(seed).random()`, whose sequence Python promises to keep.
"""


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
    """pick_two(rng, THINGS) -> ('lamp', 'parcel'), never the same twice"""
    first = int(rng.random() * len(options))
    step = 1 + int(rng.random() * (len(options) - 1))
    return options[first], options[(first + step) % len(options)]


def shuffled(rng, items) -> list:
    """shuffled(rng, [1, 2, 3]) -> [3, 1, 2]"""
    keys = [rng.random() for _ in items]
    return [items[i] for i in sorted(range(len(items)), key=keys.__getitem__)]


def sentence(text, end=".") -> str:
    """sentence("at noon , the lamp broke") -> 'At noon, the lamp broke.'"""
    text = " ".join(text.replace(" ,", ",").split())
    return text[0].upper() + text[1:] + end


def article(noun) -> str:
    """article("author") -> 'an author'"""
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def between(rng, least, most) -> int:
    """between(rng, 2, 4) -> 2, 3 or 4"""
    return least + int(rng.random() * (most - least + 1))


def some(rng, options, count) -> list:
    """some(rng, TRAITS, 2) -> ['proud', 'old'], never the same twice"""
    return shuffled(rng, options)[:count]


def listed(items) -> str:
    """listed(["a pear", "a lamp", "a saw"]) -> 'a pear, a lamp and a saw'"""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def counted(number, noun) -> str:
    """counted(3, "lamp") -> '3 lamps'; counted(1, "lamp") -> 'one lamp'"""
    words = {0: "no", 1: "one", 2: "two"}
    plural = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{words.get(number, number)} {noun}{plural}"
