"""The process that mirrors a run to Aim, Trackio or one of the trackers that Hugging Face's callbacks know.

    python -m t5suite.tracking.mirrors.process runs/glue-rte-t5-small aim   # sends what Aim does not have yet

A tracker gets one row a step, and each step once: `told.json` says how far it has come, and trackers that can say it
better are asked. One that a run goes on to after a restart is the same run over there.
"""

import sys
from pathlib import Path

from t5suite.base.errors import EXIT_BAD_CONFIGURATION, EXIT_FINISHED, EXIT_IO
from t5suite.base.redaction import printable, redacted
from t5suite.runs.directory import MANIFEST, METRICS, read_json
from t5suite.tracking.metric_lines import MetricLines
from t5suite.tracking.mirrors.aim import AimRun
from t5suite.tracking.mirrors.callback import CALLBACKS, CallbackRun
from t5suite.tracking.mirrors.telling import Commands, Told, leave, lock, outcome_of, send_rows, serve, setup_of
from t5suite.tracking.mirrors.trackio import TrackioRun
from t5suite.tracking.sample_lines import SampleLines


class Rows:
    """A tracker's run that gets a step's metrics, then the samples of its evaluation."""

    def __init__(self, run, directory: Path):
        self._run, self._samples = run, SampleLines(directory)

    def log(self, row: dict, step: int) -> None:
        """One row."""
        self._run.log(row, step)
        for name, table in self._samples.tables(step).items():
            self._run.samples(name, table, step)


def mirror(directory: Path, name: str, commands: Commands, say) -> None:
    """Opens the tracker's run, sends rows as they come, and closes.

    Raises:
      Exception: whatever the tracker raises; nothing is lost by it, since `metrics.jsonl` has every line.
    """
    folder = directory / "trackers" / name
    told = Told(folder)
    run = BACKENDS[name](directory, setup_of(directory, folder), told.of_theirs)
    known = run.last_step()
    told.keep(told.step if known is None else known, **run.of_theirs)
    say(state="online", url=run.place)
    last = send_rows(
        Rows(run, directory), MetricLines(directory / METRICS, told.step + 1), commands, told.step + 1, keep=told.keep
    )  # fmt: skip
    outcome = outcome_of(directory, commands)
    if outcome is not None:
        run.conclude(outcome, read_json(directory / MANIFEST))
    run.finish(1 if commands.orphaned else commands.exit_code)
    say(state="finished", last=last)


def main(argv) -> int:
    """The process: `RUN_DIRECTORY TRACKER [--live]`; `--live` where a training process gives the words."""
    directory, name = Path(argv[0]).absolute(), argv[1]
    if name not in BACKENDS:
        print(f"error: no tracker {name!r}; known are {', '.join(BACKENDS)}", file=sys.stderr)
        return EXIT_BAD_CONFIGURATION
    folder = directory / "trackers" / name
    folder.mkdir(parents=True, exist_ok=True)
    if "--live" in argv:
        return serve(folder, lambda commands, say: mirror(directory, name, commands, say))
    try:
        with lock(folder):
            mirror(directory, name, Commands(), lambda **told: print(*told.values(), flush=True))
    except Exception as error:
        print(printable(redacted(f"error: {error}")), file=sys.stderr)
        return EXIT_IO
    return EXIT_FINISHED


BACKENDS = {
    "aim": AimRun,
    "trackio": TrackioRun,
    **{
        name: lambda directory, setup, theirs, name=name: CallbackRun(name, directory, setup, theirs)
        for name in CALLBACKS
    },
}

if __name__ == "__main__":
    leave(main(sys.argv[1:]))
