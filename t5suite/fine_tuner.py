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

import copy
import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import suggestion
from t5suite.data.rows.jsonl import read_jsonl
from t5suite.data.rows.own_rows import as_rows
from t5suite.models.adapters import is_adapted, save_adapter
from t5suite.models.freezing import freeze
from t5suite.models.loading import describe
from t5suite.reports.finishing import give_hints
from t5suite.runs.directory import MANIFEST, METRICS, open_run
from t5suite.tasks.task_card import write_task_card
from t5suite.training import fine_tuning as steps
from t5suite.training import steps as shared
from t5suite.training.checkpoints import resume_choice
from t5suite.training.flags.adapters import adapt_by_flags
from t5suite.training.flags.memory import summary_by_flags
from t5suite.training.from_arguments import tokenizer_and_model
from t5suite.training.memory_summary import print_summary
from t5suite.training.processes.ranks import Ranks
from t5suite.tuner.answers import answer_of, decoding_of
from t5suite.tuner.process import interruptible
from t5suite.tuner.run import TunerRun

logger = logging.getLogger(__name__)

SPLITS = ("validation", "test")


class FineTuner(TunerRun):
    """One run: a model, what it is trained on, and everything that is done with it.

    >>> FineTuner("t5-v1_1-small", "glue/rte", tokenizer_name="t5-small", learning_rate=1e-3, max_steps=2000)

    Args:
      model: a hub name, a folder (a model, an adapter, another run), a preset (random weights), `module:Class`, or a
        model that is in memory. None: the bundled tiny T5.
      data: `benchmark/task`; a file or folder of rows; a DataFrame, `datasets.Dataset` or list of dicts; or
        `{"train": ..., "validation": ..., "test": ...}` of files, or of rows in memory.
      tokenizer: for a model in memory; a name, a folder or an object.
      quiet: no progress bars, and no table at the end.
      batch_transform, batch_metrics, metrics, callbacks: functions and callbacks of your own (docs/plug_ins.md), one
        or a list: the objects themselves, or `module:Name` as in the flags.
      flags: those of `fine_tune_t5.py`, by their names; `config` for a YAML file or recipe.

    Raises:
      ConfigError: an unknown flag or value, as on the command line; settings that do not go together.
    """

    def train(self, valid: bool = True, **longer) -> dict:
        """Trains, scores, writes the run directory and returns what `results.json` holds.

        A run that was interrupted (Ctrl-C, a crash, another process) goes on from its newest checkpoint; one that is
        finished gives its results and weights. `train(max_steps=2000)` makes it longer.

        Args:
          valid: without it, all training rows are trained on, nothing is evaluated, and the last checkpoint counts
            (`--no_eval`).
          longer: new values of `max_steps`, `num_train_epochs` or `max_minutes`.

        Raises:
          ConfigError: no data; another run in the directory; early stopping and the like without evaluation.
          KeyboardInterrupt: after Ctrl-C, when a checkpoint is written; the object can still be used.
        """
        with self._at_work(), interruptible():
            self._settle(valid, longer)
            settings = self._settings()
            resume = resume_choice(self.eval_args.resume, self.args.resume_from_checkpoint)
            ranks, is_main = Ranks.of_process(), self.args.process_index == 0
            places = (self.args.output_dir, settings, self._argv, True, resume == "none")
            run = ranks.together(open_run, *places, self.args.extend, self.args.allow_changed)
            run.is_main = is_main
            if run.finished:
                self._take_finished(run)
            else:
                if self._is_trained and self._object is None:
                    self._make_model()
                with shared.owned(run, ranks):
                    self.results = self._train(run, settings, resume)
        return self.results

    def evaluate(self, split: str = "validation") -> dict:
        """Scores the model as it is and returns what `results.json` would hold; nothing is written.

        >>> tuner.evaluate(split="test")
        {'tasks': {'reviews.test': {'accuracy': 92.0, 'invalid_rate': 0.0}}, 'averages': {}}

        Raises:
          ConfigError: no such split, or no data.
        """
        if split not in SPLITS:
            raise ConfigError(f"evaluate: no split {split!r}; {suggestion(split, SPLITS)}")
        self._check_data()
        with self._at_work():
            evaluation = dataclasses.replace(self.eval_args, predict_only=split == "test")
            arguments = self.arguments._replace(evaluation=evaluation)
            data = self._load(arguments, trains=False)
            self._make_trainer(data, selects=False)
            report = steps.evaluate_finally(self.trainer, data)
            self.results = self._results_of(report, data)
            give_hints(report, data.scored)
        if not self.results["tasks"]:
            logger.warning("evaluate: the %s rows have no labels, and so no scores; see predict", split)
        return self.results

    def predict(self, inputs, *, raw: bool = False, return_scores: bool = False, dataset_name=None, **decoding):
        """The model's answers, in order; for one text or row alone, its answer.

        >>> tuner.predict([{"sentence1": "It rains.", "sentence2": "It is wet."}])
        ['entailment']
        >>> tuner.predict(texts, do_sample=True, top_p=0.9, num_return_sequences=2, return_scores=True)
        [[Answer(text='good', score=-0.1, truncated=False), Answer(text='bad', score=-2.4, truncated=False)]]

        Args:
          inputs: rows (dicts, a DataFrame, a Dataset) with the task's columns; texts, where it has one column.
          raw: the texts are finished: no prefix is put before them.
          return_scores: also each answer's log-probability in nats.
          dataset_name: the task, where the model knows several.
          decoding: `num_beams`, `do_sample`, `max_new_tokens` and the like, by the names of `t5suite predict`'s flags;
            with `num_return_sequences` above 1 there is a list of answers for each row.

        Raises:
          ConfigError: settings that make no sense, alone or together. DataError: a row that is none of the task.
        """
        decoding.setdefault("num_beams", 1 if decoding.get("do_sample") else self.args.generation_num_beams or 1)
        settings = decoding_of(decoding)
        one, rows = _rows(inputs)
        with self._at_work():
            lines = self._asked(dataset_name, raw).lines(rows, settings, scores=return_scores)
        found = [answer_of(line, settings.num_return_sequences > 1, return_scores) for line in lines]
        return found[0] if one else found

    def predict_labels(self, inputs, labels: Sequence[str] | None = None, *, raw: bool = False, dataset_name=None):
        """Each label's probability, for every row; the task's labels without any given.

        >>> tuner.predict_labels(["A joy."])
        [{'bad': 0.1, 'good': 0.9}]
        """
        one, rows = _rows(inputs)
        with self._at_work():
            asked = self._asked(dataset_name, raw)
            lines = asked.lines(rows, decoding_of({}), labels="task" if labels is None else list(labels))
        found = [line["probabilities"] for line in lines]
        return found[0] if one else found

    def freeze(self, *, encoder=None, decoder=None, embeddings=None, head=None, layers=None, pattern=None) -> list[str]:
        """Freezes parts of the model, as `--freeze` and `--freeze_regex` do; returns the names of what they name.

        >>> tuner.freeze(embeddings=True, layers=2)[0]
        'shared.weight'

        Args:
          encoder, decoder: True, or a number of layers from the bottom.
          layers: so many from the bottom of each stack.
          pattern: a regular expression, found anywhere in a parameter's name.

        Raises:
          ConfigError: no such part, nothing named, nothing left to train, an adapter (all else is frozen already).
        """
        given = dict(encoder=encoder, decoder=decoder, embeddings=embeddings, head=head, layers=layers)
        named = {name: value for name, value in given.items() if value not in (None, False)}
        parts = ",".join(name if value is True else f"{name}:{value}" for name, value in named.items()) or None
        if parts is None and pattern is None:
            raise ConfigError("freeze: nothing is named; give embeddings=True, layers=2, pattern='...' and the like")
        if is_adapted(self.model):
            raise ConfigError("freeze: the model has an adapter, beside which all of it is frozen")
        frozen = freeze(self.model, parts, pattern)
        before = self._flags.get("freeze"), self._flags.get("freeze_regex")
        self._flags["freeze"] = ",".join(filter(None, (before[0], parts))) or None
        self._flags["freeze_regex"] = "|".join(f"(?:{text})" for text in filter(None, (before[1], pattern))) or None
        with self._process.entered():
            self._parse()
        return frozen

    def summary(self) -> dict:
        """Parameters by module and the memory of a training step: printed (not if quiet), and as a table."""
        with self._at_work():
            if self._object is None:
                tokenizer, model = tokenizer_and_model(self.model_args, without_weights=True, tasks=self.plan.tasks)
                model = adapt_by_flags(model, tokenizer, self.arguments, trains=True)
            else:
                model = copy.deepcopy(self.model).to("meta")
                model.tie_weights()  # each of a weight's names has got a tensor of its own
            lengths = self.data_args.max_source_length, self.data_args.max_target_length
            found = summary_by_flags(model, self.args, *lengths)
            print_summary(found)
        return found

    def save(self, folder) -> Path:
        """Writes the model (an adapter alone) with its tokenizer and task card; `FineTuner(folder)` predicts at once.

        Raises:
          ConfigError: the folder holds a run, whose files would be overwritten.
        """
        folder = Path(folder)
        if (folder / MANIFEST).exists():
            raise ConfigError(f"save: {folder} holds a run, which has its model already; give another folder")
        with self._process.entered():
            if is_adapted(self.model):
                save_adapter(self.model, folder, run_folder=folder)
            else:
                self.model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
        card = self._known_card()
        if card is not None:
            write_task_card(folder, card)
        return folder

    @classmethod
    def load(cls, folder, data: Any = None, **settings) -> "FineTuner":
        """`FineTuner(folder, data, **settings)`, of a folder that is there.

        Raises:
          ConfigError: there is none.
        """
        if not Path(folder).is_dir():
            raise ConfigError(f"load: no folder {str(folder)!r}")
        return cls(folder, data, **settings)

    @property
    def history(self) -> list[dict]:
        """The lines of `metrics.jsonl`, of earlier processes too: `step`, `epoch`, `train/...`, `eval/...`."""
        path = Path(self.args.output_dir) / METRICS
        return read_jsonl(path) if path.is_file() else []

    def __repr__(self) -> str:
        about = describe(self.model)
        data = f"{self.plan.benchmark}/{self.plan.dataset_name}" if self._has_data else "no data"
        scores = "; ".join(
            f"{task}: {', '.join(f'{name} {value:.2f}' for name, value in metrics.items())}"
            for task, metrics in self.results.get("tasks", {}).items()
        )
        size = f"{about['parameters']:,} parameters, {about['trainable']:,} trained"
        return f"<FineTuner {about['class']} ({size}) on {data}, {self.args.output_dir}; {scores or 'no results yet'}>"


def _rows(inputs) -> tuple[bool, list]:
    """`(whether one alone was given, rows)`."""
    if isinstance(inputs, (str, Mapping)):
        return True, [inputs]
    if isinstance(inputs, (list, tuple)) and all(isinstance(row, str) for row in inputs):
        return False, list(inputs)
    return False, as_rows(inputs, "predict")
