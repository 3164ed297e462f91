"""Colours, ink and legends of all plots.

Backgrounds are transparent, and the grey ink can be read on white and on black. Colours are Okabe and Ito's, which
colour-blind readers can distinguish, and every setting also has its own dash.
"""

# 4.5 to 1 on white and on black.
INK = "#767676"
BLUE = "#0072B2"
ORANGE = "#D55E00"
GREEN = "#009E73"
COLOURS = (BLUE, ORANGE, GREEN, "#B65A93", "#9A7B00", "#7570B3", "#56789A")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
# Width in inches of scores and of a sweep's plots: their letters can be read on a phone.
INCHES = 5


def setting_styles(data: dict) -> dict[str, tuple]:
    """`{setting: (colour, dash)}` of the first settings; the others are drawn in grey."""
    styles = zip(COLOURS, DASHES, strict=True)
    return {setting["label"]: style for setting, style in zip(data["settings"], styles, strict=False)}


def literal(text: str) -> str:
    """A label in which dollar signs do not start a formula."""
    return text.replace("$", r"\$")


def use_ink(axes) -> None:
    """Sets ink that is readable in both themes, and hides lines that are not needed."""
    for side, spine in axes.spines.items():
        spine.set_color(INK)
        spine.set_visible(side in ("left", "bottom"))
    axes.tick_params(colors=INK, labelsize=8)
    for text in (axes.xaxis.label, axes.yaxis.label, axes.title):
        text.set_color(INK)
    axes.grid(color=INK, alpha=0.25, linewidth=0.6)


def add_legend(axes) -> None:
    """A legend below the figure, if the axes have labels."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        style = {"frameon": False, "fontsize": 8, "labelcolor": INK, "ncols": 3}
        axes.figure.legend(handles, labels, loc="outside lower center", **style)
