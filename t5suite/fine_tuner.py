"""Fine-tuning from Python: `fine_tune_t5.py` as an object, for notebooks and programs.

>>> tuner = FineTuner("t5-small", "reviews.csv", text_column="text", target_column="label", labels=["bad", "good"])
>>> tuner.train()
{'tasks': {'reviews': {'accuracy': 93.1, 'invalid_rate': 0.0}}, 'averages': {}}
>>> tuner.predict(["Not worth a minute."])
['bad']
>>> tuner.save("models/reviews"); FineTuner("models/reviews").predict("A joy.")
'good'

A run is the same whether the script or a `FineTuner` makes it: flags, steps and files are the same (docs/python.md).
"""

import contextlib
import copy
import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import set_seed

from t5suite.base.errors import ConfigError
from t5suite.base.files import without_new_folders
from t5suite.base.lookup import suggestion
from t5suite.base.script_flags import flags_marked
from t5suite.base.terminal import silent
from t5suite.constants import OWN_BENCHMARK
from t5suite.data.batches.encodings import LabelsEncoding, SegmentEncoding
from t5suite.data.rows.jsonl import read_jsonl
from t5suite.data.rows.own_rows import as_rows
from t5suite.fine_tuner_answers import answer_of_line, answer_rows
from t5suite.fine_tuner_inputs import (
    call_text,
    combine_plug_ins,
    own_class_of,
    prepare_model,
    read_inputs,
    separate_plug_ins,
)
from t5suite.fine_tuner_process import TunerProcess, interruptible, restoring_model
from t5suite.inference.decoding_settings import DecodingSettings
from t5suite.inference.model_loading import check_head_answers
from t5suite.inference.predictor import Predictor
from t5suite.inference.settings import NO_LANGUAGES, WRITTEN, TextFlags, text_settings
from t5suite.models.adapter_files import check_takes_model, save_adapter
from t5suite.models.adapters import is_adapted, weights_fingerprint
from t5suite.models.families import encoding_for, recognize_family
from t5suite.models.freezing import any_of, check_some_are_trained, freeze, warn_of_frozen_parameters
from t5suite.models.generation_settings import save_with_generation_settings
from t5suite.models.loading import describe_model, load_tokenizer
from t5suite.models.quantization import is_quantized
from t5suite.reports import finishing as reports
from t5suite.reports.finished_runs import data_facts
from t5suite.reports.finishing import give_hints
from t5suite.reports.tables import print_finished
from t5suite.reports.units import metric_text
from t5suite.run_steps import Learner, RunSetup, data_of, make_learner, mark_seen_rows, train_and_score, trainer_of
from t5suite.runs.directory import MANIFEST, METRICS, default_output_dir
from t5suite.runs.opening import hub_before, lengths_since
from t5suite.runs.settings import EXTENDABLE_SETTINGS
from t5suite.runs.trained_splits import origin_of_weights, trained_splits_of_model
from t5suite.tasks.task_card import TaskCard, read_task_card, task_card_of_model, write_task_card
from t5suite.training import fine_tuning as steps
from t5suite.training.checkpoints.starts import resume_choice
from t5suite.training.fine_tuning import plug_ins_by_flags
from t5suite.training.fine_tuning_data import encoding_by_flags, lengths_of
from t5suite.training.fine_tuning_trainer import task_card_by_flags
from t5suite.training.flags.adapters import adapt_by_flags
from t5suite.training.flags.fine_tuning import FINE_TUNING_ARGUMENTS, FineTuningArguments, warn_of_idle_saving_flags
from t5suite.training.flags.parser import arguments_of_values, changed_settings
from t5suite.training.hub_reads import model_requests, settle_hub_reads
from t5suite.training.memory_summary import print_summary, summary_by_flags
from t5suite.training.model_setup import place_by_flags, tokenizer_and_model, trained_as
from t5suite.training.model_tasks import take_known_lengths, warn_of_task_on_hub
from t5suite.training.plans import Plan, plan_for
from t5suite.training.process_setup import libraries_of, multiply_in_tf32
from t5suite.training.run_directory import all_settings, choose_output_dir, run_directory
from t5suite.training.trained_rows_warnings import inputs_trained_on

logger = logging.getLogger(__name__)

SPLITS = ("validation", "test")


class FineTuner:
    """One run: a model, what it is trained on, and everything that is done with it.

    >>> FineTuner("t5-v1_1-small", "glue/rte", tokenizer_name="t5-small", learning_rate=1e-3, max_steps=2000)

    Args:
      model: a hub name, a folder (a model, an adapter, another run), a preset (random weights), `module:Class`, or a
        model that is in memory. None: the bundled tiny T5.
      data: `benchmark/task`; a file or folder of rows; a DataFrame, `datasets.Dataset` or list of dicts; or
        `{"train": ..., "validation": ..., "test": ...}` of files, or of rows in memory.
      tokenizer: for a model in memory; a name, a folder or an object.
      quiet: no progress bars or lines, and no table at the end; what your own functions print is shown.
      batch_transform, batch_metrics, metrics, callbacks: functions and callbacks of your own (docs/python.md), one
        or a list: the objects themselves, or `module:Name` as in the flags.
      flags: those of `fine_tune_t5.py`, by their names; `config` for a YAML file or recipe.

    Raises:
      ConfigError: an unknown flag or value, as on the command line; settings that do not go together.
    """

    def __init__(self, model: Any = None, data: Any = None, *, tokenizer: Any = None, quiet: bool = False, **flags):
        if isinstance(tokenizer, (str, os.PathLike)):
            flags["tokenizer_name"] = os.fspath(tokenizer)
            tokenizer = None
        flags, plug_in_objects = separate_plug_ins(flags)
        inputs = read_inputs(model, data, flags)
        self._flags = {**inputs.flags, "disable_tqdm": True} if quiet else inputs.flags
        arguments = {"model": inputs.model, "data": inputs.rows, "tokenizer": tokenizer, **vars(plug_in_objects)}
        self._names_in_memory = [name for name, value in arguments.items() if value not in (None, ())]
        self._rows = inputs.rows
        self._model_in_memory = inputs.model
        self._quiet = quiet
        self._tokenizer_in_memory = tokenizer
        self._process = TunerProcess(bars=self._shows_bars())
        self._title = None
        self._is_trained = False  # whether the weights differ from those that the run starts with
        self._end_reached: tuple | None = None  # of the finished run whose weights these are
        # The directory's name, without a number, where no flag names it; None once a run has begun there.
        self._default_directory = None
        self.trainer = None
        self.results: dict = {}
        with self._process.entered():
            self._read_arguments()
            self._plug_ins = combine_plug_ins(plug_ins_by_flags(self.arguments), plug_in_objects)
            steps.begin_reads(self.arguments)
            # Without a model the script's default applies: the tiny T5 on mini/sentiment.
            self._has_data = inputs.names_data or (model is None and self.model_args.model_name_or_path is None)
            # Without data the plan is that of the model. With data its directory, which names the commits that a run
            # has read, follows from the plan.
            self._card = None if self._has_data else self._read_card()
            self.plan = self._make_plan()
            if not self.args.output_dir_given:
                self._default_directory = self._name_directory()
                self._choose_output_dir()
            self._make_model()
            if self._card is None:
                self._card = self._read_card()

    def train(self, valid: bool = True, **longer) -> dict:
        """Trains, scores, writes the run directory and returns what `results.json` holds.

        A run that was interrupted (Ctrl-C, a crash, another process) resumes from its newest checkpoint; one that is
        finished returns its results and loads its weights. `train(max_steps=2000)` makes it longer.

        Args:
          valid: if False, trains on all training rows, evaluates nothing, and keeps the last checkpoint (`--no_eval`).
          longer: new values of `max_steps`, `num_train_epochs` or `max_minutes`. A program that does this can be run
            again: its first `train()` is the longer run, and a warning says so.

        Raises:
          ConfigError: no data; another run in the directory, or this one with other rows; early stopping and similar
            settings without evaluation.
          KeyboardInterrupt: after Ctrl-C, when a checkpoint is written; the object can still be used.
        """
        with self._at_work(), interruptible(), contextlib.ExitStack() as if_refused:
            if_refused.callback(self._restore, dict(self._flags), self.arguments, self.plan)
            self._settle(valid, longer)
            settings = self._settings()
            resume = resume_choice(self.eval_args.resume, self.args.resume_from_checkpoint)
            call = call_text(self._flags, self._names_in_memory)
            with run_directory(self.args, settings, [call], resume, self._default_directory) as run:
                if_refused.pop_all()
                self._flags["output_dir"] = self.args.output_dir
                self._default_directory = None
                if self.eval_args.resume == "none":
                    self._flags["resume"] = "auto"  # later calls go on with the new run
                if run.finished:
                    self._check_rows_of_finished(run)
                    self._take_finished(run)
                else:
                    if self._is_trained and self._model_in_memory is None:
                        self._make_model()
                    self._end_reached = None
                    self.results = self._train(run, settings, resume)
                    self._end_reached = _end_of(run)
        return self.results

    def evaluate(self, split: str = "validation") -> dict:
        """Scores the model as it is and returns what `results.json` would hold; nothing is written.

        A callback's `on_final` is of the run, and is not called.

        >>> tuner.evaluate(split="test")
        {'tasks': {'reviews.test': {'accuracy': 92.0, 'invalid_rate': 0.0}}, 'averages': {}}

        Raises:
          ConfigError: no such split, or no data.
        """
        if split not in SPLITS:
            raise ConfigError(f"evaluate: no split {split!r}; {suggestion(split, SPLITS)}")
        self._check_data()
        if split == "validation":
            self._check_validates()
        # transformers' trainer makes the run's directory.
        with self._at_work(), without_new_folders(self.args.output_dir):
            evaluation = dataclasses.replace(self.eval_args, predict_only=split == "test")
            data_args = copy.copy(self.data_args)
            take_known_lengths(data_args, self._card, self.plan.evaluate)
            arguments = self.arguments._replace(evaluation=evaluation, data=data_args)
            setup = dataclasses.replace(self._setup({}, {}, trains=False), arguments=arguments)
            encoding = dataclasses.replace(self.encoding, lengths=lengths_of(data_args))
            learner = dataclasses.replace(self._learner(), encoding=encoding)
            origin = self.args.output_dir if self._is_trained else origin_of_weights(vars(self.model_args))
            data = data_of(setup, learner)
            mark_seen_rows(setup, data, trained_splits_of_model(origin), inputs_trained_on(data, origin))
            trainer, _ = trainer_of(setup, learner, data, selects=False)
            self.trainer = trainer
            report = trainer.score(data.scored)
            plan = self.plan
            self.results = reports.build_results(report, plan.benchmark, plan.average, data.scored, plan.published)
            give_hints(report, data.scored)
        if not self.results["tasks"]:
            logger.warning("evaluate: the %s rows have no labels, and so no scores; see predict", split)
        return self.results

    def predict(
        self, inputs, *, raw: bool = False, return_scores: bool = False, dataset_name=None, labels=None, **decoding
    ):
        """The model's answers, in order; for a single text or row, its answer.

        >>> tuner.predict([{"sentence1": "It rains.", "sentence2": "It is wet."}])
        ['entailment']
        >>> tuner.predict(texts, do_sample=True, top_p=0.9, num_return_sequences=2, return_scores=True)
        [[Answer(text='good', score=-0.1, truncated=False, invalid=False), Answer(text='bad', ...)]]

        Args:
          inputs: rows (dicts, a DataFrame, a Dataset) with the task's columns; texts, if it has one column.
          raw: the texts are finished: no prefix is added.
          return_scores: also each answer's log-probability in nats, and whether it was cut off or is invalid.
          dataset_name: the task, if the model knows several.
          labels: as `t5suite predict --labels`: the likeliest is the answer; by default as the model was scored.
          decoding: `num_beams`, `do_sample`, `max_new_tokens` and the like, by the names of `t5suite predict`'s flags;
            with `num_return_sequences` above 1 there is a list of answers for each row.

        Raises:
          ConfigError: invalid or conflicting settings. DataError: a row that does not fit the task.
        """
        unknown = decoding.keys() - DecodingSettings.__dataclass_fields__.keys()
        if unknown:
            name = min(unknown)
            raise ConfigError(
                f"predict: no setting {name!r}; {suggestion(name, DecodingSettings.__dataclass_fields__)}"
            )
        settings = DecodingSettings(**decoding)
        writing_defaults = {}
        if settings.max_new_tokens is None:
            writing_defaults["max_new_tokens"] = self.args.generation_max_length
        if decoding.get("num_beams") is None and not settings.do_sample:
            writing_defaults["num_beams"] = self.args.generation_num_beams
        is_one_row, lines = self._lines(
            inputs,
            settings,
            dataset_name,
            raw,
            labels=labels,
            scores=return_scores,
            writing_defaults=writing_defaults,
        )
        answers = [answer_of_line(line, settings.num_return_sequences > 1, return_scores) for line in lines]
        return answers[0] if is_one_row else answers

    def predict_labels(
        self, inputs, labels: str | Sequence[str] | None = None, *, raw: bool = False, dataset_name=None
    ):
        """Each label's probability, for every row; `labels` is a list or words with commas, by default the task's.

        >>> tuner.predict_labels(["A joy."])
        [{'bad': 0.1, 'good': 0.9}]

        Raises:
          ConfigError: no label is chosen: `labels="none"`, a head that answers with a number or a label for every word.
        """
        self._check_chooses_a_label(labels)
        candidates = "task" if labels is None else labels
        is_one_row, lines = self._lines(inputs, DecodingSettings(), dataset_name, raw, labels=candidates)
        probabilities = [line["probabilities"] for line in lines]
        return probabilities[0] if is_one_row else probabilities

    def freeze(self, *, encoder=None, decoder=None, embeddings=None, head=None, layers=None, pattern=None) -> list[str]:
        """Freezes parts of the model, as `--freeze` and `--freeze_regex` do; returns the names of frozen parameters.

        >>> tuner.freeze(embeddings=True, layers=2)[0]
        'shared.weight'

        Args:
          encoder, decoder: True, or a number of layers from the bottom.
          layers: this many from the bottom of each stack.
          pattern: a regular expression, found anywhere in a parameter's name.

        Raises:
          ConfigError: no such part, nothing named, nothing left to train, an adapter (all else is frozen already).
        """
        choices = dict(encoder=encoder, decoder=decoder, embeddings=embeddings, head=head, layers=layers)
        named_parts = [part if choice is True else f"{part}:{choice}" for part, choice in choices.items() if choice]
        parts = ",".join(named_parts) or None
        if parts is None and pattern is None:
            raise ConfigError("freeze: nothing is named; give embeddings=True, layers=2, pattern='...' and the like")
        if is_adapted(self.model):
            raise ConfigError("freeze: the model has an adapter, so all of its own weights are frozen")
        frozen_names = freeze(self.model, parts, pattern)
        all_parts = [text for text in (self.model_args.freeze, parts) if text]
        all_patterns = [text for text in (self.model_args.freeze_regex, pattern) if text]
        self._flags["freeze"] = ",".join(all_parts) or None
        self._flags["freeze_regex"] = any_of(all_patterns)
        with self._process.entered():
            self._read_arguments()
        return frozen_names

    def summary(self) -> dict:
        """Parameters by module and the memory of a training step: printed (not if quiet), and as a table."""
        with self._at_work():
            if self._model_in_memory is None:
                # A copy of the tokenizer, to which words of the task may be added.
                tokenizer, model = tokenizer_and_model(
                    self.model_args,
                    without_weights=True,
                    tasks=self.plan.tasks,
                    tokenizer=copy.deepcopy(self._tokenizer_in_memory),
                    own_head=not self._has_task,
                )
                model = adapt_by_flags(model, tokenizer, self.arguments, trains=True)
            else:
                # A copy, whose values go in `summary_by_flags`; `to("meta")` would untie what counts once.
                model = copy.deepcopy(self.model)
            summary = summary_by_flags(model, self.arguments)
            if not self._quiet:
                print_summary(summary)
        return summary

    def save(self, folder) -> Path:
        """Writes the model (or only its adapter) with tokenizer and task card; `FineTuner(folder)` can then predict.

        Raises:
          ConfigError: the folder holds a run, whose files would be overwritten, or another kind of model; the adapter
            was merged, and the merged model is what `merge_adapter` returned.
        """
        folder = Path(folder)
        if (folder / MANIFEST).exists():
            raise ConfigError(f"save: {folder} holds a run, which has its model already; give another folder")
        check_takes_model(folder, self.model)
        with self._process.entered():
            if is_adapted(self.model):
                save_adapter(self.model, folder, run_folder=folder)
            else:
                save_with_generation_settings(self.model, folder)
            self.tokenizer.save_pretrained(folder)
        card = self._known_card()
        if card is not None:
            write_task_card(folder, card)
        return folder

    @classmethod
    def load(cls, folder, data: Any = None, **settings) -> "FineTuner":
        """`FineTuner(folder, data, **settings)`, for an existing folder."""
        if not Path(folder).is_dir():
            raise ConfigError(f"load: no folder {str(folder)!r}")
        return cls(folder, data, **settings)

    @property
    def history(self) -> list[dict]:
        """The lines of `metrics.jsonl`, of earlier processes too: `step`, `epoch`, `train/...`, `eval/...`."""
        path = Path(self.args.output_dir) / METRICS
        return read_jsonl(path) if path.is_file() else []

    def __repr__(self) -> str:
        description = describe_model(self.model)
        data = f"{self.plan.benchmark}/{self.plan.dataset_name}" if self._has_data else "no data"
        scores = "; ".join(
            f"{task}: {_shown_scores(metrics)}" for task, metrics in self.results.get("tasks", {}).items()
        )
        size = f"{description['parameters']:,} parameters, {description['trainable']:,} trained"
        directory = self.args.output_dir
        return f"<FineTuner {description['class']} ({size}) on {data}, {directory}; {scores or 'no results yet'}>"

    @property
    def _has_task(self) -> bool:
        """Whether data or the model's `task.json` say what it is for; else the plan is the script's default."""
        return self._has_data or self._card is not None

    def _shows_bars(self) -> bool | None:
        """Whether `disable_tqdm` says that bars are drawn; None if it is not given."""
        disable_tqdm = self._flags.get("disable_tqdm")
        return None if disable_tqdm is None else disable_tqdm in (False, "False")

    @contextlib.contextmanager
    def _at_work(self):
        """With this tuner's own process state, and its own output unless quiet; a model in memory stays as it was."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._process.entered())
            if self.args.tf32 is not None:
                multiply_in_tf32(self.args.tf32)
            if self._quiet:
                stack.enter_context(silent())
            if self._model_in_memory is not None:
                stack.enter_context(restoring_model(self._model_in_memory))
            yield

    def _read_arguments(self, **changes) -> None:
        """Makes the script's arguments of the flags, and of changes for now."""
        flags = {**self._flags, **changes}
        self._take_arguments(FineTuningArguments(*arguments_of_values(FINE_TUNING_ARGUMENTS, flags)))

    def _take_arguments(self, arguments: FineTuningArguments) -> None:
        self.arguments = arguments
        self.model_args = arguments.model
        self.data_args = arguments.data
        self.eval_args = arguments.evaluation
        self.args = arguments.training

    def _restore(self, flags: dict, arguments: FineTuningArguments, plan: Plan) -> None:
        """Undoes `_settle`; what the plan has chosen, such as `eval_method`, is in the arguments alone."""
        self._flags = flags
        self._take_arguments(arguments)
        self.plan = plan

    def _settle(self, valid: bool, longer: dict) -> None:
        self._check_data()
        if self.eval_args.eval_only:
            raise ConfigError("train: eval_only=True trains nothing; call evaluate()")
        for name in longer:
            if name not in EXTENDABLE_SETTINGS:
                extendable = ", ".join(EXTENDABLE_SETTINGS)
                raise ConfigError(f"train: {name} cannot change now, only {extendable}; make another FineTuner")
        if longer:
            self._flags |= {**longer, "extend": True}
        changes = {} if valid else {"no_eval": True}
        self._read_arguments(**changes)
        self.plan = self._make_plan()
        if self._default_directory is not None:
            self._choose_output_dir()  # another run may have taken it since
        if not self.args.overwrite_output_dir:
            self._follow_longer_run(changes)

    def _follow_longer_run(self, changes: dict) -> None:
        """Takes the length of this same run, which a later `train(max_steps=...)` of the same program has raised."""
        longer = lengths_since(self.args.output_dir, self._settings())
        if not longer:
            return
        logger.warning(
            "train: the run in %s was made longer since (%s): it is that run that is continued, or whose results are "
            "returned",
            self.args.output_dir,
            ", ".join(f"{name} {getattr(self.args, name)} here, {value} there" for name, value in longer.items()),
        )
        self._flags |= longer
        self._read_arguments(**changes)
        self.plan = self._make_plan()

    def _settings(self) -> dict:
        """Every setting of the run by name; a model in memory by its class and weights."""
        settings = all_settings(*self.arguments, plug_ins=self._plug_ins, contents=self.plan.contents)
        if self._title is not None:
            settings["model_name_or_path"] = self._title
        return settings

    def _check_data(self) -> None:
        if not self._has_data:
            trained_on = ""
            if self._card:
                trained_on = f"; the model was trained on {self._card.benchmark}/{self._card.dataset_name}"
            raise ConfigError(
                "there are no rows to train on or to score: give FineTuner(model, data) a file or folder of rows, a "
                f"DataFrame, a list of dicts, or benchmark/task such as 'glue/rte'{trained_on}"
            )

    def _check_validates(self) -> None:
        """Refuses rows of your own with a test split alone, which would stand in for the validation split."""
        for task in self.plan.evaluate:
            if task.benchmark == OWN_BENCHMARK and task.splits("test") and not task.splits("validation"):
                raise ConfigError(
                    f"evaluate: own/{task.name} has no validation rows; evaluate(split='test') scores the test rows"
                )

    def _make_plan(self) -> Plan:
        """The plan of the flags; without any, of the tasks that the model knows."""
        if self._has_data or self._card is None:
            return plan_for(self.arguments, self._rows, bool(self._plug_ins.metrics))
        benchmark = self._card.benchmark
        dataset_name = self._card.dataset_name
        if self._card.is_shipped:
            self._flags |= {"benchmark": benchmark, "dataset_name": dataset_name}
            self._read_arguments()
            self._has_data = True
            return plan_for(self.arguments, None, bool(self._plug_ins.metrics))
        tasks = list(self._card.tasks.values())
        return Plan(benchmark, dataset_name, tasks, tasks, [], False)

    def _name_directory(self) -> str:
        """The directory that no flag names, without a number."""
        name = self.model_args.model_name_or_path
        if self._model_in_memory is not None:
            name = type(self._model_in_memory).__name__
        return default_output_dir(self.plan.benchmark, self.plan.dataset_name, name)

    def _choose_output_dir(self) -> None:
        """The directory that no flag names; weights in memory are compared once the model is there."""
        settings = self._settings()
        if self._model_in_memory is not None and self._title is None:
            del settings["model_name_or_path"]
        choose_output_dir(self.args, settings, self.eval_args.resume, self._default_directory)
        self._flags["output_dir"] = self.args.output_dir

    def _make_model(self) -> None:
        """Tokenizer and model as at the start of the run: steps 4 and 5 of the script."""
        set_seed(self.args.seed)
        self._libraries = libraries_of(self.args)
        model = self._load_model() if self._model_in_memory is None else self._prepare_model_in_memory()
        trains = not self.eval_args.eval_only
        changed = changed_settings(self.arguments)
        learner = make_learner(self.arguments, self.tokenizer, model, changed, trains, self._title)
        warn_of_task_on_hub(self.arguments, self.plan, learner.card)
        self.model = learner.model
        self.encoding = learner.encoding
        self._is_trained = False

    def _load_model(self):
        """Loads the tokenizer and the model that the flags name."""
        self._settle_model_reads()
        # A copy, to which words are added: this may run again, and the tokenizer is the user's.
        tokenizer = copy.deepcopy(self._tokenizer_in_memory)
        self.tokenizer, model = tokenizer_and_model(
            self.model_args, tasks=self.plan.tasks, tokenizer=tokenizer, own_head=not self._has_task
        )
        return model

    def _settle_model_reads(self) -> None:
        """Looks up the commits of the models that the flags name; those of the run that is resumed stay."""
        earlier_reads = hub_before(self.args.output_dir, self.eval_args.resume, self.args.overwrite_output_dir)
        settle_hub_reads(model_requests(self.model_args, self.arguments.distillation.teacher), earlier_reads)

    def _read_card(self) -> TaskCard | None:
        """The task card of the model that the flags name; None if it has none, or is in memory."""
        if self._model_in_memory is not None:
            return None
        self._settle_model_reads()
        return task_card_of_model(self.model_args.model_name_or_path, self.model_args.model_revision)

    def _prepare_model_in_memory(self):
        """Prepares the user's own model, and freezes what the flags name."""
        model_args = self.model_args
        flags_with_effect = set(flags_marked("object"))
        if own_class_of(self._model_in_memory) is not None:
            flags_with_effect |= {"model_class", "model_family"}
        for name in sorted(set(model_args.flags_given) - flags_with_effect):
            raise ConfigError(f"{name} has no effect: the model is in memory already")
        if self._tokenizer_in_memory is None and model_args.tokenizer_name:
            self._tokenizer_in_memory = load_tokenizer(model_args.tokenizer_name)
        self.tokenizer = self._tokenizer_in_memory
        tasks = self.plan.tasks if self._has_task else ()
        model = prepare_model(self._model_in_memory, self.tokenizer, tasks, model_args.model_family)
        if self._title is None:
            weights = (weights_fingerprint(model) or "unknown")[:12]
            self._title = f"{type(model).__name__} in memory, weights {weights}"
        trains_whole_model = self._has_data and not self.eval_args.eval_only and self.arguments.adapter.adapter is None
        if trains_whole_model and not is_adapted(model):
            warn_of_frozen_parameters(model)
        freeze(model, model_args.freeze, model_args.freeze_regex)
        return model

    def _train(self, run, settings: dict, resume: str) -> dict:
        """The script's steps 4 to 9; the model is loaded already."""
        check_some_are_trained(self.model)
        changed = changed_settings(self.arguments)
        steps.warn_of_idle_flags(changed, self.plan, True, predicts=self.args.do_predict)
        warn_of_idle_saving_flags(self.args)
        steps.settle_reads(self.arguments, self.plan, True, run.hub_before)
        setup = self._setup(settings, changed, trains=True)
        return train_and_score(setup, self._learner(), run, resume, self._take_trainer, self._check_start)

    def _setup(self, settings: dict, changed: dict, trains: bool) -> RunSetup:
        return RunSetup(self.arguments, self.plan, self._plug_ins, self._libraries, settings, changed, trains)

    def _learner(self) -> Learner:
        return Learner(self.tokenizer, self.model, self.encoding, self._title, self._card)

    def _take_trainer(self, trainer) -> None:
        self.trainer = trainer
        self._card = trainer.checkpoints.task_card

    def _check_start(self, start) -> None:
        """A model in memory cannot be rebuilt from flags; from here on its weights change."""
        if self._is_trained and start.checkpoint is None:
            raise ConfigError("the model in memory was trained before, and no checkpoint is left: create it again")
        self._is_trained = True

    def _check_rows_of_finished(self, run) -> None:
        """Refuses other rows in memory than those of a finished run: rows are no part of its settings.

        Raises:
          ConfigError: they differ; names the split.
        """
        if self._rows is None or "data" in run.allowed:
            return
        facts = data_facts(run.manifest)
        for name, source in self.plan.sources.items():
            for role in source.roles:
                fingerprint = facts.get(f"{name}.{role}", {}).get("fingerprint")
                if fingerprint is not None and fingerprint != source.read(role).fingerprint:
                    raise ConfigError(
                        f"train: run {run.run_id} in {run.directory} has finished, and its {role} rows were others "
                        "than those in memory now; for a run with these give another output_dir, or resume='none' "
                        "where you gave none; for the results of that run give allow_changed='data'"
                    )

    def _take_finished(self, run) -> None:
        """Loads the results and the weights of a finished run; these weights may be of an earlier step of it."""
        self.results = print_finished(run, run.is_main)
        if self._end_reached == _end_of(run):
            return
        model_args = trained_as(self.model_args, run.directory)
        self.tokenizer, self.model = tokenizer_and_model(model_args, tasks=self.plan.tasks)
        place_by_flags(self.model, self.model_args, self.args, trains=False)
        self.encoding = encoding_by_flags(self.model, self.tokenizer, self.data_args, None, str(run.directory))
        self._card = read_task_card(run.directory)
        self._is_trained = True
        self._end_reached = _end_of(run)

    def _known_card(self) -> TaskCard | None:
        """The model's task card; None if rows can only be finished texts."""
        if self._card is not None or not self._has_data:
            return self._card
        return task_card_by_flags(self.plan, self.arguments, self.encoding, self.model)

    def _check_chooses_a_label(self, labels) -> None:
        reason = None
        if isinstance(labels, str) and labels == WRITTEN:
            reason = f"labels={WRITTEN!r} has the model write, and no label is chosen"
        elif isinstance(self.encoding, LabelsEncoding):
            reason = "this model answers with a label for every word, which has no probability here"
        elif isinstance(self.encoding, SegmentEncoding) and self.encoding.words is None:
            reason = "this model answers with a number, which has no probability"
        if reason is not None:
            raise ConfigError(f"predict_labels: {reason}; call predict")

    def _lines(self, inputs, decoding, dataset_name: str | None, raw: bool, **choices) -> tuple[bool, list[dict]]:
        """`(whether a single row was given, the answers as `t5suite predict` writes them)`."""
        is_named = self._model_in_memory is None and self.model_args.model_class is None
        if is_named and not self._has_task:
            check_head_answers(self.model, self.model_args.model_name_or_path)
        is_one_row = isinstance(inputs, (str, Mapping))
        rows = _rows_or_texts([inputs] if is_one_row else inputs)
        model_args = self.model_args
        flags_given = self.data_args.flags_given
        languages = getattr(self.encoding, "languages", NO_LANGUAGES)
        separator = getattr(self.encoding, "separator", None)  # of a decoder-only model
        with self._at_work():
            if not (model_args.device_map is not None or model_args.embedding_on_cpu or is_quantized(self.model)):
                self.model.to(self.args.device)
            flags = TextFlags(
                dataset_name=dataset_name,
                raw=raw,
                max_source_length=self.data_args.max_source_length if "max_source_length" in flags_given else None,
                answer_separator=separator if "answer_separator" in flags_given else None,
                languages=languages,
            )
            text = text_settings(self._known_card(), flags)
            text = dataclasses.replace(text, family=recognize_family(self.model).name)
            encoding = encoding_for(self.model, self.tokenizer, text.lengths, text.separator, languages)
            encoding = dataclasses.replace(encoding, template=text.task.template if text.task else "")
            # The model's first weights may be elsewhere: embeddings on the CPU, layers that are offloaded.
            predictor = Predictor(self.model, encoding, self.args.per_device_eval_batch_size, device=self.args.device)
            return is_one_row, answer_rows(predictor, text, rows, decoding, raw=raw, **choices)


def _end_of(run) -> tuple[str, int | None]:
    """A finished run's id and its last step, which a longer run changes."""
    return run.run_id, run.manifest.get("training", {}).get("steps")


def _rows_or_texts(inputs) -> list:
    """Several inputs as a list: finished texts, or rows."""
    if isinstance(inputs, (list, tuple)) and all(isinstance(row, str) for row in inputs):
        return list(inputs)
    return as_rows(inputs, "predict")


def _shown_scores(metrics: dict) -> str:
    """Scores as in tables; one that is not defined is NaN in memory, and None as `results.json` has it.

    >>> _shown_scores({"pearson": None, "spearman": 81.5, "notes": ["all answers are equal"]})
    'pearson undefined, spearman 81.50'
    """
    texts = []
    for name, value in metrics.items():
        if name != "notes":
            texts.append(f"{name} {metric_text(value, name, 'undefined')}")
    return ", ".join(texts)
