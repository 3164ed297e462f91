"""Makers of a tiny model, tokenizer, task, rows, trainer and run: for tests of the suite and of tasks of your own.

    from t5suite import testing

    def test_my_task():
        task = t5suite.load_task("own", "reviews", task_file="my_tasks.yaml")
        testing.check_task(task, testing.read_rows("some_rows.jsonl"))
        run = testing.tiny_run(task_file="my_tasks.yaml", benchmark="own", dataset_name="reviews")
        assert run.results["tasks"]["reviews"].keys() == {"accuracy", "invalid_rate"}

Nothing here reads the network or writes outside temporary folders and the paths that are given. What needs torch is
imported when it is called.
"""

import contextlib
import copy
import functools
import io
import os
import re
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from t5suite.base.errors import ConfigError
from t5suite.base.programs import run_command
from t5suite.cli import main, parse_command_line
from t5suite.data.rows.jsonl import read_jsonl, write_jsonl
from t5suite.tasks.cells import value_at
from t5suite.tasks.entry_metrics import metrics_by_reported_name, optimised_metrics
from t5suite.tasks.metrics import ERRORS
from t5suite.tasks.registry import Task, load_task
from t5suite.tasks.task_card import make_task_card, write_task_card
from t5suite.tasks.tokenization import Lengths
from t5suite.training.processes.signals import stop_requests

# One layer of 32 units for the bundled vocabulary: a step takes milliseconds.
TINY_T5 = "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2,dropout_rate=0"


class Failure:
    """The exception that a block of `exits_with` raised, and its message."""

    exception: BaseException | None = None

    @property
    def message(self) -> str:
        return str(self.exception)


@contextlib.contextmanager
def exits_with(exit_code: int, pattern: str = ""):
    """Asserts that the block raises an error that a command shows as one message and exits with this code.

    >>> with testing.exits_with(78, "no task 'rtee'.*rte"):
    ...     t5suite.load_task("glue", "rtee")

    Args:
      exit_code: 65 (bad data), 70 (non-finite numbers), 71 (out of memory), 74 (files), 75 (may pass when started
        again), 78 (bad configuration).
      pattern: a regular expression that is searched in the message.

    Raises:
      AssertionError: nothing is raised, the code is another, or the message does not match. An exception without an
        exit code passes through.
    """
    failure = Failure()
    try:
        yield failure
    except BaseException as error:
        code = getattr(error, "exit_code", None)
        if code is None:
            raise
        failure.exception = error
        if code != exit_code:
            raise AssertionError(f"exit code {code}, expected {exit_code}: {error}") from error
        if not re.search(pattern, str(error)):
            raise AssertionError(f"{pattern!r} is not in the message: {error}") from error
        return
    raise AssertionError(f"nothing was raised; expected an error with exit code {exit_code}")


def run_cli(*words) -> None:
    """Runs a `t5suite` sub-command in this process; its errors are raised (see `exits_with`).

    Signal handlers that the command installs are restored afterwards.

    >>> testing.run_cli("export", "--model_name_or_path", folder, "--output_dir", exported)
    """
    stop = stop_requests()
    installed_before = stop.installed
    try:
        main([str(word) for word in words])
    finally:
        if stop.installed is not installed_before:
            stop.restore()


def cli_output(*words) -> str:
    """What a `t5suite` sub-command prints on standard output.

    >>> testing.cli_output("tasks", "--benchmark", "mini", "--json")
    """
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        run_cli(*words)
    return output.getvalue()


class EndedCommand(NamedTuple):
    """How a command ended, with the names that `subprocess` has for it."""

    returncode: int
    stderr: str


def ended_cli(*words) -> EndedCommand:
    """How a `t5suite` sub-command ends as a program does, in this process: an error is one message and an exit code.

    >>> testing.ended_cli("preview", "--rows", "nowhere.jsonl", "--benchmark", "glue", "--dataset_name", "rte")
    EndedCommand(returncode=65, stderr='error: nowhere.jsonl: no such file\n')
    """
    messages = io.StringIO()
    with contextlib.redirect_stderr(messages):
        code = run_command(main, [str(word) for word in words])
    return EndedCommand(code, messages.getvalue())


def read_rows(path, values=dict) -> list:
    """The lines of a `.jsonl` or `.jsonl.gz` file; `values`: the type that each must hold (`object`: any)."""
    return read_jsonl(path, values)


def write_rows(path, rows: Iterable) -> Path:
    """Writes one JSON value a line, creating the folder; returns the path."""
    write_jsonl(path, rows)
    return Path(path)


def tiny_rows(name: str = "sentiment", split: str = "validation", count: int | None = None) -> list[dict]:
    """The first rows of a task of the bundled benchmark `mini`.

    >>> testing.tiny_rows("sentiment", count=1)
    [{'sentence': 'In my opinion, the jacket was anything but useless.', 'label': 1, 'idx': 0}]
    """
    return load_rows(load_task("mini", name), split)[:count]


def load_rows(task: Task, split: str = "validation", source_split: str | None = None, **data_flags) -> list[dict]:
    """A task's rows as a run with these data flags reads and checks them.

    >>> testing.load_rows(task, "train", train_file="rows.jsonl")

    Args:
      split: train, validation or test.
      source_split: the source's name for it, such as validation_matched; default: the same.
      data_flags: data_dir, train_file, validation_file, test_file, data_revision.
    """
    from t5suite.data.rows.sources import DataOptions, load_split

    return load_split(task, split, source_split or split, DataOptions(**data_flags)).rows.to_list()


def make_task(name: str = "reviews", benchmark: str = "own", **entry) -> Task:
    """A task from the fields of a registry entry; default: two labels and a column `text`.

    >>> testing.make_task().examples({"text": "Fine.", "label": 1})
    [Example(inputs='reviews text: Fine.', targets='good')]
    """
    fields: dict[str, Any] = {
        "prefix": f"{name} text: ",
        "text_column_name": "text",
        "label_column_name": "label",
        "labels": ["bad", "good"],
        "metric_names": ["accuracy"],
        "metric_to_optimize": "accuracy",
    }
    return load_task(benchmark, name, registry={benchmark: {name: fields | entry}})


def check_task(task: Task, rows: Sequence[dict], split: str = "validation") -> None:
    """Asserts that no text of these rows is empty, and that the targets themselves, as predictions, score best.

    The best is 100 points, or an error of 0; it is not known of a metric of `evaluate`. For WSC rows
    with label 0 the target is the wrong referent, so another word is scored in its place.

    >>> testing.check_task(t5suite.load_task("glue", "rte"), rows)

    The rows should hold every label: F1 and correlations of a single label are 0 or undefined.

    Raises:
      AssertionError: names the row, or has the scores.
    """
    answers = []
    for number, row in enumerate(rows):
        for example in task.examples(row, split):
            assert example.inputs.strip(), f"row {number}: the input is empty: {row}"
            assert example.targets.strip(), f"row {number}: the target is empty: {row}"
            answers.append(_right_answer(task, row, example.targets))
    scores = task.score(rows, answers, split)
    metrics = metrics_by_reported_name(task.entry)
    for name in optimised_metrics(task.entry):
        if name in metrics:
            best = 0 if metrics[name] in ERRORS else 100
            assert scores[name] > best - 0.01, f"right answers do not score best: {scores}"


def _right_answer(task: Task, row: dict, targets: str) -> str:
    """The targets; of a row whose label says that its referent is a wrong one, one word that is not in them."""
    is_about_referents = task.entry.get("postprocess") == "wsc_verdict"
    if is_about_referents and value_at(row, task.entry["label_column_name"]) == 0:
        return f"not_{targets.replace(' ', '_')}"
    return targets


def bundled_model() -> str:
    """The folder of the bundled model: configuration and tokenizer, without weights."""
    from t5suite.models.loading import BUNDLED_MODEL

    return BUNDLED_MODEL


def tiny_tokenizer():
    """The bundled tokenizer: T5's kind, 521 pieces and 100 sentinels."""
    return copy.deepcopy(_bundled_tokenizer())


@functools.cache
def _bundled_tokenizer():
    """Read once a process: a copy takes half the time."""
    from t5suite.models.loading import load_tokenizer

    return load_tokenizer(None)


def tiny_model(
    config_name: str | None = None,
    config_overrides: str = TINY_T5,
    *,
    seed: int = 0,
    scale: float = 1.5,
    tokenizer=None,
    family: str | None = None,
    tasks: Sequence[Task] = (),
):
    """A model with random weights in memory; default: a T5 of one layer without dropout.

    >>> testing.tiny_model("gpt2", "n_embd=32,n_layer=1,n_head=2,n_positions=128")

    Args:
      config_name, config_overrides, family: as the flags of these names take them.
      scale: multiplies all weights: outputs then differ more from row to row than at the start of training.
      tasks: what an encoder gets its heads for.
    """
    if tokenizer is not None or tasks:
        return _random_model(config_name, config_overrides, seed, scale, tokenizer, family, tasks)
    import torch
    from transformers import set_seed

    model, random_state = _model_of_bundled_pieces(config_name, config_overrides, seed, scale, family)
    set_seed(seed)
    torch.set_rng_state(random_state)
    return copy.deepcopy(model)


@functools.cache
def _model_of_bundled_pieces(config_name: str | None, config_overrides: str, seed: int, scale: float, family):
    """`(model, torch's random state afterwards)`, made once a process: a copy takes half the time."""
    import torch

    model = _random_model(config_name, config_overrides, seed, scale, _bundled_tokenizer(), family, ())
    return model, torch.get_rng_state()


def _random_model(config_name: str | None, config_overrides: str, seed: int, scale: float, tokenizer, family, tasks):
    """A model as `tiny_model` says, made anew."""
    import torch
    from transformers import set_seed

    from t5suite.models.loading import load_model

    set_seed(seed)
    model = load_model(
        tokenizer=_bundled_tokenizer() if tokenizer is None else tokenizer,
        config_name=config_name,
        config_overrides=config_overrides,
        family=family,
        tasks=tasks,
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    return model


def new_config(config_name: str, config_overrides: str | None = None, **flags):
    """The configuration of a model that would get random weights; none is made.

    >>> testing.new_config("t5-v1_1-small", "num_layers=2").num_decoder_layers
    2

    Args:
      config_name, config_overrides, flags: those of a run.
    """
    from t5suite.models.loading import load_model_shapes

    names = {"config_name": str(config_name), "config_overrides": config_overrides}
    return load_model_shapes(tokenizer=tiny_tokenizer(), **names, **flags).config


def save_model(
    folder, model=None, tokenizer=None, tasks: Sequence[Task] = (), source_length: int = 64, target_length: int = 16
) -> Path:
    """Writes a folder that `--model_name_or_path` takes: model, tokenizer and, for these tasks, the task card.

    >>> testing.save_model(folder, testing.tiny_model(), tasks=[t5suite.load_task("mini", "sentiment")])
    """
    from t5suite.models.families import recognize_family

    model = tiny_model() if model is None else model
    tokenizer = tiny_tokenizer() if tokenizer is None else tokenizer
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if tasks:
        lengths = Lengths(source_length, target_length)
        label_tokens = {task.name: target_length for task in tasks}
        write_task_card(folder, make_task_card(tasks, lengths, label_tokens, recognize_family(model).name))
    return Path(folder)


def tiny_trainer(
    rows: Sequence[dict] | None = None,
    task: Task | None = None,
    *,
    model=None,
    source_length: int = 64,
    target_length: int = 16,
    **training_flags,
):
    """A `SuiteTrainer` that has not trained yet; default: the tiny T5 on 21 rows of `mini/entailment`, on the CPU.

    >>> trainer = testing.tiny_trainer(max_steps=3, optim="sgd")
    >>> trainer.train().training_loss

    Args:
      training_flags: training arguments of `fine_tune_t5.py`; by default batches of 8 rows, one epoch, a log line for
        each step, neither evaluations nor checkpoints.
    """
    import datasets

    from t5suite.data.batches.features import TokenArrays
    from t5suite.data.batches.samplers import shuffled_order
    from t5suite.data.batches.training_data import tokenize_split
    from t5suite.models.families import encoding_for
    from t5suite.training.checkpoints.data_positions import ExampleOrder
    from t5suite.training.fine_tuning_trainer import make_collator
    from t5suite.training.flags.fine_tuning import SuiteTrainingArguments
    from t5suite.training.trainer import SuiteTrainer

    task = load_task("mini", "entailment") if task is None else task
    rows = tiny_rows("entailment", count=21) if rows is None else rows
    tokenizer = tiny_tokenizer()
    defaults = {
        "per_device_train_batch_size": 8,
        "num_train_epochs": 1,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "eval_strategy": "no",
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 0,
    }
    arguments = SuiteTrainingArguments(**{"output_dir": tempfile.mkdtemp()} | defaults | training_flags)
    # After the arguments: while another trainer under ZeRO-3 lives, the model would be sharded for that one.
    model = tiny_model() if model is None else model
    encoding = encoding_for(model, tokenizer, Lengths(source_length, target_length)).for_task(task)
    columns = tokenize_split(datasets.Dataset.from_list(list(rows)), task, encoding, "train")
    features = TokenArrays.concatenate([columns])
    return SuiteTrainer(
        model=model,
        args=arguments,
        train_dataset=features,
        data=ExampleOrder(shuffled_order(len(features), arguments.order_seed)),
        collator=make_collator(model),
        processing_class=tokenizer,
    )


class TinyRun(NamedTuple):
    """A finished run: its directory, what `results.json` holds, the lines of `metrics.jsonl`."""

    directory: Path
    results: dict
    history: list[dict]


def tiny_run(model: Any = None, data: Any = None, **flags) -> TinyRun:
    """Fine-tunes for two steps, scores 16 rows and returns the finished run; default: a tiny T5 on `mini/sentiment`.

    >>> testing.tiny_run(dataset_name="entailment", max_steps=4).results["tasks"]
    {'entailment': {'accuracy': 31.25, 'invalid_rate': 0.0}}

    Args:
      model, data, flags: those of `t5suite.FineTuner`.
    """
    from t5suite.fine_tuner import FineTuner

    defaults = {
        "output_dir": tempfile.mkdtemp(),
        "max_steps": 2,
        "max_eval_samples": 16,
        "per_device_train_batch_size": 8,
        "logging_steps": 1,
        "use_cpu": True,
        "quiet": True,
    }
    if model is None and "model_name_or_path" not in flags:
        defaults |= {"config_overrides": TINY_T5, "from_scratch": True}
    tuner = FineTuner(model, data, **(defaults | flags))
    results = tuner.train()
    return TinyRun(Path(tuner.args.output_dir), results, tuner.history)


@contextlib.contextmanager
def served_model(folder, *words) -> Iterator[str]:
    """The address at which `t5suite serve` answers for a model's folder, while the block runs.

    >>> with testing.served_model("runs/reviews", "--use_cpu") as url:
    ...     httpx.post(f"{url}/predict", json={"rows": [{"text": "Good."}]}).json()
    {'answers': [{'row': 0, 'prediction': 'positive'}]}
    """
    from t5suite.inference.serving.running import listening_socket, make_server, make_service

    arguments = parse_command_line(["serve", "--model_name_or_path", str(folder), "--port", "0", *map(str, words)])
    service = make_service(arguments)
    with listening_socket(arguments.host, arguments.port) as listener:
        server = make_server(service, arguments)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield f"http://{arguments.host}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
            service.queue.close()


def parse_flags(script: str, words: Sequence[str]) -> dict[str, Any]:
    """Every setting of a script by its name, as its command line (or a configuration file) gives it; nothing runs.

    >>> testing.parse_flags("fine_tune_t5", ["recipes/mini.yaml", "--max_steps=5"])["max_steps"]
    5

    Args:
      script: fine_tune_t5 or pre_train_t5.
    """
    from t5suite.training.flags.parser import parse_arguments
    from t5suite.training.flags.table import SCRIPTS

    with process_as_before():
        parts = parse_arguments(SCRIPTS[script], [str(word) for word in words], prog=f"{script}.py", description="")
    return {name: value for part in parts for name, value in vars(part).items()}


@contextlib.contextmanager
def process_as_before():
    """Undoes what DeepSpeed's flags do to a process without a launcher: the group of one, and its variables.

    >>> with testing.process_as_before():
    ...     testing.tiny_run(deepspeed="zero2")
    """
    import torch.distributed as dist

    environment = dict(os.environ)
    had_group = dist.is_initialized()
    try:
        yield
    finally:
        if dist.is_initialized() and not had_group:
            dist.destroy_process_group()
        os.environ.clear()
        os.environ.update(environment)


class OwnRows(NamedTuple):
    """A task that flags make of rows of your own, and the rows of one of its splits."""

    task: Task
    rows: list[dict]


def load_own_rows(data: Any = None, split: str = "train", **flags) -> OwnRows:
    """The task that flags make of one data set of your own, and a split of it as a run reads and checks it.

    >>> testing.load_own_rows("reviews.csv", text_column="text", target_column="label", labels=["bad", "good"]).rows[:1]
    [{'text': 'Fine.', 'label': 'good'}]

    Args:
      data: as `FineTuner` takes it: a file, a folder, rows in memory, or a table of them by split.
      split: train, validation or test. Without validation rows some training rows are held out for them, unless
        `no_eval=True` is given.
      flags: those of `fine_tune_t5.py`. `data_format="text"` cuts texts by the tokens of the bundled tokenizer.
    """
    from t5suite.data.rows.sources import DataOptions, load_split
    from t5suite.fine_tuner_inputs import read_inputs
    from t5suite.training.flags.fine_tuning import FINE_TUNING_ARGUMENTS, FineTuningArguments
    from t5suite.training.flags.parser import arguments_of_values
    from t5suite.training.plans import plan_for

    inputs = read_inputs(None, data, {"use_cpu": True, **flags})
    arguments = FineTuningArguments(*arguments_of_values(FINE_TUNING_ARGUMENTS, inputs.flags))
    plan = plan_for(arguments, inputs.rows)
    task = plan.tasks[0]
    tokenizer = tiny_tokenizer() if arguments.formats.data_format == "text" else None
    options = DataOptions(own_sources=plan.sources, tokenizer=tokenizer)
    return OwnRows(task, load_split(task, split, split, options).rows.to_list())


def encode_rows(
    rows: Sequence[dict],
    task: Task,
    split: str = "train",
    *,
    model=None,
    tokenizer=None,
    source_length: int = 64,
    target_length: int = 16,
    **languages,
) -> list[dict]:
    """The token ids of each example of these rows, as a run makes them for the model's family.

    >>> testing.encode_rows([{"sentence": "Fine.", "label": 1}], t5suite.load_task("mini", "sentiment"))
    [{'input_ids': [378, 375, 463, 304, 481, 513, 512, 520, 3, 1], 'labels': [374, 1]}]

    Args:
      model: default: a text-to-text model.
      tokenizer: an object, a name or a folder; default: the bundled one.
      languages: `source_lang`, `target_lang`, `source_lang_column` and `target_lang_column`, as the flags of these
        names, for a model whose tokenizer has languages.

    Raises:
      ConfigError: languages without a model.
    """
    import datasets

    from t5suite.data.batches.encodings import TextEncoding, bind_encoding
    from t5suite.models.families import encoding_for
    from t5suite.models.loading import load_tokenizer
    from t5suite.tasks.languages import Languages

    if tokenizer is None or isinstance(tokenizer, (str, Path)):
        tokenizer = load_tokenizer(None if tokenizer is None else str(tokenizer))
    lengths = Lengths(source_length, target_length)
    if model is None and languages:
        raise ConfigError(f"encode_rows: {min(languages)} needs the model that reads the language; give model=...")
    if model is None:
        encoding = TextEncoding(tokenizer, lengths)
    else:
        encoding = encoding_for(model, tokenizer, lengths, languages=Languages(**languages))
    columns = datasets.Dataset.from_list(list(rows)).to_dict()
    encoded = bind_encoding(encoding.for_task(task), task, split)(columns)
    return [dict(zip(encoded, values, strict=True)) for values in zip(*encoded.values(), strict=True)]


def example_row(task: Task) -> dict:
    """A made-up row of a task, its texts named after their columns, as `t5suite tasks` shows it.

    >>> testing.example_row(t5suite.load_task("glue", "qnli"))
    {'question': '<question>', 'sentence': '<sentence>', 'label': 0}
    """
    from t5suite.commands import tasks

    return tasks.made_up_row(task)


def tiny_tuner(model: Any = None, data: Any = None, **flags):
    """A `FineTuner` that has not trained, quiet, on the CPU, in a temporary folder; default: the bundled tiny T5.

    >>> testing.tiny_tuner(folder, freeze="encoder").model          # a model as a run loads and prepares it

    Args:
      model, data, flags: those of `t5suite.FineTuner`.
    """
    from t5suite.fine_tuner import FineTuner

    defaults = {"output_dir": str(Path(tempfile.mkdtemp()) / "run"), "quiet": True, "use_cpu": True}
    return FineTuner(model, data, **(defaults | flags))


class Evaluation(NamedTuple):
    """Of some rows: their number, the answers, the metrics, the mean loss in nats, how many answers did not end."""

    num_rows: int
    predictions: list
    metrics: dict[str, float]
    loss: float
    truncated: int


def evaluate_rows(
    trainer,
    rows: Sequence[dict],
    task: Task,
    method: str = "generate",
    *,
    batch_size: int = 8,
    source_length: int = 64,
    target_length: int = 16,
    reference_code: str | None = None,
) -> Evaluation:
    """Evaluates the model of a trainer as a run does; with several ranks, each computes its share.

    >>> testing.evaluate_rows(trainer, testing.tiny_rows("entailment"), t5suite.load_task("mini", "entailment")).metrics
    {'accuracy': 37.5, 'invalid_rate': 0.0}

    Args:
      method: generate, score or loss, as `--eval_method` takes it; classify for a model with an encoder's head.
      reference_code: as the flag of this name, whose value among a trainer's flags does nothing here.
    """
    import datasets

    from t5suite.base.reference_code import reference_code as fast_paths_off
    from t5suite.models.families import encoding_for
    from t5suite.training.eval_sets import make_eval_set
    from t5suite.training.fine_tuning_trainer import make_evaluator

    tokenizer = trainer.processing_class
    encoding = encoding_for(trainer.model, tokenizer, Lengths(source_length, target_length))
    evaluator = make_evaluator(
        trainer.data_collator, tokenizer, trainer.args, trainer.accelerator, False, fast_paths_off(reference_code)
    )
    evaluator.batch_size = batch_size
    data = datasets.Dataset.from_list(list(rows))
    eval_set = make_eval_set(task.name, task, "validation", data, encoding, method)
    result = evaluator.evaluate(trainer.model, [eval_set]).results[task.name]
    return Evaluation(result.num_rows, result.predictions, result.metrics, result.loss, result.truncated)
