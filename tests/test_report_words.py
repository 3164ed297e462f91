"""What columns, notes and pictures of a report say to those who cannot guess them, or do not see them."""

import collections
import contextlib
import doctest
import io
import json
import re
import sys
import tempfile
from pathlib import Path

from absl.testing import absltest, parameterized
from report_runs import make_run

from t5suite.data.rows import formats
from t5suite.data.rows.jsonl import write_jsonl
from t5suite.reports import evaluations as examples
from t5suite.reports import evaluations as rereading
from t5suite.reports import page as confusion_svg
from t5suite.reports import plots
from t5suite.reports import results as panels
from t5suite.reports import results as report_data_module
from t5suite.reports import tables as glossary
from t5suite.reports import tables as run_tables
from t5suite.reports.page import confusion_picture, html_page
from t5suite.reports.results import panels_of, report_data, unit_of
from t5suite.reports.tables import explained, print_run_table, read_runs

ROOT = Path(__file__).resolve().parent.parent


def folder() -> Path:
    return Path(tempfile.mkdtemp())


class MeaningsTest(parameterized.TestCase):
    def test_every_remark_that_evaluations_make_is_explained(self):
        made = set()
        for path in (ROOT / "t5suite" / "training").rglob("*.py"):
            made |= set(re.findall(r'marks\.append\(f?"([^"]+)"\)', path.read_text()))
        self.assertContainsSubset({"selected on", "subset", "train subset"}, made)
        for mark in made:
            shown = mark.split("{")[0] + "3" if "{" in mark else mark
            self.assertLen(explained([], [shown]), 1, mark)

    def test_a_line_below_the_table_explains_what_stands_in_it_and_nothing_else(self):
        run = make_run(folder() / "a", "sentiment")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            print_run_table(read_runs([run]))
        said = " ".join(out.getvalue().split())
        self.assertIn("subset: not all rows were scored", said)
        self.assertNotIn("selected on", said)

    def test_the_page_explains_its_notes_and_columns_without_a_pointer(self):
        run = make_run(folder() / "a", "sentiment")
        page = html_page(report_data([run]), [], {})
        lists = re.findall(r'<details class="words"><summary>(.*?)</summary><dl>(.*?)</dl>', page)
        self.assertEqual([title for title, _ in lists], ["What the columns mean", "What the notes mean"])
        self.assertEqual(re.findall("<dt>(.*?)</dt>", lists[1][1]), ["subset"])
        self.assertIn('<abbr title="not all rows were scored">subset</abbr>', page)
        table = page[page.index('class="sortable scores-table"') :]
        heads = [
            re.sub("<.*?>", "", head)
            for head in re.findall("<th[^>]*scope=.col.*?</th>", table[: table.index("</thead>")])
        ]
        for word in re.findall("<dt>(.*?)</dt>", lists[0][1]):
            self.assertIn(word, heads)


class SharesTest(parameterized.TestCase):
    def run_with(self, **shares) -> dict:
        run = make_run(folder() / "a", "sentiment")
        lines = [
            {
                "step": step,
                "epoch": 0.1,
                "seconds": 1.0,
                **{f"eval/{name}": values[at] for name, values in shares.items()},
            }
            for at, step in enumerate((10, 20))
        ]
        write_jsonl(run / "metrics.jsonl", lines)
        return {panel["title"]: panel for panel in panels_of(report_data([run]))}

    def test_shares_of_answers_have_a_curve_where_they_are_ever_above_0(self):
        panels = self.run_with(truncated_rate=[0.0, 0.0], invalid_rate=[4.0, 0.0], accuracy=[0.0, 0.0])
        self.assertEqual(list(panels), ["sentiment: accuracy", "sentiment: invalid answers"])
        self.assertEqual(panels["sentiment: invalid answers"]["lines"][0]["points"], [[10, 4.0], [20, 0.0]])
        self.assertEqual(panels["sentiment: invalid answers"]["unit"], "%")
        self.assertEqual(
            list(self.run_with(truncated_rate=[0.0, 0.5], invalid_rate=[0.0, 0.0])), ["sentiment: answers cut off"]
        )

    @parameterized.parameters(("accuracy", "points"), ("training loss", "nats per token"), ("invalid answers", "%"))
    def test_units(self, metric, unit):
        self.assertEqual(unit_of(metric), unit)


class ConfusionPictureTest(parameterized.TestCase):
    def test_cells_and_words_are_the_counts_of_the_predictions(self):
        run = make_run(folder() / "a", "entailment", wrong=0.4, invalid=0.1)
        lines = [json.loads(line) for line in (run / "predictions/entailment.validation.jsonl").open()]
        words = report_data([run])["confusions"][0]
        known = set(words["labels"])
        pairs = collections.Counter(
            (line["target"], line["prediction"] if line["prediction"] in known else "invalid") for line in lines
        )
        of_label = collections.Counter(line["target"] for line in lines)
        picture = str(confusion_picture(words))
        titles = re.findall(r"<title>(\d+) of (\d+) rows labelled (\w+) were answered ([^<]+)</title>", picture)
        self.assertLen(titles, len(words["labels"]) * len(words["answers"]))
        for count, whole, label, answer in titles:
            answer = answer if answer in known else "invalid"
            self.assertEqual((int(count), int(whole)), (pairs[label, answer], of_label[label]))
        shown = [int(count) for count in re.findall(r'class="count">(\d+)<', picture)]
        self.assertEqual(shown, [int(count) for count, *_ in titles])
        said = re.search('aria-label="([^"]+)"', picture)[1]
        for label in of_label:
            self.assertIn(f"Of {of_label[label]} rows labelled {label}, ", said)

    def test_right_answers_have_a_frame_and_long_labels_their_whole_name(self):
        long = "a_label_that_is_much_longer_than_a_cell"
        matrix = {"task": "t", "run": "r", "labels": [long, "<b>"], "answers": [long, "<b>", "invalid"],
                  "counts": [[3, 0, 1], [0, 0, 0]]}  # fmt: skip
        picture = str(confusion_picture(matrix))
        self.assertEqual(picture.count('class="frame"'), 2)
        self.assertGreaterEqual(picture.count(f"<title>{long}</title>"), 2)
        self.assertNotIn("<b>", picture)
        self.assertIn("Of 0 rows labelled &lt;b&gt;, none was answered.", picture)


class DocstringTest(parameterized.TestCase):
    @parameterized.parameters(
        confusion_svg.in_words, examples.where, panels.unit_of, rereading._short, report_data_module.trial_names,
        glossary.one_line, run_tables.named, plots.shown_scores, plots._label,
        formats.rows_stay, formats.words_of,
    )  # fmt: skip
    def test_examples_hold(self, function):
        for test in doctest.DocTestFinder().find(function, globs=vars(sys.modules[function.__module__])):
            self.assertNotEmpty(test.examples)
            self.assertEqual(doctest.DocTestRunner().run(test).failed, 0)


if __name__ == "__main__":
    absltest.main()
