"""How many files of ours a reader opens to follow one value through a run: a walk.

    python -m tools.walks                # every walk, each in a process of its own (a minute or two): a table
    python -m tools.walks row --files    # one, with its files and the calls between them

A walk has milestones, which are calls of libraries or of the system: the rows' file is opened, the tokenizer is called,
a tensor is made, the model runs, the loss is computed. At each, the functions of ours on the stack are those that lead
there. The walk's files are all of these; a hop is a call of a function in another file, counted once, also where a
library stands between the two. No function of ours is named here, so that figures before and after a change compare.
"""

import argparse
import contextlib
import functools
import itertools
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
TINY = ("--config_overrides=d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2", "--use_cpu", "--disable_tqdm=True")
STEPS = {"max_steps": 4, "eval_strategy": "no", "save_strategy": "steps", "save_steps": 2, "eval_method": "score"}
# The rows and texts that the walks follow.
ROWS_FILE = "walked_rows.jsonl"
TEXT_FILE = "walked_text.txt"
SWEEP_FILE = "walked_sweep.yaml"
MARKER = "walked text"
WALKED_RATE = 3e-3


@dataclass
class Walk:
    """What the milestones of one walk have recorded.

    Attributes:
      files: files of ours, by their paths in the repository, in the order in which they were reached.
      hops: `(calling file:function, called file:function)`, each once.
    """

    files: dict[str, None] = field(default_factory=dict)
    hops: dict[tuple[str, str], None] = field(default_factory=dict)

    def record(self, frame: FrameType | None = None) -> None:
        """Adds the functions of ours that are on the stack, that of a frame or the present one."""
        self.add(functions_of_ours(frame or sys._getframe(1)))

    def add(self, calls: list[tuple[str, str]]) -> None:
        """Adds `(path, function)` of calls, from the outermost to the innermost."""
        for path, _ in calls:
            self.files.setdefault(path)
        for (path, name), (called_path, called_name) in itertools.pairwise(calls):
            if path != called_path:
                self.hops.setdefault((f"{path}:{name}", f"{called_path}:{called_name}"))


def functions_of_ours(frame: FrameType | None) -> list[tuple[str, str]]:
    """`(path, function)` of every frame in the package or an entry script, from the outermost to this one."""
    calls = []
    while frame is not None:
        path = path_of_ours(frame.f_code.co_filename)
        if path is not None:
            calls.append((path, frame.f_code.co_qualname))
        frame = frame.f_back
    return calls[::-1]


@functools.cache
def path_of_ours(filename: str) -> str | None:
    """The path in the repository of a file of the package or of an entry script; None for any other file."""
    path = Path(filename)
    if not path.is_relative_to(ROOT):
        return None
    relative = path.relative_to(ROOT)
    is_ours = relative.parts[0] == "t5suite" or str(relative) in ("fine_tune_t5.py", "pre_train_t5.py")
    return str(relative) if is_ours else None


# ---------------------------------------------------------------------------------------------------------------------
# Milestones


def at_files(walk: Walk, part_of_path: str, *, written: bool) -> None:
    """A file or folder whose path has this part is opened for reading, or is made, written or renamed."""

    def hook(event: str, arguments: tuple) -> None:
        paths = [os.fspath(value) for value in arguments if isinstance(value, (str, os.PathLike))]
        if not any(part_of_path in str(path) for path in paths):
            return
        is_change = event in ("os.mkdir", "os.rename")
        if event == "open":
            flags = arguments[2] or 0
            is_change = bool(flags & (os.O_WRONLY | os.O_RDWR))
        elif not is_change:
            return
        if is_change == written:
            walk.record()

    sys.addaudithook(hook)


def at_calls(walk: Walk, owner, *names: str, only_if: Callable[..., bool] = lambda *_, **__: True) -> None:
    """A function or method of a library is called, with arguments for which the condition holds."""
    for name in names:
        setattr(owner, name, recording(walk, getattr(owner, name), only_if))


def recording(walk: Walk, original: Callable, only_if: Callable[..., bool]) -> Callable:
    """The same function, whose calls are a milestone."""

    @functools.wraps(original)
    def call(*arguments, **settings):
        if only_if(*arguments, **settings):
            walk.record()
        return original(*arguments, **settings)

    return call


def at_batches_and_losses(walk: Walk) -> None:
    """Walked texts become ids; once batches are loaded, tensors are made, the model runs, and the first loss goes back.

    What a run does after that (an evaluation, samples for its card) is another walk.
    """
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    loads_batches = False
    loss_went_back = False

    def on_the_way(*_, **__) -> bool:
        return loads_batches and not loss_went_back

    def of_walked_text(*arguments, **settings) -> bool:
        return not loss_went_back and is_about_walked_text(*arguments, **settings)

    iterate = torch.utils.data.DataLoader.__iter__

    def begin_to_load(loader):
        nonlocal loads_batches
        loads_batches = True
        return iterate(loader)

    def before_forward(module, inputs) -> None:
        if on_the_way() and isinstance(module, PreTrainedModel):
            walk.record()

    backward = torch.Tensor.backward

    def last_milestone(*arguments, **settings):
        nonlocal loss_went_back
        if on_the_way():
            walk.record()
            loss_went_back = True
        return backward(*arguments, **settings)

    at_calls(walk, PreTrainedTokenizerBase, "__call__", only_if=of_walked_text)
    torch.utils.data.DataLoader.__iter__ = begin_to_load
    at_calls(walk, torch, "tensor", "from_numpy", "as_tensor", only_if=on_the_way)
    at_calls(walk, torch.nn.functional, "cross_entropy", "log_softmax", only_if=on_the_way)
    at_calls(walk, torch.Tensor, "logsumexp", only_if=on_the_way)
    torch.Tensor.backward = last_milestone
    register_module_forward_pre_hook(before_forward)


def is_about_walked_text(*arguments, **settings) -> bool:
    """Whether arguments hold a text with the walks' marker, also in a list."""
    return MARKER in repr((arguments[1:], settings))


@contextlib.contextmanager
def all_calls(walk: Walk) -> Iterator[None]:
    """Every call of a Python function within is a milestone."""

    def profile(frame, event, argument) -> None:
        if event == "call":
            walk.record()

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)


def watch_exits(walk: Walk, frame: FrameType | None) -> None:
    """From now on, exceptions with an exit code are milestones in every function of ours that they pass through."""

    def trace(frame, event, argument):
        if path_of_ours(frame.f_code.co_filename) is None:
            return None
        if event == "exception" and getattr(argument[0], "exit_code", None) is not None:
            walk.record(frame)
        return trace

    sys.settrace(trace)
    while frame is not None:
        frame.f_trace = trace
        frame = frame.f_back


def at_signal_handlers(walk: Walk) -> None:
    """Everything that the handlers of signals call."""
    set_handler = signal.signal

    def signal_with_recording(number, handler):
        if not callable(handler):
            return set_handler(number, handler)

        def recorded(number, frame):
            watch_exits(walk, frame)
            with all_calls(walk):
                return handler(number, frame)

        return set_handler(number, recorded)

    signal.signal = signal_with_recording


# ---------------------------------------------------------------------------------------------------------------------
# Walks: each prepares its milestones and runs a command


def fine_tuning(folder: Path, **flags) -> list[str]:
    """The flags of a short run in the folder, `run`."""
    flags = {**STEPS, "output_dir": folder / "run", **flags}
    return [*TINY, *(f"--{name}={value}" for name, value in flags.items())]


def fine_tune(folder: Path, **flags) -> None:
    import fine_tune_t5

    fine_tune_t5.main(fine_tuning(folder, **flags))


def row_to_loss(walk: Walk, folder: Path) -> None:
    """A row of your own file, until its loss goes back."""
    rows = [{"text": f"{MARKER} {number} is good", "label": "good"} for number in range(16)]
    (folder / ROWS_FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    at_files(walk, ROWS_FILE, written=False)
    at_batches_and_losses(walk)
    columns = {"data_format": "jsonl", "text_column": "text", "target_column": "label", "labels": "good,bad"}
    fine_tune(folder, train_file=folder / ROWS_FILE, **columns, max_steps=1, save_strategy="no")


def checkpoint_written(walk: Walk, folder: Path) -> None:
    """A checkpoint, from the step after which it is due until it stands under its name."""
    at_files(walk, "checkpoint-", written=True)
    fine_tune(folder, max_steps=2)


def checkpoint_resumed(walk: Walk, folder: Path) -> None:
    """The same checkpoint, read by a run that goes on from it; what that run writes later is the walk before."""
    subprocess.run([sys.executable, "fine_tune_t5.py", *fine_tuning(folder)], cwd=ROOT, check=True, capture_output=True)
    shutil.rmtree(folder / "run" / "checkpoint-4")
    (folder / "run" / "results.json").unlink()
    at_files(walk, "checkpoint-2", written=False)
    fine_tune(folder)


def flag(walk: Walk, folder: Path) -> None:
    """`--learning_rate`, from the command line to torch's optimizer; one made with another rate is not on the way."""
    import torch

    def has_rate(optimizer, parameters, defaults, *_) -> bool:
        return defaults.get("lr") == WALKED_RATE

    at_calls(walk, argparse.ArgumentParser, "parse_known_args")
    at_calls(walk, torch.optim.Optimizer, "__init__", only_if=has_rate)
    fine_tune(folder, max_steps=1, save_strategy="no", learning_rate=WALKED_RATE, optimizer="adamw")


def block_of_text(walk: Walk, folder: Path) -> None:
    """A text for pre-training, until the loss of its block goes back."""
    import pre_train_t5

    text = "\n\n".join(f"The {MARKER} {number} tells of rivers, towns and the weather. " * 20 for number in range(20))
    (folder / TEXT_FILE).write_text(text)
    at_files(walk, TEXT_FILE, written=False)
    at_batches_and_losses(walk)
    flags = ("--max_steps=1", "--eval_strategy=no", "--save_strategy=no", "--inputs_length=64")
    pre_train_t5.main([*TINY, *flags, f"--train_file={folder / TEXT_FILE}", f"--output_dir={folder / 'run'}"])


def sweep_parameter(walk: Walk, folder: Path) -> None:
    """A parameter of a sweep's file, until it stands in a trial's command."""
    from t5suite.cli import main

    parameters = {"learning_rate": {"values": [1e-3]}, "max_steps": {"value": 1}, "max_eval_samples": {"value": 4}}
    command = [sys.executable, "fine_tune_t5.py", *TINY, "${args}"]
    sweep = {"method": "grid", "metric": {"name": "eval/accuracy", "goal": "maximize"}}
    (folder / SWEEP_FILE).write_text(json.dumps({**sweep, "parameters": parameters, "command": command}))
    at_files(walk, SWEEP_FILE, written=False)
    at_calls(walk, subprocess.Popen, "__init__")
    main(["sweep", str(folder / SWEEP_FILE), f"--sweep_dir={folder / 'sweep'}"])


def stop_request(walk: Walk, folder: Path) -> None:
    """SIGTERM amid an update, from its handler to the end of the process."""
    import torch

    at_signal_handlers(walk)
    backward = torch.Tensor.backward
    num_updates = 0

    def backward_with_signal(*arguments, **settings):
        nonlocal num_updates
        num_updates += 1
        if num_updates == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return backward(*arguments, **settings)

    torch.Tensor.backward = backward_with_signal
    at_calls(walk, sys, "exit")
    sys.argv = ["fine_tune_t5.py", *fine_tuning(folder, max_steps=20, save_strategy="no")]
    with contextlib.suppress(SystemExit):
        runpy.run_path(str(ROOT / "fine_tune_t5.py"), run_name="__main__")  # noqa: TID251


WALKS = {
    "row": row_to_loss,
    "checkpoint_written": checkpoint_written,
    "checkpoint_resumed": checkpoint_resumed,
    "flag": flag,
    "block": block_of_text,
    "sweep_parameter": sweep_parameter,
    "stop": stop_request,
}


def main(argv=None) -> int:
    """Walks one walk in this process, or each in its own."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.walks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("walk", nargs="?", choices=WALKS, help="one alone")
    parser.add_argument("--files", action="store_true", help="its files and hops, too")
    options = parser.parse_args(argv)
    if options.walk is None:
        failures = [name for name in WALKS if walk_in_a_process(name) != 0]
        return len(failures)
    walk = Walk()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        WALKS[options.walk](walk, Path(folder))
    print(f"{options.walk:20}{len(walk.files):4} files{len(walk.hops):5} hops")
    if options.files:
        print("\n".join(walk.files))
        print("\n".join(f"{caller} -> {called}" for caller, called in walk.hops))
    return 0


def walk_in_a_process(name: str) -> int:
    """Prints a walk's line, or why it failed; returns the exit code."""
    process = subprocess.run([sys.executable, "-m", "tools.walks", name], cwd=ROOT, capture_output=True, text=True)
    print(
        process.stdout if process.returncode == 0 else f"{name}: failed\n{process.stderr[-2000:]}", end="", flush=True
    )
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
