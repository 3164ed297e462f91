"""The card of a trimmed model, with the licence and the base of the one that it was made from.

>>> write_trim_card("trimmed", "google/mt5-small", ModelTerms.of_folder("mt5", Path("mt5")), figures)
"""

from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData

from t5suite.base.hub_commits import hub_reads
from t5suite.base.hub_statements import CARD
from t5suite.export.terms import ModelTerms, copy_terms
from t5suite.reports.card_facts import hub_name

CARRIED_KEYS = ("language", "pipeline_tag", "datasets")
TEXT = """---
{metadata}
---

# {title}

The model `{source}` without the pieces of its vocabulary that a text does not use: {pieces} of {pieces_before} are
left, {parameters} of {parameters_before} parameters. Nothing was trained. Over the pieces that are left it computes
what `{source}` does with the logits of the others at minus infinity; texts with other words are spelled in more pieces.

* `trim.json` has the figures, and the texts by which the pieces were chosen.
* `kept_ids.json` has, for each id, the id that its piece had before.

It loads as before: `AutoTokenizer.from_pretrained(".")`, `AutoModelForSeq2SeqLM.from_pretrained(".")`.

Made by `t5suite trim`.
"""


def source_terms(name: str, folder: Path | None) -> ModelTerms:
    """What the card and the files of the model that is trimmed say of its terms: in its folder, or on the hub."""
    if folder is not None:
        return ModelTerms.of_folder(name, folder)
    commits = [commit for request, commit in hub_reads().read.items() if request.repository == name]
    return ModelTerms.of_hub(name, next(iter(commits), None))


def write_trim_card(folder, source: str, terms: ModelTerms, figures: dict) -> None:
    """Writes `README.md` and a notice, and copies the files that state the terms.

    Args:
      source: the name or folder of the model that was trimmed.
      terms: its terms.
      figures: those of `trim.json`.
    """
    copy_terms(Path(folder), terms, f"t5suite trim left pieces out of the vocabulary of {terms.name}. See trim.json.")
    header = terms.header
    carried = {key: header[key] for key in CARRIED_KEYS if header.get(key)}
    base = hub_name(source) or header.get("base_model")
    metadata = ModelCardData(
        **terms.licence, **carried, library_name="transformers", base_model=base, tags=["t5suite", "vocabulary-trimmed"]
    )
    title = f"{Path(source).name}, trimmed"
    text = TEXT.format(metadata=metadata.to_yaml(), title=title, **{**figures, "source": Path(source).name})
    ModelCard(text).save(Path(folder) / CARD)
