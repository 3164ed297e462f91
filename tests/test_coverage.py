"""Every command of docs/coverage.md runs and prints what the page says."""

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
