"""TensorBoard as training sees it: event files that are written at once, in this process.

    >>> tracker = TensorBoardTracker(run_dir, "4f2a", {"seed": 1}, Identity())
    >>> tracker.begin(step=0)
    >>> tracker.log({"train/loss": 0.4}, step=10)
    >>> tracker.finish()

Samples, results, settings and the manifest are texts there (Markdown); a resumed run has each of them once.
"""

import os
from pathlib import Path

from t5suite.base.redaction import redacted_value
from t5suite.runs.directory import MANIFEST, METRICS, RESULTS, read_json
from t5suite.tracking.event_files import EventFile, last_step
from t5suite.tracking.identity import Identity
from t5suite.tracking.metric_lines import MetricLines, metrics_of
from t5suite.tracking.sample_lines import SampleLines, as_text, markdown, markdown_table, result_rows, tables_of


class TensorBoardTracker:
    """TensorBoard event files below `<run directory>/tensorboard`, or in a folder of the run's own below
    TENSORBOARD_LOGGING_DIR.

    Raises:
      ImportError: tensorboard is not installed.
    """

    def __init__(self, directory: Path, run_id: str, settings: dict, identity: Identity):
        try:
            import tensorboard
        except ImportError:
            raise ImportError("--report_to tensorboard needs: pip install 't5suite[tracking]'") from None
        assert tensorboard
        elsewhere = os.environ.get("TENSORBOARD_LOGGING_DIR")
        self._directory, self._last = directory, 0
        self._about, self._settings = identity.described(directory, run_id), redacted_value(settings)
        self._folder = Path(elsewhere) / f"{directory.name}-{run_id}" if elsewhere else directory / "tensorboard"
        self._events = None

    def begin(self, step: int) -> None:
        """Opens a file for what follows `step`; what older files lack of the steps before is written again."""
        told = last_step(self._folder)
        first = min(step, told)
        # The last step that was told may lack points: it counts as not told.
        self._events = EventFile(self._folder, purge_step=None if told < 0 else first)
        self._last = max(step, 0)
        if first <= 0:
            self._events.add_texts(0, {"run": as_text(self._about), "settings": as_text(self._settings)})
        samples = SampleLines(self._directory)
        for at in samples.steps():
            if first <= at <= step:
                self._events.add_texts(at, _shown(samples.tables(at)))
        for line in MetricLines(self._directory / METRICS, first).rest():
            if line["step"] <= step:
                self._events.add(line["step"], metrics_of(line))

    def log(self, metrics: dict, step: int) -> None:
        """Writes one point a metric."""
        self._last = step
        self._events.add(step, {name: value for name, value in metrics.items() if value is not None})

    def samples(self, lines: list[dict], step: int) -> None:
        """An evaluation's samples, as one table a task."""
        self._events.add_texts(step, _shown(tables_of(lines)))

    def finish(self, exit_code: int = 0) -> None:
        """Adds results and manifest of a run that has come to its end, and closes the file."""
        if self._events is None:
            return
        results = self._directory / RESULTS
        if exit_code == 0 and results.is_file():
            table = markdown_table(("task", "metric", "points"), result_rows(read_json(results)))
            manifest = as_text(read_json(self._directory / MANIFEST))
            self._events.add_texts(self._last, {"results": table, "manifest": manifest})
        self._events.close()


def _shown(tables: dict[str, list[dict]]) -> dict[str, str]:
    return {name: markdown(table) for name, table in tables.items()}
