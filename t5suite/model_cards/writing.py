"""Writes a run's `README.md`.

    >>> write_card("runs/glue-rte-t5-small", facts)
    PosixPath('runs/glue-rte-t5-small/README.md')

The same run makes the same card, to the byte; it is written anew whenever the run comes to an end again.
"""

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import ModelCard

from t5suite.base.files import whole_file
from t5suite.base.redaction import printable, redacted
from t5suite.model_cards import machine, sections
from t5suite.model_cards.facts import CardFacts
from t5suite.model_cards.metadata import card_data

CARD = "README.md"
# Pictures that a run may leave beside its card, and what they show.
CURVES = {"loss_curve.png": "loss over the updates", "learning_curves.png": "losses and scores over the updates"}
ELSEWHERE = [
    "In the run's directory `metrics.jsonl` has losses and scores over the updates, `manifest.json` every setting,",
    "version and hash of the data.",
]


def write_card(directory, facts: CardFacts) -> Path:
    """Writes the card through a temporary sibling, so that a reader never sees half of it."""
    path = Path(directory) / CARD
    pictures = [name for name in CURVES if (Path(directory) / name).is_file()]
    with whole_file(path) as temporary:
        temporary.write_text(card_text(facts, pictures), encoding="utf-8")
    return path


def card_text(facts: CardFacts, pictures: Sequence[str] = ()) -> str:
    """The card: metadata and sections, without secrets.

    Args:
      pictures: names in `CURVES` of the files beside it.

    Raises:
      ValueError: the metadata are not what the hub reads, which is an error of ours.
    """
    curves = [line for name in pictures for line in (f"![{CURVES[name]}]({name})", "")]
    lines = [
        f"# {facts.title}", "",
        *sections.summary(facts),
        *sections.usage(facts),
        *sections.text_formats(facts),
        *sections.scores(facts),
        *sections.data(facts),
        *sections.training(facts),
        *curves,
        *ELSEWHERE, "",
        *sections.command(facts),
        *machine.machine(facts),
        *sections.limits(facts),
    ]  # fmt: skip
    text = printable(redacted(f"---\n{card_data(facts).to_yaml()}\n---\n\n" + "\n".join(lines)))
    ModelCard(text)  # reads back what it says, the index too
    return text
