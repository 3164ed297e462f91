"""What stands behind a `FineTuner`: its flags and objects, its model, and the script's steps over them.

>>> run = TunerRun("t5-small", "glue/rte", max_steps=100)
>>> run.plan.benchmark, run.args.output_dir
('glue', 'runs/glue-rte-t5-small')
"""

import contextlib
import io
import logging
import os
from typing import Any

from t5suite.base.errors import ConfigError
from t5suite.constants import DATASET_VALS
from t5suite.models.freezing import freeze
from t5suite.models.given_models import described_object, is_plain_module, made_ready
from t5suite.models.loading import describe, load_tokenizer
from t5suite.models.quantization import is_quantized
from t5suite.reports import finishing as reports
from t5suite.runs.directory import default_output_dir
from t5suite.runs.settings import EXTENDABLE_SETTINGS, public_settings
from t5suite.tasks.task_card import TaskCard, make_task_card, read_task_card
from t5suite.tracking.trackers import Trackers, tracker_names
from t5suite.training import fine_tuning as steps
from t5suite.training import steps as shared
from t5suite.training.flags.adapters import adapt_by_flags, write_merged
from t5suite.training.flags.fine_tuning import FINE_TUNING_ARGUMENTS, FineTuningArguments
from t5suite.training.flags.parser import changed_settings, parse_arguments
from t5suite.training.flags.tracking import identity_of
from t5suite.training.from_arguments import (
    data_for,
    encoding_by_flags,
    lengths_of,
    place_by_flags,
    plan_for,
    plug_ins_by_flags,
    start_of,
    tokenizer_and_model,
    trained_as,
    trainer_for,
)
from t5suite.training.resuming.resets import going_on
from t5suite.tuner.answers import Asked
from t5suite.tuner.inputs import argv_of, callables_of, inputs_of, joined
from t5suite.tuner.needed_data import needed_data
from t5suite.tuner.process import OwnProcess, plain_progress

logger = logging.getLogger(__name__)

# What flags may say of a model that is in memory.
FLAGS_OF_OBJECTS = (
    "freeze",
    "freeze_regex",
    "unfreeze_regex",
    "tokenizer_name",
    "device_map",
    "max_memory",
    "embedding_on_cpu",
)


class TunerRun:
    """A model and its run; `FineTuner` has what is asked of it.

    Attributes:
      arguments: the argument dataclasses of `fine_tune_t5.py`; `args` those of training.
      plan: the tasks. tokenizer, model, encoding: of the run. trainer: of the last training or evaluation.
      results: of the last training or evaluation, as `results.json` has them.
    """

    def __init__(self, model: Any = None, data: Any = None, *, tokenizer: Any = None, quiet: bool = False, **flags):
        if isinstance(tokenizer, (str, os.PathLike)):
            flags["tokenizer_name"], tokenizer = os.fspath(tokenizer), None
        flags, self._callables = callables_of(flags)
        given = inputs_of(model, data, flags)
        self._flags, self._rows, self._object = given.flags, given.rows, given.model
        self._flags |= {"disable_tqdm": True} if quiet else {}
        self._quiet, self._given_tokenizer = quiet, tokenizer
        no_bars = self._flags.get("disable_tqdm")
        self._process, self._title = OwnProcess(None if no_bars is None else no_bars in (False, "False")), None
        self._is_trained = False  # whether the weights are others than those that the run begins with
        self.trainer = None
        self.results: dict = {}
        with self._process.entered():
            self._parse()
            self._plug_ins = joined(plug_ins_by_flags(self.arguments), self._callables)
            self._card = read_task_card(self.model_args.model_name_or_path or "")
            # Without any word of a model the script's own default counts: the tiny T5 on mini/sentiment.
            self._has_data = given.names_data or (model is None and self.model_args.model_name_or_path is None)
            self.plan = self._make_plan()
            if not self.args.output_dir_given:
                name = self.model_args.model_name_or_path if self._object is None else type(self._object).__name__
                self.args.output_dir = default_output_dir(self.plan.benchmark, self.plan.dataset_name, name)
                self._flags["output_dir"] = self.args.output_dir
            self._make_model()

    @contextlib.contextmanager
    def _at_work(self):
        """In a process of its own, as far as states go; in silence, if quiet."""
        silence = contextlib.redirect_stdout(io.StringIO()) if self._quiet else contextlib.nullcontext()
        with self._process.entered(), silence:
            yield

    def _parse(self, **changes) -> None:
        self._argv = argv_of(self._flags | changes)
        self.arguments = FineTuningArguments(*parse_arguments(FINE_TUNING_ARGUMENTS, self._argv))
        self.model_args, self.data_args = self.arguments.model, self.arguments.data
        self.eval_args, self.args = self.arguments.evaluation, self.arguments.training

    def _settle(self, valid: bool, longer: dict) -> None:
        """The arguments of a training as they are now to be."""
        self._check_data()
        if self.eval_args.eval_only:
            raise ConfigError("train: eval_only=True trains nothing; call evaluate()")
        for name in longer:
            if name not in EXTENDABLE_SETTINGS:
                known = ", ".join(EXTENDABLE_SETTINGS)
                raise ConfigError(f"train: {name} cannot change now, only {known}; make another FineTuner")
        self._flags |= longer | ({"extend": True} if longer else {})
        self._parse(**({} if valid else {"no_eval": True}))
        self.plan = self._make_plan()

    def _check_data(self) -> None:
        if not self._has_data:
            raise ConfigError(needed_data(self.model_args.model_name_or_path, self._card))

    def _make_plan(self) -> steps.Plan:
        """What the flags say; without any, the tasks that the model knows."""
        if self._has_data or self._card is None:
            return plan_for(self.arguments, self._rows, bool(self._plug_ins.metrics))
        benchmark, names = next(iter(self._card.tasks.values())).benchmark, list(self._card.tasks)
        if all(name in DATASET_VALS.get(benchmark, {}) for name in names):
            self._flags |= {"benchmark": benchmark, "dataset_name": ",".join(names)}
            self._parse()
            self._has_data = True
            return plan_for(self.arguments, None, bool(self._plug_ins.metrics))
        tasks = list(self._card.tasks.values())
        return steps.Plan(benchmark, ",".join(names), tasks, tasks, [], False)

    def _make_model(self) -> None:
        """Tokenizer and model as the run begins with them: steps 4 and 5 of the script."""
        shared.seed_everything(self.args.seed)
        trains, name = not self.eval_args.eval_only, self.model_args.model_name_or_path
        if self._object is None:
            given = self._given_tokenizer
            self.tokenizer, self.model = tokenizer_and_model(self.model_args, tasks=self.plan.tasks, tokenizer=given)
        else:
            self._use_object()
        self.model = adapt_by_flags(self.model, self.tokenizer, self.arguments, trains)
        place_by_flags(self.model, self.model_args, self.args, trains)
        changed = changed_settings(self.arguments)
        self.encoding = encoding_by_flags(self.model, self.tokenizer, self.data_args, changed, name)
        self._is_trained = False

    def _use_object(self) -> None:
        """The model that is in memory, in place of those that flags name."""
        allowed = FLAGS_OF_OBJECTS + (("model_family",) if is_plain_module(self._object) else ())
        idle = [name for name in self.model_args.flags_given if name not in allowed]
        if idle:
            raise ConfigError(f"{idle[0]} has no effect: the model is in memory already, as it is to be")
        if self._given_tokenizer is None and self.model_args.tokenizer_name:
            self._given_tokenizer = load_tokenizer(self.model_args.tokenizer_name)
        self.tokenizer = self._given_tokenizer
        self.model = made_ready(self._object, self.tokenizer, self.model_args.model_family, self.plan.tasks)
        if self._title is None:
            self._title = described_object(self.model)
        freeze(self.model, self.model_args.freeze, self.model_args.freeze_regex, self.model_args.unfreeze_regex)

    def _settings(self) -> dict:
        """What decides the run: the flags, and what is in memory instead of them."""
        settings = shared.all_settings(*self.arguments, plug_ins=self._plug_ins)
        if self._title is not None:
            settings["model_name_or_path"] = self._title
        return settings

    def _load(self, arguments, trains: bool):
        """The script's step 5: every split that the arguments ask for."""
        return data_for(self.plan, self.tokenizer, arguments, trains, self.encoding, self._plug_ins)

    def _make_trainer(self, data, selects: bool) -> dict:
        """The script's step 6; returns the mixing rates."""
        self.trainer, rates = trainer_for(
            self.model, self.tokenizer, data, self.arguments, selects=selects, plug_ins=self._plug_ins
        )
        plain_progress(self.trainer)
        self._card = self.trainer.task_card
        return rates

    def _train(self, run, settings: dict, resume: str) -> dict:
        """The script's steps 5 to 8."""
        shared.check_precision(self.args.fp16, self.model.config.model_type)
        steps.warn_of_idle_flags(changed_settings(self.arguments), self.plan, True, predicts=self.args.do_predict)
        data = self._load(self.arguments, trains=True)
        rates = self._make_trainer(data, selects=True)
        run.use_data(data.described)
        run.update(tasks={task.name: task.entry for task in self.plan.tasks}, mixing_rates=rates)
        run.update(missing_tasks=data.missing, model=describe(self.model), encoding=self.encoding.described)
        run.update(trained_on=[self.plan.benchmark, self.plan.dataset_name])
        self.trainer.run_details = run.checkpoint_details
        names = tracker_names(self.args.trackers) if run.is_main else []
        per_task = self.eval_args.select == "per_task"
        shown = public_settings(settings)
        with Trackers(names, run.directory, run.run_id, shown, identity_of(self.args)) as trackers:
            best = steps.add_callbacks(self.trainer, run.directory, trackers, per_task)
            start = start_of(run, resume, self.args, self.trainer.ranks)
            self._check_weights(start)
            with going_on(self.trainer, start, run) as folder:
                self._is_trained = True
                run.update(training=shared.train(self.trainer, folder))
            self.trainer.save_model(self.args.output_dir)
            steps.mark_for_table(data, selected=self.args.load_best_model_at_end)
            report = steps.evaluate_finally(self.trainer, data, best if per_task else None)
            results = self._results_of(report, data)
            if run.is_main:
                self._finish(run, data, report, results, best)
        self.trainer.accelerator.wait_for_everyone()
        self.trainer.push_finished()
        return results

    def _check_weights(self, start) -> None:
        """A model in memory cannot be made anew from flags.

        Raises:
          ConfigError: it was trained, and there is no checkpoint to go on from.
        """
        if self._is_trained and start.checkpoint is None:
            raise ConfigError("the model in memory was trained before, and no checkpoint is left of that: make it anew")

    def _results_of(self, report, data) -> dict:
        plan = self.plan
        return reports.build_results(report, plan.benchmark, plan.average, data.scored, plan.published)

    def _finish(self, run, data, report, results: dict, best) -> None:
        """Files and table of a finished run."""
        name = self._title or shared.model_title(
            self.model, self.model_args.model_name_or_path, self.model_args.from_scratch
        )
        if self.arguments.adapter.merge_adapter:
            write_merged(self.model, self.tokenizer, run.directory / "merged")
        title = f"{name} on {self.plan.benchmark}/{self.plan.dataset_name}"
        reports.finish_run(run, data, report, results, best.best, title, is_model=True)

    def _take_finished(self, run) -> None:
        """The results of a run that came to its end before, and its weights."""
        self.results = reports.print_finished(run, run.is_main)
        if self._is_trained:
            return
        model_args = trained_as(self.model_args, run.directory)
        self.tokenizer, self.model = tokenizer_and_model(model_args, tasks=self.plan.tasks)
        place_by_flags(self.model, self.model_args, self.args, trains=False)
        self.encoding = encoding_by_flags(self.model, self.tokenizer, self.data_args, None, str(run.directory))
        self._card, self._is_trained = read_task_card(run.directory), True

    def _known_card(self) -> TaskCard | None:
        """What is known of the model's texts; None where rows can only be finished texts."""
        if self._card is not None or not self._has_data:
            return self._card
        return make_task_card(self.plan.tasks, lengths_of(self.data_args))

    def _asked(self, dataset_name: str | None, raw: bool) -> Asked:
        if self.model_args.device_map is None and not self.model_args.embedding_on_cpu and not is_quantized(self.model):
            self.model.to(self.args.device)
        given = self.data_args.flags_given
        return Asked(
            self.model,
            self.tokenizer,
            self._known_card(),
            self.args.per_device_eval_batch_size,
            dataset_name,
            raw,
            self.data_args.max_source_length if "max_source_length" in given else None,
            self.encoding.separator if "answer_separator" in given else None,
        )
