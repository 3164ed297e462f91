"""Those who follow a file of metrics begin where they left off, however long it is."""

import json
from pathlib import Path

from absl.testing import parameterized
from support import folder

from t5suite.tracking.metric_lines import MetricLines, thinned_lines


def lines_file(steps, broken=()) -> Path:
    """A file of metrics with one line for each of the steps, some of them broken."""
    path = folder() / "metrics.jsonl"
    texts = [json.dumps({"step": step, "seconds": 1.0, "train/loss": 0.1 * i}) for i, step in enumerate(steps)]
    texts = [text[:9] if i in broken else text for i, text in enumerate(texts)]
    path.write_text("".join(text + "\n" for text in texts))
    return path


class GoingOnTest(parameterized.TestCase):
    """Those who follow a file begin where they left off, however long it is."""

    @parameterized.parameters(1, 30, 1000, 10**6)
    def test_in_pieces_every_line_comes_once_and_half_a_line_waits(self, most_bytes):
        path = lines_file(range(100))
        expected = MetricLines(path).new_lines()
        with path.open("a") as file:
            file.write('{"step": 100')
        lines, read_lines = MetricLines(path), []
        while lines.behind or not read_lines:
            read_lines += lines.new_lines(most_bytes)
        self.assertEqual(read_lines, expected)
        with path.open("a") as file:
            file.write("}\n")
        self.assertEqual(lines.new_lines(most_bytes), [{"step": 100}])
        self.assertFalse(lines.behind)

    def test_what_is_no_line_is_named_and_the_others_are_read(self):
        path = lines_file(range(5), broken=[1])
        with self.assertLogs("t5suite", "WARNING") as logs:
            lines = MetricLines(path).new_lines()
        self.assertRegex(logs.output[0], r"metrics\.jsonl:2 is skipped")
        self.assertEqual([line["step"] for line in lines], [0, 2, 3, 4])

    def test_thinned_lines_keep_evaluations_and_the_last(self):
        path = lines_file(range(1000))
        with path.open("a") as file:
            file.write('{"step": 999, "eval/nll": 2.0}\n{"step": 1000, "train/loss": 3.0}\n')
        thinned = list(thinned_lines(path, target_count=50))
        self.assertBetween(len(thinned), 45, 55)
        self.assertEqual(thinned[-2:], [{"step": 999, "eval/nll": 2.0}, {"step": 1000, "train/loss": 3.0}])
        self.assertEqual(list(thinned_lines(path)), MetricLines(path).new_lines())
        self.assertEmpty(list(thinned_lines(path.with_name("none"))))
