"""Fine-tuning from Python: the steps of `fine_tune_t5.py` behind three calls.

>>> tuner = FineTuner(benchmark="glue", dataset_name="rte", model_name_or_path="t5-small", data_dir="data")
>>> tuner.train()
{'tasks': {'rte': {'accuracy': 71.1, 'invalid_rate': 0.0}}, 'averages': {}}
>>> tuner.predict(["rte sentence1: It rains. sentence2: It is wet."])
['entailment']
"""

from t5suite.errors import ConfigError
from t5suite.inference.decoding import Decoding
from t5suite.inference.predictor import Predictor
from t5suite.run_settings import public_settings
from t5suite.runs import default_output_dir, open_run
from t5suite.tracking import reports
from t5suite.tracking.trackers import Trackers, tracker_names
from t5suite.training import fine_tuning as steps
from t5suite.training import steps as shared
from t5suite.training.adapter_arguments import adapt_by_flags, write_merged
from t5suite.training.argument_parser import parse_arguments
from t5suite.training.arguments import FINE_TUNING_ARGUMENTS, FineTuningArguments
from t5suite.training.checkpoints import resume_choice
from t5suite.training.from_arguments import (
    data_for,
    encoding_by_flags,
    place_by_flags,
    plan_for,
    start_of,
    tokenizer_and_model,
    trainer_for,
)
from t5suite.training.processes.ranks import Ranks
from t5suite.training.resuming.resets import going_on


class FineTuner:
    """One run; takes the script's flags by name.

    Raises:
      ConfigError: an unknown flag or value, as on the command line.
    """

    def __init__(self, **flags):
        argv = [f"--{name}={value}" for name, value in flags.items()]
        self.arguments = FineTuningArguments(*parse_arguments(FINE_TUNING_ARGUMENTS, argv))
        self.model_args, self.data_args = self.arguments.model, self.arguments.data
        self.eval_args, self.args = self.arguments.evaluation, self.arguments.training
        self.plan = plan_for(self.arguments)
        if not self.args.output_dir_given:
            self.args.output_dir = default_output_dir(
                self.plan.benchmark, self.plan.dataset_name, self.model_args.model_name_or_path
            )
        shared.seed_everything(self.args.seed)
        self.tokenizer, self.model = tokenizer_and_model(self.model_args, tasks=self.plan.tasks)
        name = self.model_args.model_name_or_path
        self.encoding = encoding_by_flags(self.model, self.tokenizer, self.data_args, None, name)
        self.model = adapt_by_flags(self.model, self.tokenizer, self.arguments, not self.eval_args.eval_only)
        place_by_flags(self.model, self.model_args, self.args, trains=not self.eval_args.eval_only)
        self.trainer = None

    def train(self, valid: bool = True) -> dict:
        """Trains, scores, writes the run directory and returns what `results.json` holds.

        Args:
          valid: without it, all training rows are trained on, nothing is evaluated, and the last checkpoint counts
            (`--no_eval`).
        """
        if not valid:
            self.arguments.formats.no_eval = True
            self.plan = plan_for(self.arguments)
        settings = shared.all_settings(*self.arguments)
        is_main = self.args.process_index == 0
        run = open_run(
            self.args.output_dir,
            settings,
            is_main=is_main,
            extend=self.args.extend,
            allow_changed=self.args.allow_changed,
        )
        with shared.owned(run, Ranks.of_process()):
            return self._train(run, settings, is_main)

    def _train(self, run, settings, is_main) -> dict:
        data = self._prepare(trains=True)
        with Trackers(
            tracker_names(self.args.trackers) if is_main else [], run.directory, run.run_id, public_settings(settings)
        ) as trackers:
            resume = resume_choice(self.eval_args.resume, self.args.resume_from_checkpoint)
            start = start_of(run, resume, self.args, self.trainer.ranks)
            per_task = self.eval_args.select == "per_task"
            best = steps.add_callbacks(self.trainer, run.directory, trackers, per_task)
            run.use_data(data.described)
            self.trainer.run_details = run.checkpoint_details
            with going_on(self.trainer, start, run) as folder:
                run.update(training=shared.train(self.trainer, folder))
            self.trainer.save_model(self.args.output_dir)
        steps.mark_for_table(data, selected=self.args.load_best_model_at_end)
        report = steps.evaluate_finally(self.trainer, data, best if per_task else None)
        results = reports.build_results(
            report, self.plan.benchmark, self.plan.average, data.scored, self.plan.published
        )
        if is_main:
            name = shared.model_title(self.model, self.model_args.model_name_or_path, self.model_args.from_scratch)
            title = f"{name} on {self.plan.benchmark}/{self.plan.dataset_name}"
            if self.arguments.adapter.merge_adapter:
                write_merged(self.model, self.tokenizer, run.directory / "merged")
            reports.finish_run(run, data, report, results, best.best, title, name, is_model=True)
        return results

    def evaluate(self) -> dict:
        """Scores the model as it is and returns what `results.json` would hold; nothing is written."""
        data = self._prepare(trains=False)
        report = steps.evaluate_finally(self.trainer, data)
        return reports.build_results(report, self.plan.benchmark, self.plan.average, data.scored, self.plan.published)

    def predict(self, inputs: list[str], max_length: int = 64, **decoding) -> list:
        """The model's answers to finished input texts, in their order; greedy, at most `max_length` tokens each.

        >>> tuner.predict(texts, do_sample=True, top_p=0.9, num_return_sequences=3)
        [['entailment', 'entailment', 'not_entailment']]

        Args:
          decoding: `num_beams`, `do_sample`, `temperature` and the like, by the names of `t5suite predict`'s flags;
            with `num_return_sequences` above 1 there is a list of answers for each text.

        Raises:
          ConfigError: settings that make no sense, alone or together.
        """
        predictor = self._predictor()
        if not predictor.writes:
            return [verdict.text for verdict in predictor.classes([(text,) for text in inputs])]
        decoding.setdefault("num_beams", 1 if decoding.get("do_sample") else self.args.generation_num_beams or 1)
        settings = Decoding(**decoding)
        settings.check()
        found = predictor.answers(inputs, settings, settings.max_new_tokens or max_length)
        texts = [[answer.text for answer in answers] for answers in found]
        return texts if settings.num_return_sequences > 1 else [answers[0] for answers in texts]

    def predict_labels(self, inputs: list[str], labels: list[str] | None = None) -> list[dict[str, float]]:
        """Each label's probability for finished input texts; of the one task's labels without any given.

        >>> tuner.predict_labels(["rte sentence1: It rains. sentence2: It is wet."])
        [{'entailment': 0.9, 'not_entailment': 0.1}]
        """
        predictor = self._predictor()
        if not predictor.writes:
            return [verdict.shares for verdict in predictor.classes([(text,) for text in inputs])]
        labels = labels or (self.plan.evaluate[0].candidates({}) if self.plan.alone else None)
        if not labels:
            raise ConfigError("predict_labels: the run has no single task with labels; give labels=[...]")
        return [verdict.shares for verdict in predictor.choices(inputs, [labels] * len(inputs))]

    def _predictor(self) -> Predictor:
        return Predictor(self.model, self.encoding, self.args.per_device_eval_batch_size)

    def _prepare(self, trains: bool):
        data = data_for(self.plan, self.tokenizer, self.arguments, trains, self.encoding)
        self.trainer, _ = trainer_for(self.model, self.tokenizer, data, self.arguments, selects=trains)
        return data
