"""Writes the generated pages and schemas: `python -m docs.builders`; `--check` names what differs, and exits with 1.

python -m docs.builders --check
"""

import sys
from pathlib import Path

from docs.builders import (
    coming_from_page,
    demo_picture,
    flags_page,
    mistakes_page,
    models_page,
    recipe_schemas,
    recipes_page,
    reproducing_page,
    tasks_page,
)

DOCS = Path(__file__).parent.parent
PAGES = {
    "coming_from.md": coming_from_page.page,
    "flags.md": flags_page.page,
    "models.md": models_page.page,
    "recipes.md": recipes_page.page,
    "reproducing.md": reproducing_page.page,
    "tasks.md": tasks_page.page,
    "../README.md": demo_picture.readme,
    "troubleshooting.md": mistakes_page.page,
    "../recipes/fine_tune.schema.json": lambda: recipe_schemas.schema_of("fine_tune_t5"),
    "../recipes/pre_train.schema.json": lambda: recipe_schemas.schema_of("pre_train_t5"),
}


def main(check: bool) -> int:
    """Writes each page that differs from the generated one, or with `check` only names it."""
    stale = [name for name, page in PAGES.items() if _text(DOCS / name) != page()]
    for name in stale:
        if not check:
            (DOCS / name).write_text(PAGES[name](), encoding="utf-8")
        print(f"docs/{name}: {'is not what python -m docs.builders makes' if check else 'written'}")
    return 1 if check and stale else 0


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
