"""Reviews, counts, recipes, guides, comparisons, conclusions and rhymes: text with an order in it.

    >>> sums(random.Random(2))
    ['As you know, 9 and 6 are 15.', 'And 9 and 7 are 16.', 'And 9 and 8 are 17.']

Every function draws one document, a list of sentences, from a seeded generator. Numbers are counted up, amounts grow
together, properties come back, and a conclusion follows from what was said. All words are pieces of the bundled
tokenizer.
"""

import itertools

from tools.mini_benchmark.drawing import (
    article,
    between,
    chance,
    counted,
    listed,
    pick,
    pick_two,
    sentence,
    shuffled,
    some,
)
from tools.mini_benchmark.sentiment_rows import sentiment
from tools.mini_benchmark.stories import ROLES, WHERE, pronouns_of
from tools.mini_benchmark.words import BAD, GOOD, KINDS, TRAITS

HOUSES = ["shop", "house", "store", "hotel"]
ROOMS = ["garden", "window", "counter", "door", "view", "menu", "breakfast", "roof", "price"]
GRADED = ["clever", "tired", "proud", "quiet", "cheerful", "honest"]  # compared with "more"
MOST = 20  # numbers stay below, so that they are two pieces or three


def review(rng) -> list:
    """Two to ten opinions of the same tendency, and a verdict on the whole."""
    label, house = between(rng, 0, 1), pick(rng, [*HOUSES, "website", "delivery"])
    opinions = [sentiment(rng, label)["sentence"] for _ in range(between(rng, 2, 10))]
    end = "I would buy there again" if label else "I would not buy there again"
    return [*opinions, sentence(f"on the whole , the {house} was {pick(rng, GOOD if label else BAD)} , and {end}")]


def ledger(rng) -> list:
    """'In May, the clerk had 3 phones.', 'She bought two phones.', 'And now she had 5 phones.'"""
    role, thing = pick(rng, ROLES), pick(rng, [thing for things in KINDS.values() for thing in things])
    subject, number = pronouns_of(rng, role)[0], between(rng, 1, 6)
    said = [sentence(f"in May , the {role} had {counted(number, thing)}")]
    for _ in range(between(rng, 2, 12)):
        grows = number < 3 or (number < MOST - 4 and chance(rng, 0.6))
        change = between(rng, 1, 4 if grows else min(number, 4))
        number += change if grows else -change
        act = pick(rng, ["bought", "found"] if grows else ["sold", "lost"])
        said.append(sentence(f"{subject} {act} {counted(change, thing)}"))
        said.append(sentence(f"and now {subject} had {counted(number, thing)}"))
    return said


def sums(rng) -> list:
    """'As you know, 3 and 4 are 7.', 'And 3 and 5 are 8.': one number stays, the other is counted up"""
    fixed, first = between(rng, 1, 9), between(rng, 1, 6)
    lines = [f"{fixed} and {other} are {fixed + other}" for other in range(first, first + between(rng, 3, 8))]
    return [sentence(f"as you know , {lines[0]}"), *[sentence(f"and {line}") for line in lines[1:]]]


def recipe(rng) -> list:
    """So much fruit for two people, twice as much for four, and what never to use."""
    dish, fruits = pick(rng, ["soup", "dessert", "breakfast"]), some(rng, KINDS["fruit"], between(rng, 2, 4))
    taste, amounts = pick(rng, GOOD), [between(rng, 1, 3) for _ in fruits]
    used = list(zip(amounts, fruits))[: max(1, len(fruits) - 1)]
    said = [f"to make {article(taste)} {dish} for two people , take {listed([counted(n, one) for n, one in used])}"]
    for times in range(2, between(rng, 3, 5)):
        said.append(f"for {2 * times} people , take {listed([counted(n * times, one) for n, one in used])}")
    said.append(f"but never use {article(fruits[-1])} , because {article(fruits[-1])} would make the {dish} ")
    said[-1] += pick(rng, BAD)
    said.append(f"the {dish} is {taste} with {listed([article(one) for _, one in used])}")
    return [sentence(line) for line in said]


def guide(rng) -> list:
    """Houses, where they are and how their rooms are; then which one to go to for what."""
    houses = some(rng, HOUSES, between(rng, 1, 3))
    said, advice = [], []
    for house, where in zip(houses, some(rng, ["the river", "the station", "the road"], 3)):
        rooms = some(rng, ROOMS, between(rng, 2, 4))
        said.append(f"near {where} there is {article(house)} with {listed([article(room) for room in rooms])}")
        for room in rooms:
            good = chance(rng, 0.6)
            adjective = pick(rng, GOOD if good else BAD)
            said.append(f"the {room} of the {house} near {where} is {pick(rng, ['', 'very', 'quite'])} {adjective}")
            if good:
                advice.append(f"to have {article(adjective)} {room} , go to the {house} near {where}")
            else:
                advice.append(f"in the {house} near {where} , you will not like the {room} , which is {adjective}")
    return [sentence(line) for line in said + shuffled(rng, advice)]


def comparison(rng) -> list:
    """Who is more clever than whom, what follows from that, and who is the most clever of all."""
    trait, roles = pick(rng, GRADED), some(rng, ROLES, between(rng, 3, 7))
    said = [f"the {one} is more {trait} than the {other}" for one, other in itertools.pairwise(roles)]
    for _ in range(between(rng, 1, 4)):
        one = between(rng, 0, len(roles) - 3)
        other = between(rng, one + 2, len(roles) - 1)
        said.append(f"and so the {roles[one]} is more {trait} than the {roles[other]}")
    said.append(f"no one here is more {trait} than the {roles[0]}")
    return [sentence(line) for line in said]


def conclusions(rng) -> list:
    """'The clerk loved every gadget.', 'A phone is a gadget.', 'And so the clerk loved the phone.'"""
    said = []
    for role in some(rng, ROLES, between(rng, 1, 5)):
        kind, other = pick_two(rng, list(KINDS))
        verb, base = pick(rng, [("loved", "love"), ("hated", "hate"), ("noticed", "notice"), ("ignored", "ignore")])
        said.append(f"the {role} {verb} every {kind} , but {verb} no {other}")
        for thing in some(rng, KINDS[kind], between(rng, 1, 2)):
            said.append(f"{article(thing)} is {article(kind)} , and so the {role} {verb} the {thing}")
        thing = pick(rng, KINDS[other])
        said.append(f"{article(thing)} is {article(other)} , and so the {role} did not {base} the {thing}")
    return [sentence(line) for line in said]


def rhyme(rng) -> list:
    """'This is the phone in the shop.', 'This is the clerk that bought the phone in the shop.', ...: it grows."""
    thing, where = pick(rng, KINDS["gadget"]), pick(rng, WHERE)
    acts = ["praised", "criticised", "helped", "hindered", "hired", "attacked", "noticed", "trusted"]
    tail = f"the {thing} {where}"
    said = [f"this is {tail}"]
    for place, role in enumerate(some(rng, ROLES, between(rng, 2, 5))):
        act = pick(rng, ["bought", "sold", "found", "stole"] if place == 0 else acts)
        tail = f"the {role} that {act} {tail}"
        said.append(f"this is {tail}")
    return [sentence(line) for line in said]


def habits(rng) -> list:
    """What people do every day and for what reason; and what they did not do on Sunday, for the same reason."""
    people = some(rng, ROLES, between(rng, 1, 4))
    said, later = [], []
    for role in people:
        where, trait, (subject, him, _) = pick(rng, WHERE), pick(rng, TRAITS), pronouns_of(rng, role)
        said.append(f"every day the {role} was {where} , because {subject} was {trait}")
        later.append(f"on Sunday the {role} was not {where} , because {subject} was not {trait} then")
        if chance(rng, 0.5):
            later.append(f"the {role} was anything but {trait} on Sunday , and no one could find {him} {where}")
    return [sentence(line) for line in said + later]
