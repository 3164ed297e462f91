"""The curves beside a model card: they hold what was logged, and stand where there is something to see."""

import json
import tempfile
from pathlib import Path
from unittest import mock

from absl.testing import absltest, parameterized

from t5suite.reports import plots
from t5suite.reports.card_facts import CardFacts
from t5suite.reports.cards import write_card

ONE_TASK = [
    {"step": 5, "train/loss": 3.0, "train/learning_rate": 1e-3},
    {"step": 10, "train/loss": 2.0},
    {"step": 10, "eval/accuracy": 50.0, "eval/average": 50.0, "eval/loss": 1.5, "eval/invalid_rate": 4.0},
    {"step": 20, "eval/accuracy": 70.0, "eval/average": 70.0, "eval/loss": 1.0, "eval/truncated_rate": 1.0},
    {"step": 20, "train/train_runtime": 9.0, "train/train_loss": 2.5},
]


def run_with(lines) -> Path:
    folder = Path(tempfile.mkdtemp())
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def drawn(folder) -> list[dict]:
    """What each half of the picture shows: `{label: points}`."""
    figures = []
    with mock.patch.object(plots, "_saved", lambda figure, path: figures.append(figure) or path):
        plots.learning_curves(folder, "t5-small on rte")
    if not figures:
        return []
    return [
        {line.get_label(): list(map(tuple, line.get_xydata().tolist())) for line in axes.lines}
        for axes in figures[0].axes
    ]


class LearningCurvesTest(parameterized.TestCase):
    def test_lines_are_the_logged_points(self):
        losses, scores = drawn(run_with(ONE_TASK))
        self.assertEqual(losses, {"training loss": [(5, 3.0), (10, 2.0)], "held-out loss": [(10, 1.5), (20, 1.0)]})
        self.assertEqual(scores, {"accuracy": [(10, 50.0), (20, 70.0)]})

    def test_a_mixture_has_every_task_or_the_average_alone(self):
        lines = [
            {"step": step, "eval/average": 60.0, **{f"eval/t{i}/accuracy": 50.0 + i for i in range(count)}}
            for count, step in ((3, 10), (3, 20))
        ]
        (scores,) = drawn(run_with(lines))
        self.assertEqual(list(scores), ["average", "t0 accuracy", "t1 accuracy", "t2 accuracy"])
        many = [{**line, **{f"eval/u{i}/f1": 1.0 for i in range(9)}} for line in lines]
        (scores,) = drawn(run_with(many))
        self.assertEqual(scores, {"average": [(10, 60.0), (20, 60.0)]})

    @parameterized.named_parameters(
        ("nothing", []),
        ("one_point", [{"step": 5, "train/loss": 3.0, "eval/accuracy": 1.0}]),
        ("no_numbers", [{"step": 5, "eval/pearson": None}, {"step": 9, "eval/pearson": None}]),
    )
    def test_nothing_is_drawn_where_there_is_no_curve(self, lines):
        folder = run_with(lines)
        self.assertIsNone(plots.learning_curves(folder))
        self.assertEqual([path.name for path in folder.iterdir()], ["metrics.jsonl"])

    def test_the_card_shows_the_picture_that_is_there(self):
        folder = run_with(ONE_TASK)
        manifest = {"settings": {}, "versions": {"t5suite": "0"}, "command": []}
        facts = CardFacts("t5", {"tasks": {}, "averages": {}}, manifest, "text-generation")
        write_card(folder, facts)
        self.assertNotIn("![", (folder / "README.md").read_text())
        self.assertEqual(plots.learning_curves(folder).read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        write_card(folder, facts)
        self.assertIn("![losses and scores over the updates](learning_curves.png)", (folder / "README.md").read_text())


if __name__ == "__main__":
    absltest.main()
