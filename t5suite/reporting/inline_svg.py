"""A plot's SVG as it can stand inside the page: no styles, no ids of its own, colours that follow the theme.

>>> inline(svg, "rte: accuracy", "curve-rte")[:60]
'<svg viewBox="0 0 270 180" role="img" aria-label="rte: accurac'

The page's Content-Security-Policy allows no `style` attributes, so that what stood in them becomes attributes; grey ink
becomes the page's text colour, and each colour of the palette the page's own of that number.
"""

import html
import re

from t5suite.reporting.figures import COLOURS, INK

STYLE = re.compile(r'\sstyle="([^"]*)"')
# Attributes that SVG has for what a style says.
KNOWN = """fill fill-opacity fill-rule stroke stroke-width stroke-opacity stroke-dasharray stroke-dashoffset
stroke-linecap stroke-linejoin stroke-miterlimit opacity font-size font-weight font-style text-anchor
clip-rule""".split()


def inline(svg: bytes, label: str, name: str, themed: bool = True) -> str:
    """The `<svg>` element.

    Args:
      label: what a screen reader says.
      name: told apart from all others on the page, for the ids of clip paths and markers.
      themed: whether the plot is drawn in INK and COLOURS.
    """
    text = svg.decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r"<style[^>]*>.*?</style>", "", text, flags=re.S)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    text = STYLE.sub(_as_attributes, text)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    safe = re.sub(r"[^A-Za-z0-9_-]", "-", name)
    text = re.sub(r'id="([^"]+)"', rf'id="{safe}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{safe}-\1)", text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{safe}-\1"', text)
    if themed:
        text = re.sub(INK, "currentColor", text, flags=re.I)
        for at, colour in enumerate(COLOURS):
            text = re.sub(colour, f"var(--s{at + 1})", text, flags=re.I)
    box = re.search(r'viewBox="([^"]+)"', text).group(1)
    body = text[text.index(">") + 1 :].strip()
    spoken = html.escape(label, quote=True)
    body = re.sub(r"\n\s*", "\n", body)
    return f'<svg viewBox="{box}" role="img" aria-label="{spoken}" xmlns:xlink="http://www.w3.org/1999/xlink">{body}'


def _as_attributes(match) -> str:
    kept = []
    for part in match.group(1).split(";"):
        name, _, value = part.partition(":")
        name, value = name.strip(), value.strip()
        if name == "font":
            size = re.search(r"([\d.]+)px", value)
            kept += [f'font-size="{size.group(1)}"'] if size else []
        elif name in KNOWN:
            value = value.removesuffix("px") if name in ("font-size", "stroke-width") else value
            kept.append(f'{name}="{value}"')
    return " " + " ".join(kept) if kept else ""
