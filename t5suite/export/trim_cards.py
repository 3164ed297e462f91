"""The card of a trimmed model, with the licence and the base of the one that it was made from.

>>> write_trim_card("trimmed", "google/mt5-small", {"license": "apache-2.0"}, figures)
"""

import shutil
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData

from t5suite.base.hub_commits import hub_reads
from t5suite.base.hub_statements import CARD, card_header, header_of_file
from t5suite.reports.card_metadata import hub_name

LICENCE_FILES = ("LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*")
CARRIED_KEYS = ("license", "license_name", "license_link", "language", "pipeline_tag", "datasets")
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


def source_header(name: str, folder: Path | None) -> dict:
    """The metadata of the card of the model that is trimmed: in its folder, or on the hub."""
    if folder is not None:
        return header_of_file(folder / CARD)
    commits = [commit for request, commit in hub_reads().read.items() if request.repository == name]
    return card_header("model", name, next(iter(commits), None))


def write_trim_card(folder, source: str, header: dict, figures: dict) -> None:
    """Writes `README.md`.

    Args:
      source: the name or folder of the model that was trimmed.
      header: the metadata of its card.
      figures: those of `trim.json`.
    """
    carried = {key: header[key] for key in CARRIED_KEYS if header.get(key)}
    carried.setdefault("license", "unknown")
    base = hub_name(source) or header.get("base_model")
    metadata = ModelCardData(
        **carried, library_name="transformers", base_model=base, tags=["t5suite", "vocabulary-trimmed"]
    )
    title = f"{Path(source).name}, trimmed"
    text = TEXT.format(metadata=metadata.to_yaml(), title=title, **{**figures, "source": Path(source).name})
    ModelCard(text).save(Path(folder) / CARD)


def copy_licence(source_folder: Path | None, folder) -> list[str]:
    """Copies the files of a folder that state terms; returns their names."""
    if source_folder is None:
        return []
    names = []
    for pattern in LICENCE_FILES:
        for file in sorted(source_folder.glob(pattern)):
            shutil.copyfile(file, Path(folder) / file.name)
            names.append(file.name)
    return names
