"""docs/recipes.md: the shipped recipes, and what each of them takes.

>>> first_sentence("T5 v1.1 base on C4, as in arXiv:1910.10683. A second one.")
'T5 v1.1 base on C4, as in arXiv:1910.10683.'
"""

import json
import re

from docs.builders.markdown import MADE, code, table
from docs.builders.recipe_costs import FILE, SETTINGS_OF
from docs.builders.reproducing_page import recipe_facts
from t5suite.base.files import shipped_folder

GIB = 2**30
UNKNOWN = "–"
BUDGET = re.compile(r"t5_v1_1_base_(\d+)h\.yaml")


def page() -> str:
    """The page's text."""
    costs = json.loads(FILE.read_text(encoding="utf-8"))
    rows = []
    for name, settings in SETTINGS_OF.items():
        if BUDGET.fullmatch(name) is None:
            rows.append(recipe_row(name, settings, costs.get(name)))
    rows.append(budgets_row(costs))
    heads = ["recipe", "what it is", "rows an update", "updates", "parameters", "GiB"]
    return "\n\n".join([MADE.format(sources="recipes/*.yaml"), INTRODUCTION, table(heads, rows)]) + "\n"


def recipe_row(name: str, settings: dict, cost: dict | None) -> list[str]:
    """A recipe's line of the table."""
    rows_of_update = settings.get("per_device_train_batch_size", 16) * settings.get("gradient_accumulation_steps", 1)
    updates = f"{settings['max_steps']:,}" if "max_steps" in settings else passes(settings)
    parameters = gib = UNKNOWN
    if cost is not None:
        parameters = f"{cost['parameters'] / 1e6:,.0f} million"
        gib = f"{cost['peak'] / GIB:.1f}"
    what = first_sentence(recipe_facts(shipped_folder("recipes") / name)["what"])
    return [code(name), what, str(rows_of_update), updates, parameters, gib]


def budgets_row(costs: dict) -> list[str]:
    """The line of the recipes that differ in their hours alone."""
    hours_of = {name: int(match[1]) for name in SETTINGS_OF if (match := BUDGET.fullmatch(name))}
    names = sorted(hours_of, key=hours_of.get)
    shortest, longest = (recipe_row(name, SETTINGS_OF[name], costs[name]) for name in (names[0], names[-1]))
    hours = ", ".join(str(hours_of[name]) for name in names)
    _, _, rows_of_update, _, parameters, gib = shortest
    what = f"T5 v1.1 base within {hours} hours of one A100 80 GB at nanoT5's speed."
    return [
        code("t5_v1_1_base_4h.yaml") + " ...",
        what,
        rows_of_update,
        f"{shortest[3]} to {longest[3]}",
        parameters,
        gib,
    ]


def passes(settings: dict) -> str:
    """How long a recipe trains that counts passes over its rows."""
    return f"{settings['num_train_epochs']} epochs"


def first_sentence(text: str) -> str:
    """Up to the first full stop or colon before a capital letter."""
    return re.match(r".*?[.:](?= [A-Z`{]|$)|.*", text)[0].rstrip(":")


INTRODUCTION = """# Recipes

A recipe is a file of settings that ships with the suite and is found by its name: `t5suite fine_tune t5_glue.yaml`,
`t5suite pre_train ul2_base.yaml`; further flags override it. GiB is the estimate of `t5suite summary` for one GPU and
one step, without the driver's own (about 1 GiB). With less memory, lower `--per_device_train_batch_size` and raise
`--gradient_accumulation_steps` by the same factor: the updates stay the same. A dash: the model's shapes are on the hub
alone, or the lengths of a mixture differ; give `t5suite summary` the same flags. The published figures that recipes aim
at are in [reproducing](reproducing.md), settings for other models in [advice](advice.md)."""
