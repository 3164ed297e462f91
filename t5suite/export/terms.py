"""The terms that a changed model is under: those of the model before, with the files that state them, and a notice.

    >>> write_terms(folder, ModelTerms.of_folder("gemma-3-270m", Path("gemma-3-270m")), record)
    ['LICENSE']

A licence is never guessed: where the decoder's card states none, the new card says so, and what holds if the weights
are Google's. Google's terms (section 3.1) ask that a derived model comes with them, with a notice of one sentence, and
with a statement that files were modified.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData

from t5suite.base.hub_statements import card_header, header_of_file, repository_file
from t5suite.reports.card_facts import hub_name

GEMMA = "gemma"
GEMMA_TERMS = "ai.google.dev/gemma/terms"
# The sentence that section 3.1 of the terms asks for.
GEMMA_NOTICE = f"Gemma is provided under and subject to the Gemma Terms of Use found at {GEMMA_TERMS}"
NOTICE_FILE = "NOTICE"
CARD_FILE = "README.md"
TERMS_FILES = ("LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*", "*TERMS*")
# What is asked of the hub, whose folders are not listed.
HUB_FILES = ("LICENSE", "LICENSE.md", "LICENSE.txt", "NOTICE", "NOTICE.txt", "USE_POLICY.md")
KEYS = ("license", "license_name", "license_link")


@dataclass(frozen=True)
class ModelTerms:
    """What is known of a model's terms.

    Attributes:
      name: its folder, or its name on the hub.
      files: those that state them, on this machine.
      header: the metadata of its card; empty without one.
    """

    name: str
    files: Sequence[Path]
    header: Mapping

    @classmethod
    def of_folder(cls, name: str, folder: Path) -> "ModelTerms":
        """Those of a folder on this machine."""
        files = [file for pattern in TERMS_FILES for file in sorted(folder.glob(pattern)) if file.is_file()]
        return cls(name, list(dict.fromkeys(files)), header_of_file(folder / CARD_FILE))

    @classmethod
    def of_hub(cls, name: str, commit: str | None) -> "ModelTerms":
        """Those of a commit on the hub."""
        files = [repository_file("model", name, commit, file) for file in HUB_FILES]
        return cls(name, [file for file in files if file is not None], card_header("model", name, commit))

    @property
    def are_gemmas(self) -> bool:
        """Whether the card states Google's terms, or the name is one of Google's."""
        stated = (self.header.get("license"), self.header.get("license_name"))
        return GEMMA in stated or self.name.startswith("google/gemma")

    @property
    def licence(self) -> dict:
        """The card's words for the licence; Google's, or `unknown`, where it has none."""
        stated = {key: self.header[key] for key in KEYS if self.header.get(key)}
        if "license" in stated:
            return stated
        return {"license": GEMMA if self.are_gemmas else "unknown"}


def write_terms(folder: Path, terms: ModelTerms, adaptation: Mapping) -> list[str]:
    """Copies the files that state the terms, and writes notice and card; returns the copied files' names.

    Args:
      adaptation: the content of `adapt.json`.
    """
    change = f"t5suite adapt made a {adaptation['class']} of {terms.name}. adapt.json lists the origin of every tensor."
    copy_terms(folder, terms, change)
    card = ModelCard.from_template(
        ModelCardData(
            **terms.licence,
            library_name="transformers",
            tags=["t5suite", adaptation["model_type"]],
            base_model=hub_name(terms.name),
        ),
        template_str="---\n{{ card_data }}\n---\n\n{{ text }}\n",
        text=_card_text(terms, adaptation),
    )
    card.save(folder / CARD_FILE)
    return [file.name for file in terms.files]


def copy_terms(folder: Path, terms: ModelTerms, change: str) -> None:
    """Copies the files that state the terms; `NOTICE` says after what it had said how the files were modified.

    Args:
      change: what was done to the model, in one sentence.
    """
    for file in terms.files:
        shutil.copyfile(file, folder / file.name)
    notice = folder / NOTICE_FILE
    text = ""
    if notice.is_file():
        text = notice.read_text(encoding="utf-8").rstrip() + "\n\n"
    if terms.are_gemmas and GEMMA_NOTICE not in text:
        text += f"{GEMMA_NOTICE}.\n"
    notice.write_text(f"{text}The files of this folder were modified: {change}\n", encoding="utf-8")


def _card_text(terms: ModelTerms, adaptation: Mapping) -> str:
    """What the model is, what nothing has trained, and the terms."""
    sizes = adaptation["parameters"]
    lines = [
        f"# {adaptation['class']} from {Path(terms.name).name}",
        f"An encoder-decoder ({adaptation['paper']}) whose two stacks are copies of a decoder, made by `t5suite adapt` "
        f"from `{terms.name}`. It has not been trained since: pre-train it before you use it.",
        f"* {sizes['copied']:,} parameters are the decoder's, {sizes['new']:,} are new: {adaptation['new_rows']} rows "
        f"of the embeddings, for {adaptation['num_sentinels']} sentinels and as spares; they begin as the mean of the "
        "decoder's rows.",
    ]
    if sizes["untrained"]:
        lines.append(
            f"* {sizes['untrained']:,} parameters are untrained and frozen: a vision tower of the smallest size that "
            "the class accepts, and what joins it to the text. The model reads text alone and refuses `pixel_values`."
        )
    lines += ["* `adapt.json` lists the origin of every tensor.", "## Terms", _terms_text(terms)]
    return "\n\n".join(lines)


def _terms_text(terms: ModelTerms) -> str:
    if terms.are_gemmas:
        return f"{GEMMA_NOTICE}. See `{NOTICE_FILE}`."
    if terms.licence["license"] != "unknown":
        return f"Those of `{terms.name}`, whose card states `{terms.licence['license']}`. See `{NOTICE_FILE}`."
    return (
        f"No card of `{terms.name}` states a licence. If its weights are Google's Gemma, or were trained from it, the "
        f"Gemma Terms of Use hold for this model, too ({GEMMA_TERMS})."
    )
