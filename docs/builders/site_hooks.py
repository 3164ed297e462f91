"""MkDocs' hooks: links to files that are not pages, pages of history, and the site as text for language models.

    [examples/prompt_tuning.py](../examples/prompt_tuning.py)  ->  `examples/prompt_tuning.py`

The pages are read in two places: in the checkout, where such a link works, and on the site, which does not have the file.
The site has `llms.txt` (https://llmstxt.org: a title, a summary, one line a page) and `llms-full.txt`, the pages of the
navigation as one Markdown file.
"""

import re
from pathlib import Path
from typing import NamedTuple

# A link whose target climbs out of docs/: its text, and the target.
OUTWARD = re.compile(r"\[([^\]]+)\]\((?:\.\./)+([^)\s]+)\)")
# Code within a line, and a flag in it.
INLINE_CODE = re.compile(r"<code>[^<]+</code>")
FLAG = re.compile(r"(?<![\w-])--[a-z]\w*")
LINK = re.compile(r"\[([^\]]+)\]\([^)\s]+\)")
# What a summary never begins with: headings, blocks, tables, lists, comments, quotes.
NO_PROSE = ("#", "```", "|", "*", "-", "<", ">", ":::", "    ")


class Section(NamedTuple):
    """A part of the navigation: its title, and `(source, Markdown)` of each page."""

    title: str
    pages: list[tuple[str, str]]


_nav, _files = None, None


def on_nav(nav, files, **_):
    """Keeps the navigation and the files for `on_post_build`."""
    global _nav, _files
    _nav, _files = nav, files
    return nav


def on_page_markdown(markdown: str, page, **_) -> str:
    """The page's text with links out of `docs/` as plain names of files; pages out of the navigation come last in searches."""
    if page.file.inclusion.is_not_in_nav():
        page.meta.setdefault("search", {"boost": 0.1})
    return OUTWARD.sub(_named, markdown)


def on_page_content(html: str, **_) -> str:
    """The page with every flag in a line or a table in one piece: browsers break lines after hyphens.

    >>> on_page_content("<p>Give <code>--seed 7</code>.</p>")
    '<p>Give <code><span class="flag">--seed</span> 7</code>.</p>'
    """
    return INLINE_CODE.sub(lambda code: FLAG.sub(r'<span class="flag">\g<0></span>', code[0]), html)


def on_post_build(config, **_) -> None:
    """Writes `llms.txt` and `llms-full.txt` next to the home page."""
    sections = [
        Section(part.title, [(page.file.src_uri, page.markdown) for page in part.children]) for part in _nav.items
    ]
    others = [file.page for file in _files.documentation_pages() if file.inclusion.is_not_in_nav()]
    optional = Section("Optional", [(page.file.src_uri, page.markdown) for page in others])
    folder = Path(config.site_dir)
    (folder / "llms.txt").write_text(index(config.site_name, config.site_description, [*sections, optional]), "utf-8")
    (folder / "llms-full.txt").write_text(full_text(config.site_name, config.site_description, sections), "utf-8")


def index(name: str, description: str, sections: list[Section]) -> str:
    """`llms.txt`: the title, a summary, and for each page a link with its first sentence.

    >>> print(index("t5suite", "Train.", [Section("Start", [("a.md", "# A page\\n\\nIt says this. And that.")])]))
    # t5suite
    <BLANKLINE>
    > Train.
    <BLANKLINE>
    [All pages as one file](llms-full.txt)
    <BLANKLINE>
    ## Start
    <BLANKLINE>
    - [A page](a.html): It says this.
    <BLANKLINE>
    """
    parts = [f"# {name}", f"> {description}", "[All pages as one file](llms-full.txt)"]
    for section in sections:
        lines = [f"- [{title(text)}]({source[:-3]}.html): {summary(text)}" for source, text in section.pages]
        parts += [f"## {section.title}", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def full_text(name: str, description: str, sections: list[Section]) -> str:
    """`llms-full.txt`: the pages one after the other, each below a comment with its file's name."""
    pages = [f"<!-- {source} -->\n\n{text.strip()}" for section in sections for source, text in section.pages]
    return "\n\n".join([f"# {name}", f"> {description}", *pages]) + "\n"


def title(markdown: str) -> str:
    """The text of the page's first heading."""
    return re.search(r"^# (.+)$", markdown, re.M)[1]


def summary(markdown: str) -> str:
    """The first sentence of the page's prose, without links.

    >>> summary("# T\\n\\n```\\na. b\\n```\\n\\nSee [this](x.md), i.e. all:\\nmore. Next.")
    'See this, i.e. all: more.'
    """
    text = re.sub(r"^```.*?^```", "", markdown, flags=re.M | re.S)
    paragraphs = [part.strip("\n") for part in re.split(r"\n\s*\n", text)]
    first = next(part for part in paragraphs if part.strip() and not part.startswith(NO_PROSE))
    first = LINK.sub(r"\1", " ".join(first.split()))
    return re.match(r".*?\.(?= [A-Z`]|$)|.*", first)[0]


def _named(link: re.Match) -> str:
    """The file's name if the text contains it; else the text followed by the name."""
    text, target = link[1].strip("`"), link[2]
    return f"`{target}`" if text in target else f"{text} (`{target}`)"
