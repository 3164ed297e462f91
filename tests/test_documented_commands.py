"""Every command of the README and of docs/ is right: its flags and files exist, and it is run, small, or a table says why not."""

import ast
import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from absl.testing import absltest, parameterized
from documented import Block, blocks, check, is_name, pages, problems, sections, unprinted, workplace
from small_blocks import ROOT, small, surroundings

TABLE = yaml.safe_load((Path(__file__).parent / "documented_blocks.yaml").read_text(encoding="utf-8"))
# Longest that one block may take, in seconds, beside other work.
HANG = 1500


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


class ParsedTest(parameterized.TestCase):
    @parameterized.parameters(*PAGES)
    def test_flags_choices_and_files_of_every_command_exist(self, page):
        for block in with_commands(ROOT / page):
            for command in block.commands:
                self.assertEmpty(problems(command), f"{block.place}: {command}")

    @parameterized.parameters(*PAGES)
    def test_the_table_says_of_every_block_whether_it_is_run_or_why_not(self, page):
        for block, row in entries(page):
            self.assertTrue(
                row.get("why") or row.get("run") in ("small", "as it is"),
                f"{block.place}: say in tests/documented_blocks.yaml how it is run, or why not: {block.commands[0]}",
            )

    def test_the_table_names_no_page_or_block_that_is_gone(self):
        self.assertEmpty(set(TABLE) - set(PAGES))
        for page, rows in TABLE.items():
            if isinstance(rows, list):
                self.assertLen(rows, sum(1 for _, row in entries(page) if row), page)

    @parameterized.parameters(*PAGES)
    def test_every_command_that_is_skipped_is_there(self, page):
        for block, row in entries(page):
            for start in row.get("skip") or ():
                self.assertTrue(any(line.startswith(start) for line in block.commands), f"{block.place}: {start}")

    def test_reasons_name_tests_that_are_there(self):
        text = (Path(__file__).parent / "documented_blocks.yaml").read_text(encoding="utf-8")
        for name in re.findall(r"\btest_\w+\.py", text):
            self.assertTrue((Path(__file__).parent / name).is_file(), name)

    @parameterized.parameters(
        ("python fine_tune_t5.py --learning_rat 1", ["fine_tune_t5.py has no flag --learning_rat"]),
        ("python fine_tune_t5.py none.yaml", ["none.yaml is neither in the checkout nor a shipped recipe"]),
        ("python fine_tune_t5.py --eval_method guess", ["--eval_method takes no 'guess'"]),
        ("t5suite prdict --x", ["t5suite has no sub-command prdict"]),
        ("t5suite predict --beams 4 | head", ["t5suite predict has no flag --beams"]),
        ("t5suite sweep recipes/no.yaml", ["recipes/no.yaml is not in the checkout"]),
        ("t5suite slurm submit fine_tune -- python pre_train_t5.py --x 1", ["pre_train_t5.py has no flag --x"]),
        ("python -m benchmarks.nothing", ["there is no module benchmarks.nothing"]),
        ("python -m benchmarks.collator --profil", ["benchmarks.collator has no flag --profil"]),
        ("python -m benchmarks.collator --profile", []),
        ("make nothing", ["make has no target nothing"]),
        ("torchrun --nproc_per_node 2 fine_tune_t5.py mini.yaml --bf16", []),
    )
    def test_a_false_command_is_told(self, command, wrong):
        self.assertEqual(problems(command), wrong)

    @parameterized.parameters(
        (
            "python fine_tune_t5.py ... --freeze encoder   # why",
            "python fine_tune_t5.py --freeze encoder $SMALL $STEPS",
        ),
        (
            "python fine_tune_t5.py a.yaml --max_steps 300 | head",
            "python fine_tune_t5.py a.yaml $SMALL --max_steps 6 | head",
        ),
        ("t5suite predict --model_name_or_path t5-small", "t5suite predict --model_name_or_path $T5"),
        (
            "python pre_train_t5.py --config_name t5-v1_1-small",
            "python pre_train_t5.py --config_name mini $SMALL_PRE $STEPS",
        ),
    )
    def test_commands_are_made_small(self, command, expected):
        self.assertEqual(small(command), expected)


class OtherBlocksTest(parameterized.TestCase):
    """Blocks that are no commands: Python compiles and imports what is there, YAML and JSON can be read."""

    @parameterized.parameters(*((str(page.relative_to(ROOT)),) for page in pages()))
    def test_python_yaml_and_json_are_right(self, page):
        for block in blocks(ROOT / page):
            text = "\n".join(block.lines)
            if block.language == "python":
                for node in ast.walk(ast.parse(text, block.place)):
                    for name in _imported(node):
                        self.assertTrue(is_name(name), f"{block.place}: {name}")
            elif block.language == "yaml":
                self.assertIsInstance(yaml.safe_load(text), dict, block.place)
            elif block.language == "json":
                self.assertIsNotNone(json.loads(text), block.place)

    def test_the_worked_example_is_the_shipped_file_and_its_python_holds(self):
        page = {block.language: "\n".join(block.lines) for block in blocks(ROOT / "docs/add_a_task.md")}
        shipped = ROOT / "examples/own_task/notes.yaml"
        self.assertEqual(yaml.safe_load(page["yaml"]), yaml.safe_load(shipped.read_text(encoding="utf-8")))
        here = os.getcwd()
        try:
            os.chdir(ROOT)
            exec(compile(page["python"], "docs/add_a_task.md", "exec"), {})
        finally:
            os.chdir(here)

    def test_the_rows_of_the_worked_example_have_its_columns_and_labels(self):
        entry = yaml.safe_load((ROOT / "examples/own_task/notes.yaml").read_text(encoding="utf-8"))["desk"]["notes"]
        with (ROOT / "examples/own_task/notes.csv").open(encoding="utf-8", newline="") as lines:
            rows = list(csv.DictReader(lines))
        self.assertLen(rows, 600)
        self.assertLen({(row["place"], row["note"]) for row in rows}, 600)
        self.assertSameElements({row[entry["label_column_name"]] for row in rows}, entry["labels"])
        self.assertContainsSubset(entry["text_column_name"], rows[0])


def _imported(node) -> list[str]:
    """Names of the suite that an import statement asks for."""
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names if node.module.startswith("t5suite")]
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names if alias.name.startswith("t5suite")]
    return []


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
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**os.environ, **settings, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG,
    )
    output = done.stdout.partition("BEGIN\n")[2]
    if done.returncode != 0:
        return f"{block.place}: exit {done.returncode}\n" + "\n".join(lines) + "\n" + done.stdout[-3000:]
    printed = [line for line in _printed(block) if line.strip()]
    missing = None if skipped else unprinted(printed, output)
    return missing and f"{block.place}: not printed: {missing!r}\n{output[-3000:]}"


def _printed(block: Block) -> list[str]:
    """The lines of a console block that are no commands."""
    if block.language != "console":
        return []
    found, continued = [], False
    for line in block.lines:
        if not continued and not line.startswith("$ "):
            found.append(line)
        continued = line.endswith("\\") and (continued or line.startswith("$ "))
    return found


def main(*names: str) -> None:
    """Runs the blocks of the pages named: python tests/test_documented_commands.py docs/fine_tune.md"""
    for page in names or RUN:
        folder = workplace()
        for block, row in entries(page):
            if "run" in row:
                print(block.place, wrong := run(block, row, folder) or "holds", flush=True)
                if wrong != "holds":
                    break


PAGE = Path(__file__).parent.parent / "docs" / "coverage.md"


@pytest.mark.slow
class CoverageTest(parameterized.TestCase):
    @parameterized.parameters(*((name,) for name in sections(PAGE)))
    def test_a_section_holds(self, name):
        wrong = check(sections(PAGE)[name], workplace())
        self.assertEmpty(wrong, "\n\n".join(wrong))


class PageTest(parameterized.TestCase):
    """What can be seen of the page without running it."""

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


class CommandPageTest(parameterized.TestCase):
    @parameterized.parameters(
        (["accuracy 71.2"], "step 1\naccuracy 3.0\n", None),
        (["a ... c"], "a b c", None),
        (["b", "a"], "a\nb", "a"),
        (["accuracy 71.2"], "f1 3.0", "accuracy 71.2"),
    )
    def test_printed_lines_are_found_in_order_whatever_their_figures(self, printed, output, missing):
        self.assertEqual(unprinted(printed, output), missing)

    def test_a_command_that_prints_nothing_of_the_kind_is_told(self):
        page = PAGE.parent / "coverage.md"
        command = next(iter(sections(page).values()))[0]
        wrong = check([command._replace(line="echo no", printed=["yes"]), command._replace(line="false")], workplace())
        self.assertLen(wrong, 2)
        self.assertIn("not printed: 'yes'", wrong[0])
        self.assertIn("exit 1", wrong[1])


if __name__ == "__main__":
    absltest.main()
