"""Every command of docs/coverage.md runs and prints what the page says."""

import re
from pathlib import Path

import pytest
from absl.testing import absltest, parameterized
from command_page import check, sections, unprinted, workplace

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
