"""Stories, letters, dialogues and diaries: people keep their pronouns, things their owners and places.

    >>> story(random.Random(4))[:2]
    ['There was a quiet driver in the warehouse.', 'He had a saw and a melon.']

Every function draws one document, a list of sentences, from a seeded generator. What is said later follows from what
was said first: who is she, who has the coat now, where is the hammer. A model that reads the whole document can fill in
what one that knows single words cannot. All words are pieces of the bundled tokenizer.
"""

from dataclasses import dataclass, field

from tools.mini_benchmark.drawing import article, between, chance, listed, pick, pick_two, sentence, shuffled, some
from tools.mini_benchmark.words import KINDS, PEOPLE, PLACES, TRAITS

ROLES = PEOPLE
WHERE = PLACES
THINGS = [thing for things in KINDS.values() for thing in things]
HOURS = ["at dawn", "at noon", "in the evening", "at night"]
HE, SHE = ("he", "him", "his"), ("she", "her", "her")
PRONOUNS = {"postman": HE, "father": HE, "son": HE, "boy": HE, "mother": SHE, "daughter": SHE, "girl": SHE}


def pronouns_of(rng, role) -> tuple:
    """pronouns_of(rng, "driver") -> ('he', 'him', 'his') or ('she', 'her', 'her'), for the whole document"""
    return PRONOUNS.get(role) or pick(rng, [HE, SHE])


@dataclass
class Person:
    """Somebody in a story: `Person("driver", "old", ("she", "her", "her"), "in the shop", ["coat"])`."""

    role: str
    trait: str
    pronouns: tuple
    where: str
    things: list = field(default_factory=list)

    @property
    def name(self):
        return f"the {self.role}"

    @property
    def belongings(self):
        """'a coat and a pear', or 'nothing' in the words that there are: 'no money'"""
        return listed([article(thing) for thing in self.things]) if self.things else "no money"


def cast(rng, count) -> list:
    """cast(rng, 2) -> two people of different roles, traits and places, each with one or two things"""
    roles, traits, places = some(rng, ROLES, count), some(rng, TRAITS, count), some(rng, WHERE, count)
    people = [Person(r, t, pronouns_of(rng, r), p) for r, t, p in zip(roles, traits, places)]
    for number, thing in enumerate(some(rng, THINGS, count * 2)):
        people[number % count].things.append(thing)
    return people


def introduce(person) -> list:
    """['There was an old driver in the shop.', 'She had a coat and a pear.']"""
    return [
        sentence(f"there was {article(person.trait)} {person.role} {person.where}"),
        sentence(f"{person.pronouns[0]} had {person.belongings}"),
    ]


def sell(rng, when, giver, taker) -> list:
    """'At noon, the driver sold her coat to the postman.', 'And now the postman had a pear and a coat.'"""
    thing = giver.things.pop(0)
    taker.things.append(thing)
    deals = [
        f"{when} , {giver.name} sold {giver.pronouns[2]} {thing} to {taker.name}",
        f"{when} , {taker.name} bought the {thing} from {giver.name}",
    ]
    return [sentence(pick(rng, deals)), sentence(f"and now {taker.name} had {taker.belongings}")]


def steal(rng, when, giver, taker) -> list:
    """'At night, the postman stole the coat from the driver.', 'The driver hated him for it.'"""
    thing = giver.things.pop(0)
    taker.things.append(thing)
    feeling = pick(rng, ["hated", "despised", "distrusted"])
    return [
        sentence(f"{when} , {taker.name} stole the {thing} from {giver.name}"),
        sentence(f"{giver.name} {feeling} {taker.pronouns[1]} for it , because {giver.pronouns[0]} loved the {thing}"),
    ]


def lose(rng, when, giver, taker) -> list:
    """'At dawn, the driver lost her coat near the house.', 'It was the postman who found it there.'"""
    thing, where = giver.things.pop(0), pick(rng, WHERE)
    taker.things.append(thing)
    return [
        sentence(f"{when} , {giver.name} lost {giver.pronouns[2]} {thing} {where}"),
        sentence(f"it was {taker.name} who found the {thing} there , {where}"),
    ]


def help_out(rng, when, giver, taker) -> list:
    """'At noon, the driver helped the postman.', 'He praised her for it.': nothing changes hands"""
    act, thanks = pick(rng, [("helped", "praised"), ("defended", "trusted"), ("hindered", "faulted")])
    return [
        sentence(f"{when} , {giver.name} {act} {taker.name}"),
        sentence(f"and so {taker.name} {thanks} {giver.pronouns[1]} for it"),
    ]


def move(rng, when, giver, taker) -> list:
    """'At noon, the driver was in the shop with her coat.'"""
    giver.where = pick(rng, WHERE)
    company = f"with {giver.pronouns[2]} {pick(rng, giver.things)}" if giver.things else f"without {taker.name}"
    return [sentence(f"{when} , {giver.name} was {giver.where} {company}")]


def story(rng) -> list:
    """Two or three people, what they do to each other from dawn to night, and who has what in the end."""
    people, hour = cast(rng, between(rng, 2, 3)), between(rng, 0, 3)
    said = [line for person in people for line in introduce(person)]
    for _ in range(between(rng, 2, 14)):
        giver, taker = pick_two(rng, people)
        event = pick(rng, [sell, steal, lose] if giver.things and chance(rng, 0.7) else [help_out, move])
        said += event(rng, HOURS[hour % 4], giver, taker)
        hour += 1
    return said + [sentence(f"and after it all , {person.name} had {person.belongings}") for person in people]


def journey(rng) -> list:
    """Out through some places, and by the way of the first half again: the order comes back reversed."""
    who, *_ = cast(rng, 1)
    places = some(rng, WHERE, between(rng, 3, 8))
    subject, thing = who.pronouns[0], who.things[0]
    said = [sentence(f"there was {article(who.trait)} {who.role} with {article(thing)} {places[0]}")]
    for place in places[1:]:
        said.append(sentence(f"and then {subject} was {place} with {who.pronouns[2]} {thing}"))
    said.append(sentence(f"but {subject} was tired there , and {subject} did not like it {places[-1]}"))
    for place in reversed(places[:-1]):
        said.append(sentence(f"and so {subject} was {place} again with {who.pronouns[2]} {thing}"))
    return said


def letter(rng) -> list:
    """From one friend to another, about a thing that is found and will be given back."""
    sender, reader, other = cast(rng, 3)
    thing, where = sender.things[0], pick(rng, WHERE)
    hour, hour2 = pick_two(rng, HOURS)
    said = [
        f"to my friend , {reader.name}",
        f"I was {where} last week , {hour} , and I found {article(thing)} there",
        f"{other.name} said that you lost your {thing} in May",
        f"{other.name} said that you loved your {thing} more than money",
        f"I do not know if the {thing} that I found {where} is your {thing} , but I think so",
    ]
    facts = [
        f"the {thing} is {pick(rng, ['old', 'little', 'new', 'good'])} , and I like it",
        f"I have the {thing} here , {sender.where}",
        f"{other.name} would buy the {thing} from me , but I will not sell your {thing}",
        f"you should come to see me {sender.where} on Sunday , {hour2}",
        f"I will give you your {thing} {sender.where} on Sunday",
    ]
    said += facts[: between(rng, 1, 2)] + facts[2:][: between(rng, 1, 3)]
    return [sentence(line) for line in [*said, f"for now , your {pick(rng, ['old', 'good'])} friend , {sender.name}"]]


def dialogue(rng) -> list:
    """Where everything is, then questions about it with their answers."""
    asker, answerer = cast(rng, 2)
    things = some(rng, THINGS, between(rng, 2, 5))
    where = dict(zip(things, some(rng, WHERE, len(things))))
    said = [sentence(f"the {thing} was {where[thing]}") for thing in things]
    for thing in shuffled(rng, things):
        question, answer = pick(rng, QUESTIONS)
        places = {"thing": thing, "where": where[thing]}
        said.append(sentence(f"{asker.name} said to {answerer.name}: {question.format(**places)}", end="?"))
        said.append(sentence(f"{answerer.name} said to {asker.name}: {answer.format(**places)}"))
    return said


QUESTIONS = [
    ("where is the {thing}", "the {thing} is {where}"),
    ("do you know where I can find the {thing}", "yes, you can find it {where}"),
    ("what did you see {where}", "I did see the {thing} there, {where}"),
    ("is the {thing} {where}", "yes, the {thing} is {where}"),
]


def diary(rng) -> list:
    """Day after day in May, with the same friend and the same habits."""
    friend, *_ = cast(rng, 1)
    day, hour, habit = between(rng, 1, 9), pick(rng, HOURS), pick(rng, WHERE)
    said = []
    for number in range(day, day + between(rng, 2, 9)):
        said.append(sentence(f"on May {number} , I was {habit} with {friend.name} {hour}"))
        if chance(rng, 0.5):
            said.append(sentence(f"{friend.pronouns[0]} was {friend.trait} , and I was {pick(rng, TRAITS)}"))
    return [*said, sentence(f"I like {friend.name} , and I like it {habit} {hour}")]
