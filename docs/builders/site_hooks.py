"""MkDocs' hooks: links of a page to files of the checkout that are not pages.

    [examples/prompt_tuning.py](../examples/prompt_tuning.py)  ->  `examples/prompt_tuning.py`

The pages are read in two places: in the checkout, where such a link works, and on the site, which does not have the file.
"""

import re

# A link whose target climbs out of docs/: its text, and the target.
OUTWARD = re.compile(r"\[([^\]]+)\]\((?:\.\./)+([^)\s]+)\)")


def on_page_markdown(markdown: str, **_) -> str:
    """The page's text with links out of `docs/` as plain names of files."""
    return OUTWARD.sub(_named, markdown)


def _named(link: re.Match) -> str:
    """The file's name if the text contains it; else the text followed by the name."""
    text, target = link[1].strip("`"), link[2]
    return f"`{target}`" if text in target else f"{text} (`{target}`)"
