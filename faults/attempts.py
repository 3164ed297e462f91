"""Many short runs in one process: what each ends with, what it says and what it leaves.

    >>> problems(context, {"bad JSON": Attempt("fine_tune_t5", flags, 65, r"rows.jsonl:3: not JSON")})
    {'bad JSON': None}

For runs that are to end before they train, or soon after; whatever ends the process itself needs one of its own.
"""

import contextlib
import importlib
import io
import json
import os
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from faults.harness import Context

SECONDS = 200.0


@dataclass(frozen=True)
class Ended:
    """A run that has ended: its exit code, what it wrote to the terminal, and its directory."""

    code: int
    said: str
    directory: Path

    def manifest(self) -> dict:
        """The run's manifest."""
        return json.loads((self.directory / "manifest.json").read_text(encoding="utf-8"))

    def tail(self, lines: int = 2) -> str:
        """The end of what it said."""
        return " | ".join([line.strip() for line in self.said.splitlines() if line.strip()][-lines:])[-400:]


@dataclass(frozen=True)
class Attempt:
    """One run and what must become of it.

    Attributes:
      script: "fine_tune_t5", "pre_train_t5" or "t5suite.cli".
      code: what it must exit with, or several codes of which any will do.
      says: a regular expression that its output must match; "" for any.
      look: whatever else must hold: `Ended -> problem or None`.
      directory: its `--output_dir`, a new one if none is given; False adds no such flag.
    """

    script: str
    flags: list[str]
    code: int | tuple[int, ...] = 0
    says: str = ""
    look: Callable[[Ended], str | None] | None = None
    directory: Path | bool | None = None


def problems(context: Context, attempts: dict[str, Attempt], environment: dict | None = None) -> dict[str, str | None]:
    """Makes all attempts, one after the other, and says for each what went wrong, or None."""
    folder = context.folder("attempts")
    folder.mkdir()
    directories = {name: attempt.directory or folder / f"run-{i}" for i, (name, attempt) in enumerate(attempts.items())}
    spec = {}
    for name, attempt in attempts.items():
        added = [] if attempt.directory is False else ["--output_dir", str(directories[name])]
        spec[name] = [attempt.script, [*map(str, attempt.flags), *added]]
    (folder / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
    victim = context.run("faults.attempts:live", [folder], timeout=SECONDS, traced=False, env=environment)
    path = folder / "ended.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    ended = {name: Ended(code, said, directories[name]) for name, code, said in map(json.loads, lines)}
    died = f"the process died with {victim.code}: {victim.tail()}"
    return {name: problem(attempt, ended[name]) if name in ended else died for name, attempt in attempts.items()}


def problem(attempt: Attempt, ended: Ended) -> str | None:
    """What is wrong with the way a run has ended, or None."""
    if ended.code not in (attempt.code if isinstance(attempt.code, tuple) else (attempt.code,)):
        return f"exit {ended.code}, not {attempt.code}: {ended.tail()}"
    if "Traceback" in ended.said:
        return f"a traceback: {ended.tail()}"
    if not re.search(attempt.says, ended.said):
        return f"says nothing like {attempt.says!r}: {ended.tail()}"
    if ended.code and attempt.directory is None and (ended.directory / "results.json").exists():
        return "there are results all the same"
    return attempt.look(ended) if attempt.look else None


def live(argv) -> None:
    """Runs what `spec.json` in a folder says; one line of `ended.jsonl` for each."""
    from t5suite.base.programs import run_command

    folder = Path(argv[0])
    for name, (script, flags) in json.loads((folder / "spec.json").read_text(encoding="utf-8")).items():
        said, surroundings = io.StringIO(), dict(os.environ)
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                code = run_command(importlib.import_module(script).main, flags)
            except SystemExit as error:
                code = error.code or 0
            except BaseException:
                traceback.print_exc()
                code = 1
        os.environ.clear()
        os.environ.update(surroundings)
        with (folder / "ended.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps([name, code, said.getvalue()]) + "\n")
