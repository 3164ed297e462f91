"""The terms that an adapted model is under: its decoder's, with the files that state them, a notice and a card.

    >>> write_terms(folder, DecoderTerms("google/gemma-3-270m", None, {"license": "gemma"}), card)

A licence is never guessed: where the decoder's card states none, the new card says so, and what holds if the weights
are Google's. Google's terms (section 3.1) ask that a derived model comes with them, with a notice of one sentence, and
with a statement that files were modified.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData

GEMMA = "gemma"
GEMMA_TERMS = "ai.google.dev/gemma/terms"
# The sentence that section 3.1 of the terms asks for.
GEMMA_NOTICE = f"Gemma is provided under and subject to the Gemma Terms of Use found at {GEMMA_TERMS}"
NOTICE_FILE = "NOTICE"
CARD_FILE = "README.md"
TERMS_FILES = ("LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*", "*TERMS*")
KEYS = ("license", "license_name", "license_link")


@dataclass(frozen=True)
class DecoderTerms:
    """What is known of a decoder's terms.

    Attributes:
      name: its folder, or its name on the hub.
      folder: where it is on this machine.
      header: the metadata of its card; empty without one.
    """

    name: str
    folder: Path
    header: Mapping

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


def write_terms(folder: Path, terms: DecoderTerms, adaptation: Mapping) -> list[str]:
    """Copies the files that state the terms, and writes notice and card; returns the copied files' names.

    Args:
      adaptation: the content of `adapt.json`.
    """
    copied = []
    for pattern in TERMS_FILES:
        for file in sorted(terms.folder.glob(pattern)):
            if file.is_file() and file.name not in copied:
                shutil.copyfile(file, folder / file.name)
                copied.append(file.name)
    _write_notice(folder / NOTICE_FILE, terms, adaptation)
    card = ModelCard.from_template(
        ModelCardData(**terms.licence, library_name="transformers", tags=["t5suite", adaptation["model_type"]]),
        template_str="---\n{{ card_data }}\n---\n\n{{ text }}\n",
        text=_card_text(terms, adaptation),
    )
    card.save(folder / CARD_FILE)
    return copied


def _write_notice(file: Path, terms: DecoderTerms, adaptation: Mapping) -> None:
    """Adds to a notice that was copied, or begins one."""
    earlier = file.read_text(encoding="utf-8").rstrip() + "\n\n" if file.is_file() else ""
    sentence = f"{GEMMA_NOTICE}.\n" if terms.are_gemmas and GEMMA_NOTICE not in earlier else ""
    modified = (
        f"The files of this folder were modified: t5suite adapt made a {adaptation['class']} of {terms.name}.\n"
        "adapt.json lists the origin of every tensor.\n"
    )
    file.write_text(earlier + sentence + modified, encoding="utf-8")


def _card_text(terms: DecoderTerms, adaptation: Mapping) -> str:
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


def _terms_text(terms: DecoderTerms) -> str:
    if terms.are_gemmas:
        return f"{GEMMA_NOTICE}. See `{NOTICE_FILE}`."
    if terms.licence["license"] != "unknown":
        return f"Those of `{terms.name}`, whose card states `{terms.licence['license']}`. See `{NOTICE_FILE}`."
    return (
        f"No card of `{terms.name}` states a licence. If its weights are Google's Gemma, or were trained from it, the "
        f"Gemma Terms of Use hold for this model, too ({GEMMA_TERMS})."
    )
