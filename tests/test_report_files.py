"""What `t5suite report` writes over, and what it leaves alone."""

import contextlib
import functools
import io
import tempfile
from pathlib import Path
from unittest import mock

from absl.testing import absltest, parameterized
from report_runs import make_run

from t5suite import cli
from t5suite.base.errors import ConfigError


def command(*argv) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        cli.main(["report", *map(str, argv)])
    return out.getvalue()


@functools.cache
def two_runs() -> tuple:
    place = Path(tempfile.mkdtemp())
    return make_run(place / "s1", "sentiment", seed=1), make_run(place / "s2", "sentiment", seed=2)


def bytes_in(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


class FilesTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.out = Path(tempfile.mkdtemp()) / "out"
        # Which files there are is what counts here; drawing them takes seconds.
        drawn = dict.fromkeys(("png", "svg", "inline"), b'<svg viewBox="0 0 1 1"></svg>')
        self.enter_context(mock.patch("t5suite.reports.page.render", lambda plot: drawn))

    def test_a_later_report_takes_the_place_of_an_earlier_one(self):
        command(*two_runs(), "--output", self.out, "--format", "html,md")
        first = bytes_in(self.out)
        said = command(two_runs()[0], "--output", self.out, "--format", "html")
        second = bytes_in(self.out)
        alone = self.out.with_name("alone")
        command(two_runs()[0], "--output", alone, "--format", "html")
        self.assertEqual(second, bytes_in(alone))
        gone = first.keys() - second.keys()
        self.assertContainsSubset({"report.md", "plots/confusion-s2-sentiment.png"}, gone)
        self.assertIn(f"; {len(gone)} files of the report before it are gone", said)

    @parameterized.parameters("notes.txt", "plots/mine.png", "report.md")
    def test_a_folder_with_foreign_files_is_refused_before_anything_is_written(self, name):
        if name != "report.md":
            command(two_runs()[0], "--output", self.out, "--format", "html")
        (self.out / name).parent.mkdir(parents=True, exist_ok=True)
        (self.out / name).write_text("mine")
        before = bytes_in(self.out)
        with self.assertRaisesRegex(ConfigError, rf"--output .*: {name} in it is of no report"):
            command(two_runs()[1], "--output", self.out)
        self.assertEqual(bytes_in(self.out), before)

    def test_a_list_that_is_broken_makes_nothing_ours(self):
        command(two_runs()[0], "--output", self.out, "--format", "html")
        (self.out / ".report_files.json").write_text('{"files": ["report.')
        with self.assertRaises(ConfigError):
            command(two_runs()[0], "--output", self.out)

    def test_a_report_that_was_cut_off_can_be_written_again(self):
        cut_off = {"html": mock.Mock(side_effect=KeyboardInterrupt)}
        with mock.patch.dict("t5suite.reports.page.WRITERS", cut_off), contextlib.suppress(KeyboardInterrupt):
            command(*two_runs(), "--output", self.out)
        self.assertIn("plots/confusion-s2-sentiment.png", bytes_in(self.out))
        command(two_runs()[0], "--output", self.out, "--format", "html")
        self.assertIn("report.html", bytes_in(self.out))
        self.assertNotIn("plots/confusion-s2-sentiment.png", bytes_in(self.out))


if __name__ == "__main__":
    absltest.main()
