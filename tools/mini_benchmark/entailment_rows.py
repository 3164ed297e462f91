"""The rows of `mini`'s entailment task: does one message to a shop say what another says?

    >>> entailment(random.Random(3), CONTRADICTION)
    {'premise': 'Sorry, the kettle was not stained.', 'hypothesis': 'Yes, my kettle was stained.'}

Both say how something arrived. Which words there are says little: two messages have to be compared, by what they are
about, which question they answer, and whether "not" stands before the answer.
"""

from tools.mini_benchmark.drawing import chance, pick, pick_two, sentence
from tools.mini_benchmark.words import GOODS, STATES

ENTAILMENT, NEUTRAL, CONTRADICTION = 0, 1, 2
# People write to a shop when something is wrong: three premises in five say so.
WRONG = 0.6
NEGATED = 0.15

OPENERS = ["", "hello , ", "sorry , ", "today ", "so ", "yes , "]
PREMISES = [
    "the {thing} was {state}",
    "my {thing} was {state}",
    "the {thing} came and was {state}",
    "I got a {thing} that was {state}",
]
HYPOTHESES = [
    "the {thing} was {state}",
    "my {thing} was {state}",
    "that {thing} was {state}",
    "this {thing} was {state}",
]
ADDITIONS = ["by mistake", "on purpose", "in your shop", "in May"]


def state(rng, question: int, wrong: bool) -> str:
    """state(rng, 0, True) -> 'broken', or 'not intact'"""
    negated = chance(rng, NEGATED)
    word = pick(rng, STATES[question][0 if wrong != negated else 1])
    return f"not {word}" if negated else word


def entailment(rng, label) -> dict:
    """entailment(rng, 2) -> {'premise': 'Hello, the lamp was broken.', 'hypothesis': 'The lamp was not damaged.'}

    Of five neutral rows, three answer another question about the same thing, one is about another thing, and one adds
    what the premise does not say.
    """
    thing, other_thing = pick_two(rng, GOODS)
    question, other_question = pick_two(rng, range(len(STATES)))
    wrong = chance(rng, WRONG)
    wrong_too = chance(rng, 0.5) if label == NEUTRAL else wrong == (label == ENTAILMENT)
    difference = pick(rng, ["thing", "question", "question", "question", "addition"]) if label == NEUTRAL else None
    premise = pick(rng, PREMISES).format(thing=thing, state=state(rng, question, wrong))
    hypothesis = pick(rng, HYPOTHESES).format(
        thing=other_thing if difference == "thing" else thing,
        state=state(rng, other_question if difference == "question" else question, wrong_too),
    )
    if difference == "addition":
        hypothesis = f"{hypothesis} {pick(rng, ADDITIONS)}"
    return {"premise": sentence(pick(rng, OPENERS) + premise), "hypothesis": sentence(pick(rng, OPENERS) + hypothesis)}
