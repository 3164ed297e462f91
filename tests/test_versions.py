"""The tests with other versions: what is installed for the oldest and the newest, and what makes the report a failure."""

import contextlib
import io

from absl.testing import parameterized

from tools.versions import Counts, newest_requirements, oldest_requirements, print_results

PROJECT = {
    "dependencies": ["torch>=2.13", "transformers>=5.23,<5.25"],
    "optional-dependencies": {
        "web": ["gradio>=6,<7"],
        "old": ["aim>=3; python_version < '3'"],
        "dev": ["Gradio>=6.1", "scikit_learn>=1.6"],
    },
}
JOB = {"job": "export", "passed": True, "result": "equal"}
PART = {"entry": "quick_attention", "state": "proved", "reason": None}
GREEN = Counts(passed=10, failed=0, skipped=1)


class RequirementsTest(parameterized.TestCase):
    def test_the_oldest_are_the_bounds_of_all_extras_for_this_python_and_the_highest_of_two(self):
        self.assertEqual(
            list(oldest_requirements(PROJECT).values()),
            ["torch==2.13", "transformers==5.23", "gradio==6.1", "scikit-learn==1.6"],
        )

    def test_the_newest_are_what_the_tests_need_without_upper_bounds(self):
        self.assertEqual(
            list(newest_requirements(PROJECT).values()),
            ["torch>=2.13", "transformers>=5.23", "gradio>=6.1", "scikit-learn>=1.6"],
        )

    @parameterized.parameters("ninja", "ninja<2", "ninja==1.11")
    def test_a_dependency_without_a_lower_bound_is_refused_by_name(self, text):
        with self.assertRaisesRegex(ValueError, "ninja.* needs one lower bound"):
            oldest_requirements({"dependencies": [text], "optional-dependencies": {}})


class ReportTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("all is well", GREEN, [JOB], [PART], 0),
        ("plain code in place of a fast path", GREEN, [JOB], [PART, {**PART, "state": "stock"}], 0),
        ("a failed test", Counts(10, 1, 0), [JOB], [PART], 1),
        ("a failed job", GREEN, [JOB, {**JOB, "passed": False}], [PART], 1),
        ("no job", GREEN, [], [PART], 1),
        ("a refused part", GREEN, [JOB], [PART, {**PART, "state": "refused"}], 1),
        ("a failed part", GREEN, [JOB], [PART, {**PART, "state": "failed"}], 1),
        ("no part", GREEN, [JOB], [], 1),
    )
    def test_the_exit_code(self, tests, jobs, parts, code):
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(print_results(tests, jobs, parts), code)
