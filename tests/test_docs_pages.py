"""Pages of docs/: those that are made are what is made, links lead somewhere, what is mapped and documented exists."""

import ast
import doctest
import json
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from absl.testing import absltest, parameterized
from documented import (
    ROOT,
    Block,
    bash,
    blocks,
    check,
    is_name,
    pages,
    problems,
    prose,
    sections,
    small,
    surroundings,
    unprinted,
    workplace,
)  # fmt: skip
from PIL import Image

import t5suite
from docs.builders import models_page, recipe_costs, recipes_page, site_hooks
from docs.builders.__main__ import PAGES as MADE_PAGES
from t5suite.testing import cli_output

DOCS = ROOT / "docs"
# Pages that quote transformers' own help texts, which its releases reword.
QUOTING = ("flags.md", "../recipes/fine_tune.schema.json", "../recipes/pre_train.schema.json")


class MadePagesTest(parameterized.TestCase):
    @parameterized.parameters(*MADE_PAGES)
    def test_a_made_page_is_what_is_made(self, name):
        pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if name in QUOTING and f"transformers=={version('transformers')}" not in pins:
            self.skipTest("it quotes transformers in the version of constraints.txt")
        made = f"python -m docs.builders writes docs/{name} anew"
        self.assertEqual((DOCS / name).read_text(encoding="utf-8"), MADE_PAGES[name](), made)

    @parameterized.parameters("light", "dark")
    def test_the_picture_of_the_demo_is_of_the_runs_whose_scores_are_shown(self, theme):
        table = (DOCS / "images" / "demo.txt").read_text(encoding="utf-8")
        with Image.open(DOCS / "images" / f"demo_{theme}.png") as picture:
            self.assertEqual(picture.info["Description"], table)

    def test_the_demo_is_far_above_its_baselines(self):
        table = (DOCS / "images" / "demo.txt").read_text(encoding="utf-8")
        rows = [line.split() for line in table.splitlines() if line.strip().startswith("mini/")]
        least = {"mini/sentiment": 99, "mini/entailment": 75, "mini/similarity": 80}
        self.assertEqual({row[0] for row in rows}, set(least))
        for task, metric, model, *baselines in rows:
            with self.subTest(task=task, metric=metric):
                best = max(float(score) for score in baselines if score != "–")
                self.assertGreaterEqual(float(model), max(least[task], best + 25))

    def test_costs_are_those_of_the_recipes_steps(self):
        costs = json.loads(recipe_costs.FILE.read_text(encoding="utf-8"))
        words = {name: recipe_costs.summary_words(settings) for name, settings in recipe_costs.SETTINGS_OF.items()}
        self.assertEqual({name: cost["words"] for name, cost in costs.items()}, {n: w for n, w in words.items() if w})

    @pytest.mark.slow
    def test_costs_are_what_summary_says(self):
        cost = json.loads(recipe_costs.FILE.read_text(encoding="utf-8"))["t5_single_task.yaml"]
        table = json.loads(cli_output("summary", "--json", *cost["words"]))
        self.assertEqual((cost["parameters"], cost["peak"]), (table["parameters"], table["memory"]["peak"]))

    @parameterized.parameters(models_page, recipes_page, site_hooks)
    def test_examples_of_the_builders_hold(self, module):
        self.assertEqual(doctest.testmod(module).failed, 0)


class LinksTest(parameterized.TestCase):
    @parameterized.parameters(*((str(page.relative_to(ROOT)),) for page in pages()))
    def test_links_lead_to_files_and_headings_that_are_there(self, name):
        page = ROOT / name
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(page))):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, heading = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            self.assertTrue(file.exists(), f"{name}: {target}")
            if heading and file.suffix == ".md":
                self.assertIn(heading, _headings(file), f"{name}: {target}")

    def test_every_page_is_in_the_navigation_or_linked_as_history(self):
        history = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["not_in_nav"].split()
        self.assertCountEqual([*in_navigation(), *history], [page.name for page in DOCS.glob("*.md")])
        home = (DOCS / "index.md").read_text(encoding="utf-8")
        for page in history:
            self.assertIn(f"]({page})", home)


def in_navigation() -> list[str]:
    """The pages that the site lists, in its order."""
    return re.findall(r"^ +- (\w+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)


def _headings(page: Path) -> set[str]:
    """Anchors of a page's headings, as Python-Markdown makes them."""
    heads = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower()) for head in heads}


class ApiTest(parameterized.TestCase):
    DOCUMENTED = re.findall(r"^::: (\S+)", (DOCS / "python.md").read_text(encoding="utf-8"), re.M)

    @parameterized.parameters(*DOCUMENTED)
    def test_what_is_documented_can_be_imported(self, name):
        self.assertTrue(is_name(name))

    def test_every_public_name_is_documented(self):
        text = (DOCS / "python.md").read_text(encoding="utf-8")
        for name in t5suite.__all__:
            if name != "__version__":
                self.assertRegex(text, rf"::: t5suite\.\S+\.{name}\b|`t5suite\.{name}`")


class SiteTest(absltest.TestCase):
    def test_the_configuration_asks_nobody_for_fonts_or_scripts(self):
        text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
        self.assertIn("font: false", text)
        self.assertNotRegex(text, r"https?://|analytics")
        self.assertTrue(yaml.safe_load(text)["strict"])

    def test_no_fence_is_left_open(self):
        for page in pages():
            fences = re.findall(r"^\s*```", page.read_text(encoding="utf-8"), re.M)
            self.assertEqual(len(fences), 2 * len(blocks(page)), page.name)

    @pytest.mark.slow
    def test_the_texts_for_language_models_have_every_page_of_the_navigation(self):
        if find_spec("mkdocs") is None:
            self.skipTest("mkdocs is not installed: python -m pip install '.[docs]'")
        from mkdocs.commands.build import build
        from mkdocs.config import load_config

        folder = Path(tempfile.mkdtemp())
        # The theme and the API have no part in these texts.
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), plugins=[], theme={"name": "mkdocs"}))
        index, full = ((folder / name).read_text(encoding="utf-8") for name in ("llms.txt", "llms-full.txt"))
        self.assertRegex(index, r"\A# t5suite\n\n> .+\n\n")
        places = []
        for page in in_navigation():
            title, *others = re.findall(r"^#+ (.+)$", prose(DOCS / page), re.M)
            self.assertRegex(index, rf"\n- \[{re.escape(title)}\]\({page[:-3]}\.html\): .{{10,300}}\n", page)
            for heading in (title, *others):
                self.assertRegex(full, rf"\n#+ {re.escape(heading)}\n", page)
            places.append(full.index(f"<!-- {page} -->\n\n"))
        self.assertEqual(places, sorted(places))
        for link in re.findall(r"\]\(([^)]+)\)", index):
            self.assertTrue((folder / link).is_file(), link)

    def test_the_advice_can_be_typed(self):
        advice = re.findall(r"`(--[^`]+)`", prose(DOCS / "advice.md"))
        self.assertGreater(len(advice), 20)
        for flags in advice:
            scripts = [problems(f"python {name}.py {flags}") for name in ("fine_tune_t5", "pre_train_t5")]
            self.assertIn([], scripts, flags)

    @pytest.mark.slow
    def test_the_site_builds_without_a_warning(self):
        if find_spec("mkdocs") is None or find_spec("mkdocstrings") is None:
            self.skipTest("mkdocs is not installed: python -m pip install '.[docs]'")
        folder = tempfile.mkdtemp()
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
        environment = {"PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        self.assertNotIn("WARNING", done.stderr)
        home = (Path(folder) / "index.html").read_text(encoding="utf-8")
        self.assertNotRegex(home, r'(src|href)="https?://(?!squidfunk)')


TABLE = yaml.safe_load((Path(__file__).parent / "documented_blocks.yaml").read_text(encoding="utf-8"))


def with_commands(page: Path) -> list[Block]:
    """The blocks that hold commands, but for those that show what is refused."""
    return [block for block in blocks(page) if block.commands and not any("error: " in line for line in block.lines)]


def entries(page: str) -> list[tuple[Block, dict]]:
    """Each block of a page with what the table says of it; an empty dict where it says nothing."""
    rows = TABLE.get(page, [])
    if isinstance(rows, dict):
        return [(block, {"why": rows["all"]}) for block in with_commands(ROOT / page)]
    left, found = list(rows), []
    for block in with_commands(ROOT / page):
        row = next((row for row in left if block.commands[0].startswith(row["block"])), None)
        if row:
            left.remove(row)
        found.append((block, row or {}))
    return found


PAGES = [str(page.relative_to(ROOT)) for page in pages() if with_commands(page)]
RUN = [page for page in PAGES if any("run" in row for _, row in entries(page))]


class ChangelogTest(parameterized.TestCase):
    def test_no_item_stands_twice(self):
        """Two versions of one item, as merges leave them, begin alike."""
        text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
        beginnings = [line[:60] for line in text.splitlines() if line.startswith("* ")]
        self.assertCountEqual(beginnings, set(beginnings))


class ParsedTest(parameterized.TestCase):
    @parameterized.parameters(*PAGES)
    def test_flags_choices_and_files_of_every_command_exist_and_the_table_says_how_it_is_run(self, page):
        for block, row in entries(page):
            for command in block.commands:
                self.assertEmpty(problems(command), f"{block.place}: {command}")
            how = f"say in tests/documented_blocks.yaml how it is run, or why not: {block.commands[0]}"
            self.assertTrue(row.get("why") or row.get("run") in ("small", "as it is"), f"{block.place}: {how}")
            for start in row.get("skip") or ():
                self.assertTrue(any(line.startswith(start) for line in block.commands), f"{block.place}: {start}")

    def test_the_table_names_no_page_or_block_that_is_gone(self):
        self.assertEmpty(set(TABLE) - set(PAGES))
        for page, rows in TABLE.items():
            if isinstance(rows, list):
                self.assertLen(rows, sum(1 for _, row in entries(page) if row), page)

    def test_reasons_name_tests_that_are_there(self):
        text = (Path(__file__).parent / "documented_blocks.yaml").read_text(encoding="utf-8")
        for name in re.findall(r"\btest_\w+\.py", text):
            self.assertTrue((Path(__file__).parent / name).is_file(), name)

    def test_a_false_command_is_found(self):
        for command, wrong in {
            "python fine_tune_t5.py --learning_rat 1": ["fine_tune_t5.py has no flag --learning_rat"],
            "python fine_tune_t5.py --eval_method guess": ["--eval_method takes no 'guess'"],
            "t5suite prdict --x": ["t5suite has no sub-command prdict"],
            "t5suite predict --beams 4 | head": ["t5suite predict has no flag --beams"],
            "t5suite slurm submit fine_tune -- python pre_train_t5.py --x 1": ["pre_train_t5.py has no flag --x"],
            "python -m benchmarks.nothing": ["there is no module benchmarks.nothing"],
            "python -m benchmarks.step --profil": ["benchmarks.step has no flag --profil"],
            "torchrun --nproc_per_node 2 fine_tune_t5.py mini.yaml --bf16": [],
        }.items():
            self.assertEqual(problems(command), wrong)


class OtherBlocksTest(parameterized.TestCase):
    """Blocks that are no commands: Python compiles and imports what is there, YAML and JSON can be read."""

    @parameterized.parameters(*((str(page.relative_to(ROOT)),) for page in pages()))
    def test_python_yaml_and_json_are_right(self, page):
        for block in blocks(ROOT / page):
            text = "\n".join(block.lines)
            if block.language == "python":
                for node in ast.walk(ast.parse(text, block.place)):
                    names = [alias.name for alias in getattr(node, "names", ())] if isinstance(node, ast.Import) else []
                    if isinstance(node, ast.ImportFrom):
                        names = [f"{node.module}.{alias.name}" for alias in node.names]
                    for name in names:
                        self.assertTrue(is_name(name) or not name.startswith("t5suite"), f"{block.place}: {name}")
            elif block.language == "yaml":
                self.assertIsInstance(yaml.safe_load(text), dict, block.place)
            elif block.language == "json":
                self.assertIsNotNone(json.loads(text), block.place)


@pytest.mark.slow
class RunTest(parameterized.TestCase):
    @parameterized.parameters(*RUN)
    def test_the_commands_of_a_page_run(self, page):
        folder = workplace()
        for block, row in entries(page):
            if "run" in row:
                wrong = run(block, row, folder)
                self.assertIsNone(wrong, wrong)


def run(block: Block, row: dict, folder: Path) -> str | None:
    """What is wrong with a block run in `folder`; None where nothing is."""
    skipped = tuple(row.get("skip") or ())
    lines = [command for command in block.commands if not (skipped and command.startswith(skipped))]
    lines = [line if row["run"] == "as it is" else small(line) for line in lines]
    setup, settings = surroundings()
    script = "\n".join(["set -eo pipefail", setup, row.get("before", ""), "echo BEGIN", *lines])
    done = bash(script, folder, settings)
    output = done.stdout.partition("BEGIN\n")[2]
    if done.returncode != 0:
        return f"{block.place}: exit {done.returncode}\n" + "\n".join(lines) + "\n" + done.stdout[-3000:]
    printed, continued = [], False
    for line in block.lines if block.language == "console" else ():
        if line.strip() and not continued and not line.startswith("$ "):
            printed.append(line)
        continued = line.endswith("\\") and (continued or line.startswith("$ "))
    missing = None if skipped else unprinted(printed, output)
    return missing and f"{block.place}: not printed: {missing!r}\n{output[-3000:]}"


PAGE = Path(__file__).parent.parent / "docs" / "coverage.md"


@pytest.mark.slow
class CoverageTest(parameterized.TestCase):
    @parameterized.parameters(*((name,) for name in sections(PAGE)))
    def test_a_section_holds(self, name):
        wrong = check(sections(PAGE)[name], workplace())
        self.assertEmpty(wrong, "\n\n".join(wrong))


class PageTest(parameterized.TestCase):
    def test_every_feature_shows_whole_lines_of_what_its_commands_print(self):
        features = {}
        for command in (command for commands in sections(PAGE).values() for command in commands):
            features.setdefault(command.feature, []).extend(command.printed)
        for feature, printed in features.items():
            with self.subTest(feature=feature):
                self.assertNotEmpty(printed)
                self.assertEmpty([line for line in printed if line.strip() in ("", "...") or line.startswith("...")])

    def test_every_heading_has_a_command_and_stands_in_the_table_and_every_link_leads_to_one(self):
        text = PAGE.read_text(encoding="utf-8")
        headings = re.findall(r"^### (.*)$", text, re.MULTILINE)
        self.assertEqual(headings, list(dict.fromkeys(c.feature for part in sections(PAGE).values() for c in part)))
        linked = set(re.findall(r"\]\(#([^)]*)\)", text))
        self.assertEqual(linked, {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings})

    def test_lines_that_are_not_printed_are_found_whatever_their_figures(self):
        for printed, output, missing in (
            (["accuracy 71.2"], "step 1\naccuracy 3.0\n", None),
            (['"prediction": "yes", "p": 1'], '"prediction": "no", "p": 2', None),
            (["a ... c"], "a b c", None),
            (["b", "a"], "a\nb", "a"),
            (["accuracy 71.2"], "f1 3.0", "accuracy 71.2"),
        ):
            self.assertEqual(unprinted(printed, output), missing)
        command = next(iter(sections(PAGE).values()))[0]
        wrong = check([command._replace(line="echo no", printed=["yes"]), command._replace(line="false")], workplace())
        self.assertEqual(["not printed: 'yes'" in wrong[0], "exit 1" in wrong[1]], [True, True])
