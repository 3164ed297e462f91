"""What several ranks do together equals what one does: every row once, in order, and one decision for all.

The ranks are threads of this process (`ranks_in_threads`): slow tests run processes that communicate over gloo.
"""

import collections
import concurrent.futures
import contextlib
import copy
import datetime
import errno
import functools
import itertools
import json
import math
import os
import socket
import sys
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import datasets
import numpy as np
import pytest
import test_streams
import torch
import torch.distributed as dist
from absl.testing import parameterized
from family_worker import VOWELS, model_of
from number_encoder import NumberEncoder
from ranks_in_threads import accelerator_of_rank, on_ranks, outcomes
from support import OwnStopRequests, folder
from tiny_predictor import mini_rows as rows_of_command
from tiny_predictor import model_folder
from transformers import BertConfig, BertForPreTraining
from transformers.models.albert.modeling_albert import AlbertForPreTrainingOutput
from transformers.models.bert.modeling_bert import BertForPreTrainingOutput

from t5suite import cli
from t5suite.base.errors import CheckpointError, NumericsError, Preempted, TemporaryError
from t5suite.data.batches.encodings import TextEncoding
from t5suite.data.batches.features import TokenArrays
from t5suite.data.batches.samplers import GlobalBatchSampler, shuffled_order
from t5suite.data.batches.training_data import tokenize_split
from t5suite.data.corpora import building
from t5suite.data.corpora.readers import TextOptions
from t5suite.data.rows.jsonl import read_jsonl, write_jsonl
from t5suite.data.rows.sources import DataOptions, load_split
from t5suite.data.streams.loader import StreamLoader
from t5suite.data.streams.positions import merge_states
from t5suite.data.streams.settings import StreamCorpus
from t5suite.data.streams.sources import FileSource
from t5suite.inference import running
from t5suite.inference.model_loading import load_predictor
from t5suite.models.answering import answerer
from t5suite.models.families import encoding_for
from t5suite.models.loading import load_tokenizer
from t5suite.tasks.registry import Task, load_task
from t5suite.tasks.tokenization import Lengths
from t5suite.testing import tiny_model, tiny_tokenizer, tiny_trainer
from t5suite.training import process_setup
from t5suite.training.batch_metrics import MeasuredLoss
from t5suite.training.checkpoints.committing import commit_checkpoint
from t5suite.training.checkpoints.data_positions import ExampleOrder
from t5suite.training.checkpoints.manifests import Manifest
from t5suite.training.distillation import DistilledLoss
from t5suite.training.eval_sets import make_eval_set
from t5suite.training.evaluation import Evaluator, EvaluatorSettings
from t5suite.training.fine_tuning_trainer import make_collator
from t5suite.training.flags.fine_tuning import SuiteTrainingArguments
from t5suite.training.flags.pre_training import PreTrainerArguments
from t5suite.training.limits import MaxMinutesCallback
from t5suite.training.loss_counts import UpdateCounts
from t5suite.training.losses import WatchedLoss
from t5suite.training.pre_training_collators import collator_of_objective
from t5suite.training.pre_training_data import SCORE_ALL, held_out_of_stream
from t5suite.training.pre_training_evaluation import EVALUATION_SEED, HeldOut, PreTrainingEvaluator
from t5suite.training.pre_training_streams import StreamedText
from t5suite.training.pre_training_text import TextSettings
from t5suite.training.pre_training_trainer import PreTrainer
from t5suite.training.processes import lost_ranks
from t5suite.training.processes.lost_ranks import watching_ranks
from t5suite.training.processes.ranks import Ranks
from t5suite.training.processes.signals import StopRequests, agree_to_stop
from t5suite.training.processes.weight_check import check_agreement, check_weights, digest_tensors
from t5suite.training.trainer import SuiteTrainer
from t5suite.training.updates.guard import vote

LENGTHS = Lengths(48, 8)
# None, fewer than ranks, a full batch for each rank or for some of them, and a smaller last batch.
ROW_COUNTS = (0, 1, 2, 7, 13)
BATCH_SIZE = 2
SEVERAL = (2, 3)
# Two ranks must be told apart from one by more than rounding: a row too many or too few changes a mean by percents.
NEAR = 2e-6


def alternating(values) -> list[tuple]:
    """`(value, number of ranks)`: each value with one number, the numbers in turn."""
    return list(zip(values, itertools.cycle(SEVERAL)))


def others(values) -> list[tuple]:
    """The pairs of a value and a number of ranks that `alternating` leaves to slow tests."""
    return [pair for pair in itertools.product(values, SEVERAL) if pair not in alternating(values)]


@functools.cache
def mini_rows(name: str) -> list[dict]:
    rows = load_split(load_task("mini", name), "validation", "validation", DataOptions()).rows
    return rows.select(range(max(ROW_COUNTS))).to_list()


def free_text_rows() -> list[dict]:
    return [{"question": row["sentence"], "answer": row["sentence"][::-1]} for row in mini_rows("sentiment")]


def vowel_rows() -> list[dict]:
    label = lambda row: [int(word[0].lower() in "aeiou") for word in row["sentence"].split()]
    return [{**row, "vowels": label(row)} for row in mini_rows("sentiment")]


def multirc_rows() -> list[dict]:
    """Questions of one, two or three answers, whose rows stand in different batches."""
    return [
        {
            "paragraph": sentence, "question": f"Is it {sentence.split()[0]}?", "answer": f"{number} " * (number % 4 + 1),
            "label": number % 2, "idx": {"paragraph": 0, "question": number * 3 // 5, "answer": number},
        }
        for number, sentence in enumerate(row["sentence"] for row in mini_rows("sentiment"))
    ]  # fmt: skip


def record_rows() -> list[dict]:
    """Every row is as many examples as it has answers, of which the best counts."""
    return [
        {
            "passage": f"{sentence}\n@highlight\nThe man was old", "query": "@placeholder was good.",
            "entities": ["The man", "food", sentence.split()[0]], "answers": ["The man", "food"][: number % 2 + 1],
            "idx": {"passage": number, "query": number},
        }
        for number, sentence in enumerate(row["sentence"] for row in mini_rows("sentiment"))
    ]  # fmt: skip


FREE_TEXT = Task("own", "questions", {
    "prefix": "question: ", "text_column_name": "question", "label_column_name": "answer", "metric_names": ["exact_match"],
    "metric_to_optimize": "exact_match", "labels": None,
})  # fmt: skip
RUNNING_TEXT = Task("own", "text", {
    "prefix": "", "formatter": "document", "text_column_name": "sentence", "label_column_name": "sentence",
    "metric_names": [], "metric_to_optimize": None, "max_output_tokens": 8, "labels": None,
})  # fmt: skip
# model, task, its rows, method
EVALUATIONS = {
    "labels that are written": ("t5", load_task("mini", "entailment"), lambda: mini_rows("entailment"), "generate"),
    "labels that are scored": ("t5", load_task("mini", "entailment"), lambda: mini_rows("entailment"), "score"),
    "numbers": ("t5", load_task("mini", "similarity"), lambda: mini_rows("similarity"), "generate"),
    "free text": ("t5", FREE_TEXT, free_text_rows, "generate"),
    "questions of several rows": ("t5", load_task("super_glue", "multirc"), multirc_rows, "score"),
    "rows of several answers": ("t5", load_task("super_glue", "record"), record_rows, "score"),
    "running text": ("t5", RUNNING_TEXT, lambda: mini_rows("sentiment"), "loss"),
    "a decoder writes": ("gpt2", load_task("mini", "sentiment"), lambda: mini_rows("sentiment"), "generate"),
    "a decoder scores": ("gpt2", load_task("super_glue", "record"), record_rows, "score"),
    "a head's class": ("bert", load_task("mini", "sentiment"), lambda: mini_rows("sentiment"), "classify"),
    "a head's number": ("bert", load_task("mini", "similarity"), lambda: mini_rows("similarity"), "classify"),
    "a head's labels of words": ("bert", VOWELS, vowel_rows, "classify"),
}


@functools.cache
def t5():
    tokenizer = load_tokenizer(None)
    return tokenizer, tiny_model().eval()


@functools.cache
def model_for(name: str):
    """`(tokenizer, model)` of one of EVALUATIONS."""
    model_name, task, _, _ = EVALUATIONS[name]
    if model_name == "t5":  # with weights so large that answers differ from row to row
        return load_tokenizer(None), tiny_model(seed=2, scale=6.0).eval()
    tokenizer, model = load_tokenizer(None), model_of(model_name, task, seed=1)
    if task.value_kind == "number":  # in the middle of the task's numbers, whose ends cut off the rest
        torch.nn.init.constant_(model.classifier.bias, 2.5)
        model.classifier.weight.data.mul_(0.1)
    return tokenizer, model


class Watched:
    """Encoded rows that keep in mind which of them each rank has read."""

    def __init__(self, features):
        self.features, self.read = features, {}

    def __getattr__(self, name):
        return getattr(self.features, name)

    def __getitems__(self, positions):
        self.read.setdefault(threading.get_ident(), []).append(list(positions))
        return self.features.__getitems__(positions)


def eval_sets(name: str, counts=(1, 2, 7)):
    """`(model, tokenizer, EvalSets)` of so many rows each."""
    _, task, rows, method = EVALUATIONS[name]
    tokenizer, model = model_for(name)
    encoding = encoding_for(model, tokenizer, LENGTHS)
    sets = [
        make_eval_set(f"{task.name} {n}", task, "validation", datasets.Dataset.from_list(rows()[:n]), encoding, method)
        for n in counts
    ]
    return model, tokenizer, sets


def evaluate(model, tokenizer, sets, **decoding):
    """A rank's report."""
    settings = EvaluatorSettings(**decoding)
    evaluator = Evaluator(make_collator(model), tokenizer, settings, BATCH_SIZE, accelerator_of_rank())
    return evaluator.evaluate(copy.deepcopy(model), sets)


def numbers_and_rest(value, path="") -> tuple[dict[str, float], dict]:
    """The fractions of a nest by where they stand, and everything else."""
    if isinstance(value, float):
        return {path: value}, {}
    if isinstance(value, dict):
        parts = [numbers_and_rest(part, f"{path}/{name}") for name, part in value.items()]
        return {k: v for part, _ in parts for k, v in part.items()}, {
            k: v for _, part in parts for k, v in part.items()
        }
    return {}, {path: value}


class ReportTest(parameterized.TestCase):
    def assert_same(self, report, expected) -> None:
        """All but the seconds; losses up to the rounding of sums, which threads may split in another way."""
        numbers, rest = self._content(report)
        expected_numbers, expected_rest = self._content(expected)
        self.assertEqual(rest, expected_rest)
        self.assertEqual(list(numbers), list(expected_numbers))
        np.testing.assert_allclose(list(numbers.values()), list(expected_numbers.values()), rtol=NEAR)

    @staticmethod
    def _content(report):
        results = {
            name: {key: value for key, value in vars(result).items() if key != "seconds"}
            for name, result in report.results.items()
        }
        return numbers_and_rest({"selection": report.selection, "by_task": report.by_task, "results": results})


MIXED = ("labels that are written", "labels that are scored")


class EvaluationTest(ReportTest):
    @parameterized.parameters(*alternating(EVALUATIONS))
    @pytest.mark.quick_cases(9)
    def test_every_rank_reports_what_one_rank_reports(self, name, world_size):
        self.check(name, world_size)

    @parameterized.parameters(*others(EVALUATIONS))
    @pytest.mark.slow
    @pytest.mark.ranks
    def test_so_it_is_with_another_number_of_ranks(self, name, world_size):
        self.check(name, world_size)

    def check(self, name, world_size):
        parts = eval_sets(name)
        expected = evaluate(*parts)
        longest = list(expected.results.values())[-1]
        if longest.method != "loss":
            self.assertGreater(len(set(map(str, longest.predictions))), 1, "rows in another order would not show")
        for report in on_ranks(world_size, evaluate, *parts):
            self.assert_same(report, expected)

    @parameterized.parameters(*alternating(MIXED))
    @pytest.mark.quick_cases(1)
    def test_tasks_of_a_mixture_on_sharded_weights_do_too(self, name, world_size):
        self.check_mixture(name, world_size)

    @parameterized.parameters(*others(MIXED))
    @pytest.mark.slow
    @pytest.mark.ranks
    def test_so_do_these_with_another_number_of_ranks(self, name, world_size):
        self.check_mixture(name, world_size)

    def check_mixture(self, name, world_size):
        model, tokenizer, sets = eval_sets(name, (2, 5))
        more = eval_sets("rows of several answers", (1, 3))[2]
        expected = evaluate(model, tokenizer, [*sets, *more], batch_tokens=200)
        reports = on_ranks(
            world_size, lambda: evaluate(model, tokenizer, [*sets, *more], synced=True, batch_tokens=200)
        )
        for report in reports:
            self.assert_same(report, expected)

    @parameterized.parameters(*SEVERAL)
    @pytest.mark.quick_cases(1)
    def test_ranks_with_parts_of_the_weights_make_as_many_forward_passes(self, world_size):
        """Each pass gathers the weights: one pair of row and label a pass, and the last batch has fewer of them."""
        model, tokenizer, sets = eval_sets("labels that are scored", (7,))
        counted, passes = copy.deepcopy(model), collections.Counter()
        counted.register_forward_hook(lambda *_: passes.update([threading.get_ident()]))
        plain = {"reference": frozenset({"candidate_trees", "quick_decoding"}), "loss": False}
        with mock.patch.object(answerer, "SCORED_TOKENS_AT_ONCE", 1):
            expected = evaluate(model, tokenizer, sets, **plain)
            reports = on_ranks(world_size, lambda: evaluate(counted, tokenizer, sets, synced=True, **plain))
        self.assertLen(passes, world_size)
        self.assertLen(set(passes.values()), 1, passes)
        for report in reports:
            self.assert_same(report, expected)

    def test_all_take_the_first_rank_s_metrics_where_a_metric_differs_from_call_to_call(self):
        model, tokenizer, (eval_set,) = eval_sets("a head's class", (2,))
        eval_set.compute_metrics = lambda _: {"accuracy": float(dist.get_rank())}
        for report in on_ranks(3, evaluate, model, tokenizer, [eval_set]):
            self.assertEqual(report.results[eval_set.name].metrics, {"accuracy": 0.0})
            self.assertEqual((report.selection, report.by_task), (0.0, {"sentiment": 0.0}))

    @parameterized.product(rows=(1, 2, 7, 13), world_size=(1, *SEVERAL))
    @pytest.mark.quick_cases(4)
    def test_ranks_share_the_batches_and_stay_in_step(self, rows, world_size):
        """Each row is read by one rank; a rank without a batch of its own reads the first one once more."""
        model, tokenizer, (eval_set,) = eval_sets("a head's class", (rows,))
        eval_set.features = Watched(eval_set.features)
        on_ranks(world_size, evaluate, model, tokenizer, [eval_set])
        turns = math.ceil(math.ceil(rows / BATCH_SIZE) / world_size)
        self.assertEqual([len(batches) for batches in eval_set.features.read.values()], [turns] * world_size)
        times = collections.Counter(
            row for batches in eval_set.features.read.values() for batch in batches for row in batch
        )
        self.assertEqual(set(times), set(range(rows)))
        read_more_than_once = [row for row, count in times.items() if count > 1]
        self.assertLessEqual(len(read_more_than_once), BATCH_SIZE)


class PreTrainingEvaluationTest(ReportTest):
    @parameterized.parameters((7, 3), (1, 3), (2, 2), (13, 2))
    @pytest.mark.quick_cases(1)
    def test_every_rank_reports_what_one_rank_reports(self, blocks, world_size):
        self.check(blocks, world_size)

    @parameterized.parameters((1, 2), (2, 3), (7, 2), (13, 3))
    @pytest.mark.slow
    @pytest.mark.ranks
    def test_so_it_is_with_another_number_of_ranks(self, blocks, world_size):
        self.check(blocks, world_size)

    def check(self, blocks, world_size):
        tokenizer, model = t5()
        collator = collator_of_objective("span_corruption", tokenizer, model, inputs_length=16, seed=EVALUATION_SEED)
        tokens = np.random.default_rng(0).integers(3, 500, size=(blocks, collator.tokens_length)).astype(np.int32)
        held_out = HeldOut([{"input_ids": row, "index": i} for i, row in enumerate(tokens)], frozenset({1}))

        def report():
            accelerator = accelerator_of_rank()
            evaluator = PreTrainingEvaluator(collator, BATCH_SIZE, accelerator, tokenizer=tokenizer, num_samples=5)
            return evaluator.evaluate(copy.deepcopy(model), [held_out])

        expected = report()
        (result,) = expected.results.values()
        rows = sorted({number * blocks // min(blocks, 5) for number in range(min(blocks, 5))})
        self.assertEqual([sample["row"] for sample in result.samples], rows)
        self.assertEqual(result.num_rows, blocks)
        for of_rank in on_ranks(world_size, report):
            self.assert_same(of_rank, expected)

    @parameterized.product(
        form=(
            (BertForPreTrainingOutput, "seq_relationship_logits", "next_sentence_label"),
            (AlbertForPreTrainingOutput, "sop_logits", "sentence_order_label"),
        ),
        batch_size=(2, 5),
    )
    def test_pairs_that_are_guessed_right_are_counted_once_each(self, form, batch_size):
        """By hand: three of five pairs; the model never gets their labels."""
        outputs_class, logits_name, label_name = form
        labels, guesses = [0, 1, 1, 0, 1], [0, 1, 0, 1, 1]

        def collator(examples):
            ids = torch.tensor([[example] for example in examples])
            pair_labels = torch.tensor([labels[example] for example in examples])
            return {"input_ids": ids, "labels": torch.zeros_like(ids), label_name: pair_labels}

        class Guesses(torch.nn.Module):
            def forward(self, input_ids):
                pair_logits = torch.tensor([[1.0 - guesses[i], guesses[i]] for i in input_ids[:, 0].tolist()])
                token_logits = torch.zeros(len(input_ids), 1, 4)
                return outputs_class(**{"prediction_logits": token_logits, logits_name: pair_logits})

        evaluator = PreTrainingEvaluator(collator, batch_size, accelerator_of_rank())
        (result,) = evaluator.evaluate(Guesses(), [HeldOut(range(5))]).results.values()
        self.assertEqual(result.metrics["pair_accuracy"], 60.0)
        self.assertAlmostEqual(result.metrics["nll"], math.log(4), places=6)

    def test_the_logits_of_a_batch_are_gone_when_the_next_one_is_computed(self):
        """Those of 32 rows of 114 targets take half a gigabyte."""
        tokenizer, model = copy.deepcopy(t5())
        collator = collator_of_objective("span_corruption", tokenizer, model, inputs_length=16, seed=EVALUATION_SEED)
        tokens = np.full((4 * BATCH_SIZE, collator.tokens_length), 9, np.int32)
        held_out = HeldOut([{"input_ids": row, "index": i} for i, row in enumerate(tokens)])
        logits, num_alive = [], []
        model.register_forward_pre_hook(lambda *_: num_alive.append(sum(ref() is not None for ref in logits)))
        model.register_forward_hook(lambda model, inputs, outputs: logits.append(weakref.ref(outputs.logits)))
        PreTrainingEvaluator(collator, BATCH_SIZE, accelerator_of_rank()).evaluate(model, [held_out])
        self.assertEqual(num_alive, [0] * 4)


PREDICTIONS = {
    "written": ("seq2seq", "--max_new_tokens 4"),
    "drawn": ("seq2seq", "--max_new_tokens 4 --do_sample --temperature 0.8 --num_return_sequences 2 --seed 3"),
    "chosen": ("seq2seq", "--labels"),
    "classified": ("masked", ""),
}
LOADING = threading.Lock()


def load_one_at_a_time(*args, **kwargs):
    """transformers loads one model at a time in a process."""
    with LOADING:
        return load_predictor(*args, **kwargs)


def predict(way: str, rows: Path, output: Path) -> None:
    family, flags = PREDICTIONS[way]
    argv = ["predict", "--use_cpu", "--model_name_or_path", model_folder(family), "--input", str(rows)]
    cli.main([*argv, "--output", str(output), "--batch_size", str(BATCH_SIZE), "--window", "5", *flags.split()])


def written_rows(count: int) -> Path:
    path = folder() / "rows.jsonl"
    write_jsonl(path, rows_of_command("sentiment", count))
    return path


@functools.cache
def answers_of_one_rank(way: str, count: int) -> tuple[Path, str]:
    """`(the rows' file, the file of answers)`."""
    rows, output = written_rows(count), folder() / "answers.jsonl"
    predict(way, rows, output)
    return rows, output.read_text()


class PredictionTest(OwnStopRequests):
    def setUp(self):
        super().setUp()
        self.enter_context(mock.patch.object(running, "load_predictor", load_one_at_a_time))

    @parameterized.parameters(*alternating(PREDICTIONS))
    @pytest.mark.slow
    def test_the_file_of_answers_is_that_of_one_rank(self, way, world_size):
        self.check(way, world_size, 13)

    @parameterized.parameters((0, 3), (1, 2), (2, 3), (7, 2))
    @pytest.mark.quick_cases(1)
    def test_so_it_is_with_few_rows(self, count, world_size):
        self.check("chosen", world_size, count)

    @parameterized.parameters(*others(PREDICTIONS))
    @pytest.mark.slow
    @pytest.mark.ranks
    def test_it_is_with_another_number_of_ranks(self, way, world_size):
        self.check(way, world_size, 13)

    @parameterized.parameters((0, 2), (1, 3), (2, 2), (7, 3))
    @pytest.mark.slow
    @pytest.mark.ranks
    def test_so_it_is_with_few_rows_and_another_number_of_ranks(self, count, world_size):
        self.check("chosen", world_size, count)

    def check(self, way, world_size, count):
        (rows, expected), output = answers_of_one_rank(way, count), folder() / "answers.jsonl"
        on_ranks(world_size, predict, way, rows, output)
        self.assertEqual(output.read_text(), expected)
        self.assertEqual([json.loads(line)["row"] for line in expected.splitlines()], list(range(count)))

    @parameterized.parameters(*SEVERAL)
    @pytest.mark.slow
    def test_a_rank_that_is_asked_to_stop_stops_all_after_the_same_rows_and_any_number_goes_on(self, world_size):
        (rows, expected), output = answers_of_one_rank("chosen", 13), folder() / "answers.jsonl"
        requests = threading.local()

        def stop_of_rank():
            requests.stop = getattr(requests, "stop", None) or StopRequests()
            if Ranks.of_process().rank == world_size - 1:
                requests.stop.request("SIGTERM")
            return requests.stop

        with mock.patch.object(running, "stop_requests", stop_of_rank):
            stopped = outcomes(world_size, predict, "chosen", rows, output)
        self.assertEqual([type(outcome) for outcome in stopped], [Preempted] * world_size)
        self.assertLen(list(read_jsonl(output)), 5)
        on_ranks(5 - world_size, predict, "chosen", rows, output)
        self.assertEqual(output.read_text(), expected)


class SharesTest(parameterized.TestCase):
    @parameterized.product(rows=ROW_COUNTS, world_size=(1, *SEVERAL))
    def test_a_micro_batch_takes_the_next_rows_of_the_order_whatever_the_ranks(self, rows, world_size):
        order = shuffled_order(rows, seed=4)
        samplers = [GlobalBatchSampler(order, 2, rank, world_size) for rank in range(world_size)]
        for sampler in samplers:
            sampler.set_epoch(1)
        by_rank = [list(sampler) for sampler in samplers]
        whole = order(1).tolist()
        micro_batches = [whole[start : start + 2 * world_size] for start in range(0, rows, 2 * world_size)]
        self.assertEqual([list(itertools.chain(*shares)) for shares in zip(*by_rank, strict=True)], micro_batches)
        for shares in zip(*by_rank, strict=True):
            self.assertLessEqual(max(map(len, shares)) - min(map(len, shares)), 1)
        self.assertEqual({len(sampler) for sampler in samplers}, {len(micro_batches)})

    @parameterized.parameters(*SEVERAL)
    def test_a_stream_gives_every_datum_to_one_rank_and_goes_on_with_any_number(self, world_size):
        source = FileSource(test_streams.written(test_streams.number_documents(60), "a.txt"))

        def read(ranks, updates, state=None):
            """`([[(index, tokens) in order] by update], the position)` of all ranks together."""
            settings = test_streams.settings(num_virtual_streams=6)
            loaders = [
                StreamLoader(
                    [StreamCorpus(source)], NumberEncoder(), settings, list, 6 // ranks, rank=r, world_size=ranks
                )
                for r in range(ranks)
            ]
            for loader in loaders if state else ():
                loader.load_state_dict(state)
            batches = [iter(loader) for loader in loaders]
            read_by_update = [list(itertools.chain(*map(next, batches))) for _ in range(updates)]
            position = merge_states([loader.state_dict() for loader in loaders])
            return [
                sorted((e["index"], e["input_ids"].tolist()) for e in update) for update in read_by_update
            ], position

        whole, _ = read(1, 9)
        self.assertEqual([[index for index, _ in update] for update in whole], np.arange(54).reshape(9, 6).tolist())
        first, position = read(world_size, 4)
        rest, _ = read(5 - world_size, 5, position)
        self.assertEqual(first + rest, whole)


def of_rank(*values):
    """This rank's value."""
    return values[Ranks.of_process().rank]


class HeldOutTextTest(parameterized.TestCase):
    """The collator takes blocks of 8 numbers; a document has one of 3 to 29."""

    COLLATOR = SimpleNamespace(tokens_lengths=[8], weights=[1.0])

    def settings(self, **changes):
        return TextSettings(TextOptions(), validation_fraction=0.5, **changes)

    def scored(self, text: StreamedText, where: Path):
        """The blocks that a rank scores."""
        args = SimpleNamespace(output_dir=str(where), allow_changed=None)
        parts = (args, text, tiny_tokenizer(), where / "corpus", self.COLLATOR, SCORE_ALL, Ranks.of_process())
        blocks = held_out_of_stream(*parts)[1].held_out.examples
        return [block["input_ids"].tolist() for block in blocks]

    def source(self, name: str) -> FileSource:
        return FileSource(test_streams.written([f"king {number}" for number in range(60)], name))

    @parameterized.parameters(*SEVERAL)
    @pytest.mark.quick_cases(1)
    def test_of_a_stream_it_is_read_by_the_first_rank_and_scored_by_all(self, world_size):
        readers = []

        class WatchedSource(FileSource):
            def read(self, *args):
                readers.append(Ranks.of_process().rank)
                return super().read(*args)

        path = self.source("a.txt").paths[0]
        expected = self.scored(StreamedText([FileSource(path)], (1,), self.settings()), folder())
        self.assertGreater(len(expected), 4)
        text = StreamedText([WatchedSource(path)], (1,), self.settings())
        self.assertEqual(on_ranks(world_size, self.scored, text, folder()), [expected] * world_size)
        self.assertEqual(set(readers), {0})

    def test_of_a_file_it_is_tokenized_by_the_first_rank_and_mapped_by_the_others(self):
        files = [str(self.source("held_out.txt").paths[0])]
        text = StreamedText([self.source("a.txt")], (1,), self.settings(validation_files=files))
        expected = self.scored(text, folder())
        with mock.patch.object(building, "build_unit", wraps=building.build_unit) as build_unit:
            by_rank = on_ranks(2, self.scored, text, folder())
        self.assertEqual(by_rank, [expected] * 2)
        self.assertEqual(build_unit.call_count, 1)


class CommunicationTest(parameterized.TestCase):
    """What every decision over ranks is made of."""

    @parameterized.parameters(1, *SEVERAL)
    def test_sums_lists_and_flags(self, world_size):
        def talk():
            ranks = Ranks.of_process()
            flags = [ranks.any(ranks.rank == rank) for rank in range(world_size)]
            values = ranks.sum([10.0**ranks.rank, 0.25, -1e-17])
            return ranks.rank, ranks.is_main, flags, ranks.any(False), values, ranks.gather({"rank": ranks.rank})

        sums = {1: 1.0, 2: 11.0, 3: 111.0}[world_size]
        for rank, answers in enumerate(on_ranks(world_size, talk)):
            expected = [sums, 0.25 * world_size, -1e-17 * world_size]
            gathered = [{"rank": number} for number in range(world_size)]
            self.assertEqual(answers, (rank, rank == 0, [True] * world_size, False, expected, gathered))

    @parameterized.parameters(1, *SEVERAL)
    def test_what_is_done_together_is_done_once_by_the_first_and_all_get_it_or_its_error(self, world_size):
        done = []

        def work(name, fails):
            done.append(Ranks.of_process().rank)
            if fails:
                raise TemporaryError(f"{name} is down")
            return {"name": name}

        by_rank = on_ranks(world_size, lambda: Ranks.of_process().together(work, "hub", fails=False))
        failed = outcomes(world_size, lambda: Ranks.of_process().together(work, "hub", fails=True))
        self.assertEqual(by_rank, [{"name": "hub"}] * world_size)
        self.assertEqual(
            [(type(error), str(error)) for error in failed], [(TemporaryError, "hub is down")] * world_size
        )
        self.assertEqual(done, [0, 0])

    @parameterized.parameters(1, *SEVERAL)
    def test_what_the_first_rank_makes_the_others_find_and_all_leave_together(self, world_size):
        done = []

        def work():
            ranks = Ranks.of_process()
            with ranks.main_first():
                done.append(ranks.rank)
            return len(done)

        self.assertEqual(on_ranks(world_size, work), [world_size] * world_size)
        self.assertEqual(done[0], 0)
        self.assertCountEqual(done, range(world_size))

    def test_a_rank_that_is_waited_for_may_take_longer_than_the_time_limit_of_the_group(self):
        store = dist.HashStore()

        def work(rank: int) -> str:
            group = dist.ProcessGroupGloo(store, rank, 2, datetime.timedelta(seconds=0.5))
            with Ranks(rank, 2, group).main_first():
                if rank == 0:
                    time.sleep(1)
            return "done"

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            self.assertEqual(list(pool.map(work, range(2))), ["done", "done"])

    def test_ranks_on_gpus_wait_for_one_another_as_long_as_the_flag_says(self):
        """Beside NCCL's group they have one of gloo, for which torch takes half an hour."""
        limit = datetime.timedelta(seconds=300)
        of_gpus = {
            "is_initialized": lambda: True,
            "get_world_size": lambda: 2,
            "get_rank": lambda: 1,
            "get_backend": lambda: "nccl",
            "new_group": lambda **settings: settings,
        }
        with mock.patch.multiple(dist, **of_gpus):
            group = Ranks.of_process(limit).group
        self.assertEqual(group, {"backend": "gloo", "timeout": limit})
        with mock.patch.object(Ranks, "of_process", return_value=Ranks()) as of_process:
            tiny_trainer(ddp_timeout=300)
        of_process.assert_called_with(limit)

    @parameterized.product(world_size=SEVERAL, bad=(0, -1), kind=(ValueError, TemporaryError))
    def test_all_fail_if_one_does(self, world_size, bad, kind):
        bad %= world_size

        def work():
            if Ranks.of_process().rank == bad:
                raise kind("broken")
            return Ranks.of_process().rank

        by_rank = outcomes(world_size, lambda: Ranks.of_process().all_succeed(work))
        elsewhere = TemporaryError if kind is TemporaryError else OSError
        self.assertEqual(
            [type(error) for error in by_rank], [kind if r == bad else elsewhere for r in range(world_size)]
        )
        whole = on_ranks(world_size, lambda: Ranks.of_process().all_succeed(lambda: Ranks.of_process().rank))
        self.assertEqual(whole, list(range(world_size)))


class DecisionTest(OwnStopRequests):
    """Of one rank alone, whichever it is, and all ranks know it."""

    @parameterized.parameters(*SEVERAL)
    def test_a_vote_has_the_mean_loss_and_what_any_rank_wants(self, world_size):
        losses = (2.0, 5.0, 11.0)[:world_size]
        mean = {2: 3.5, 3: 6.0}[world_size]
        flags = [(number == 0, number == world_size - 1) for number in range(world_size)]

        def calm():
            return vote(Ranks.of_process(), torch.tensor(of_rank(*losses)), torch.tensor(0.5))

        def mixed():
            stop, grew = of_rank(*flags)
            return vote(Ranks.of_process(), of_rank(*losses), None, stop, grew)

        def broken():
            return vote(Ranks.of_process(), torch.tensor(of_rank(*losses[:-1], math.nan)), torch.tensor(0.5))

        for totals in on_ranks(world_size, calm):
            self.assertAlmostEqual(totals.loss, mean, places=12)
            self.assertAlmostEqual(totals.grad_norm, 0.5, places=12)
            self.assertEqual((totals.stop, totals.grew), (False, False))
        for totals in on_ranks(world_size, mixed):
            self.assertEqual((totals.grad_norm, totals.stop, totals.grew), (None, True, True))
        self.assertEqual([math.isnan(totals.loss) for totals in on_ranks(world_size, broken)], [True] * world_size)

    @parameterized.product(world_size=SEVERAL, asked=(None, 0, -1))
    def test_a_request_to_stop_reaches_all(self, world_size, asked):
        def stops():
            stop = StopRequests()
            if asked is not None and Ranks.of_process().rank == asked % world_size:
                stop.request("SIGTERM")
            return agree_to_stop(Ranks.of_process(), stop), stop.requested

        self.assertEqual(on_ranks(world_size, stops), [(asked is not None,) * 2] * world_size)

    @parameterized.product(world_size=SEVERAL, late=(0, 1))
    def test_the_first_rank_s_clock_ends_the_training_of_all(self, world_size, late):
        def step():
            seconds = 120.0 if Ranks.of_process().rank == late else 0.0
            callback = MaxMinutesCallback(SimpleNamespace(seconds_of_this_run=seconds))
            control = SimpleNamespace(should_training_stop=False)
            strategy = SimpleNamespace(value="no")
            args = SimpleNamespace(
                world_size=world_size, max_minutes=1.0, device="cpu", eval_strategy=strategy, save_strategy=strategy
            )
            callback.on_step_end(args, SimpleNamespace(global_step=0), control)
            return control.should_training_stop

        self.assertEqual(on_ranks(world_size, step), [late == 0] * world_size)

    @parameterized.parameters((29.0, False, "steps"), (31.0, True, "steps"), (31.0, True, "no"), (31.0, True, "epoch"))
    def test_the_last_step_of_the_last_minute_is_logged_scored_and_saved(self, seconds, is_over, strategy):
        """Of one minute, 30 seconds were before the restart. By epochs, the end of the epoch scores and saves."""
        names = SimpleNamespace(value=strategy)
        args = SimpleNamespace(world_size=1, max_minutes=1.0, eval_strategy=names, save_strategy=names)
        control = SimpleNamespace(should_training_stop=False)
        callback = MaxMinutesCallback(SimpleNamespace(seconds_of_this_run=30.0 + seconds))
        callback.on_step_end(args, SimpleNamespace(global_step=7), control)
        self.assertEqual(control.should_training_stop, is_over)
        if is_over:
            scores = strategy == "steps"
            self.assertEqual((control.should_log, control.should_evaluate, control.should_save), (True, scores, scores))

    @parameterized.parameters(*SEVERAL)
    def test_a_fast_path_that_is_off_on_one_rank_is_off_on_all(self, world_size):
        paths = [frozenset({name}) for name in ("candidate_trees", "quick_attention", "chunked_loss")]
        chosen = lambda *_: SimpleNamespace(off=of_rank(*paths))
        with (
            mock.patch.object(process_setup, "choose_libraries", chosen),
            mock.patch.object(process_setup, "require_proved"),
        ):
            by_rank = on_ranks(
                world_size,
                lambda: (
                    process_setup.libraries_of(SimpleNamespace(reference_code=None, allow_untested_libraries=False)).off
                ),
            )
        self.assertEqual(by_rank, [frozenset().union(*paths[:world_size])] * world_size)

    @parameterized.product(world_size=SEVERAL, bad=(0, -1))
    def test_weights_that_are_no_numbers_on_one_rank_are_refused_by_all(self, world_size, bad):
        bad %= world_size

        def check():
            model = torch.nn.Linear(2, 2)
            if Ranks.of_process().rank == bad:
                model.bias.data[1] = math.nan
            check_weights(model, 5, Ranks.of_process())

        for error in outcomes(world_size, check):
            self.assertIsInstance(error, NumericsError)
            self.assertIn(f"on rank {bad}: bias (1 of 2)", str(error))

    @parameterized.product(bad=(0, 1, 2))
    def test_the_rank_whose_weights_differ_is_named_by_all(self, bad):
        def check(flips):
            model = torch.nn.Linear(2, 2)
            torch.nn.init.constant_(model.weight, 0.5)
            torch.nn.init.constant_(model.bias, 0.25)
            if flips and Ranks.of_process().rank == bad:
                model.bias.data.view(torch.int32)[1] ^= 1
            check_agreement(model, Ranks.of_process(), 7)

        self.assertEqual(outcomes(3, check, False), [None] * 3)
        for error in outcomes(3, check, True):
            self.assertIsInstance(error, NumericsError)
            self.assertRegex(str(error), rf"the weights of rank {bad} differ from those of ranks . and . \(bias\)")


class SumTest(parameterized.TestCase):
    """Means over ranks weigh every token alike, however few of them one rank has."""

    @parameterized.parameters(1, *SEVERAL)
    def test_logged_means(self, world_size):
        pairs = [torch.tensor(pair, dtype=torch.float64) for pair in ((6.0, 3.0), (10.0, 1.0), (0.0, 4.0))]
        mean = {1: 2.0, 2: 4.0, 3: 2.0}[world_size]

        def means():
            ranks = Ranks.of_process()
            measured, distilled = MeasuredLoss(None, None), DistilledLoss(None, None, 0.5, 1.0, 1)
            watched = WatchedLoss(None)
            measured.counts, distilled.counts = {"size": of_rank(*pairs)}, of_rank(*pairs)
            watched.counts = of_rank(*pairs).long()
            return {**measured.means(ranks), **distilled.means(ranks), "accuracy": watched.accuracy(ranks)}

        expected = {"size": mean, "kl": mean, "accuracy": 100 * mean}
        self.assertEqual(on_ranks(world_size, means), [expected] * world_size)

    @parameterized.parameters(1, *SEVERAL)
    def test_logged_means_of_an_update_that_was_made_before_a_restart(self, world_size):
        """The checkpoint has the counts of all ranks, as JSON; another number of ranks goes on from them."""
        pairs = [torch.tensor(pair, dtype=torch.float64) for pair in ((6.0, 3.0), (10.0, 1.0), (0.0, 4.0))]
        mean = {1: 2.0, 2: 4.0, 3: 2.0}[world_size]

        def losses_and_their_counts():
            distilled = DistilledLoss(None, None, 0.5, 1.0, 1)
            measured = MeasuredLoss(distilled, None)
            return measured, distilled, UpdateCounts(lambda: measured, Ranks.of_process())

        def saved():
            measured, distilled, counts = losses_and_their_counts()
            distilled.counts = of_rank(*pairs)
            measured.counts = {"size": of_rank(*pairs), "overflow": torch.tensor([math.inf, 1.0])}
            return json.dumps(counts.state_dict(), allow_nan=False)

        def means(state):
            measured, _, counts = losses_and_their_counts()
            counts.load_state_dict(json.loads(state))
            self.assertEqual(json.dumps(counts.state_dict()), state)
            return measured.means(Ranks.of_process())

        states = on_ranks(world_size, saved)
        self.assertEqual(states, states[:1] * world_size)
        for later_size in (1, 2):
            expected = {"size": mean, "kl": mean, "overflow": math.inf}
            self.assertEqual(on_ranks(later_size, means, states[0]), [expected] * later_size)


class CommitTest(parameterized.TestCase):
    @parameterized.parameters(1, *SEVERAL)
    def test_a_checkpoint_has_the_files_of_all_ranks(self, world_size):
        directory = folder()

        def write(target):
            (target / f"part-{Ranks.of_process().rank}").write_text("x")

        by_rank = on_ranks(world_size, lambda: commit_checkpoint(directory, 4, write, Ranks.of_process(), run_id="r"))
        self.assertEqual(by_rank, [directory / "checkpoint-4"] * world_size)
        manifest = Manifest.read(directory / "checkpoint-4")
        self.assertEqual(sorted(manifest.files), [f"part-{rank}" for rank in range(world_size)])
        self.assertEqual(manifest.world_size, world_size)

    @parameterized.product(world_size=SEVERAL, bad=(0, -1))
    def test_none_is_written_if_one_rank_s_disk_is_full(self, world_size, bad):
        directory = folder()

        def write(target):
            (target / f"part-{Ranks.of_process().rank}").write_text("x")
            if Ranks.of_process().rank == bad % world_size:
                raise OSError(28, "No space left on device")

        by_rank = outcomes(world_size, lambda: commit_checkpoint(directory, 4, write, Ranks.of_process(), run_id="r"))
        self.assertEqual([type(error) for error in by_rank], [CheckpointError] * world_size)
        self.assertEqual(list(directory.iterdir()), [])

    def test_no_rank_gathers_the_optimizer_s_state_if_the_model_cannot_be_written(self):
        directory = folder()

        def write_model(target):
            if Ranks.of_process().is_main:
                raise OSError(28, "No space left on device")

        def commit():
            ranks = Ranks.of_process()
            trainer = SimpleNamespace(ranks=ranks, write_model=write_model)
            trainer.is_deepspeed_enabled = False
            trainer.args = SimpleNamespace(save_only_model=False)
            trainer.checkpoints = SimpleNamespace(write_optimizer=lambda *args: self.fail("rank 0 is waited for"))
            trainer.optimizer = trainer.lr_scheduler = None
            return commit_checkpoint(directory, 4, functools.partial(SuiteTrainer.write_checkpoint, trainer), ranks)

        by_rank = outcomes(2, commit)
        self.assertEqual([type(error) for error in by_rank], [CheckpointError] * 2)
        self.assertEqual([str(error).count("No space left") for error in by_rank], [1, 1])

    def test_another_run_s_checkpoint_of_the_same_step_is_set_aside_and_the_run_s_own_replaced(self):
        directory = folder()
        for text, run_id in (("first", "a"), ("second", "a"), ("third", "b"), ("fourth", "a")):
            commit_checkpoint(directory, 4, lambda place, text=text: (place / "part").write_text(text), run_id=run_id)
        texts = {place.name: (place / "part").read_text() for place in directory.iterdir()}
        aside = {"damaged-checkpoint-4": "second", "damaged-checkpoint-4-2": "third"}
        self.assertEqual(texts, {"checkpoint-4": "fourth", **aside})

    def test_one_that_is_replaced_and_cannot_be_deleted_yet_ends_no_run(self):
        """As over NFS, where a process still reads it."""
        directory, unlink = folder(), os.unlink

        def refuse_the_part(path, *, dir_fd=None):
            if path == "part":
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
            unlink(path, dir_fd=dir_fd)

        with mock.patch("os.unlink", refuse_the_part):
            for text in ("first", "second", "third"):
                commit_checkpoint(directory, 4, lambda place, text=text: (place / "part").write_text(text), run_id="a")
        self.assertEqual((directory / "checkpoint-4" / "part").read_text(), "third")
        names = [place.name for place in directory.iterdir()]
        self.assertEqual([name[:10] for name in sorted(names)], [".deleting-", ".deleting-", "checkpoint"])

    def test_the_run_s_own_checkpoint_of_the_same_step_stays_where_the_new_one_does_not_get_its_name(self):
        directory, rename = folder(), os.rename
        commit_checkpoint(directory, 4, lambda place: (place / "part").write_text("first"), run_id="a")

        def fails_with_the_new_one(source, target):
            if Path(source).name.startswith(".saving"):
                raise OSError(errno.EIO, "Input/output error")
            rename(source, target)

        with mock.patch("os.rename", fails_with_the_new_one), self.assertRaises(CheckpointError):
            commit_checkpoint(directory, 4, lambda place: (place / "part").write_text("second"), run_id="a")
        self.assertEqual([place.name for place in directory.iterdir()], ["checkpoint-4"])
        self.assertEqual((directory / "checkpoint-4" / "part").read_text(), "first")


@functools.cache
def encoded(rows: int):
    tokenizer, _ = t5()
    task, part = load_task("mini", "entailment"), datasets.Dataset.from_list(mini_rows("entailment")[:rows])
    return TokenArrays.concatenate([tokenize_split(part, task, TextEncoding(tokenizer, LENGTHS), "train")])


MAKING = threading.Lock()


class CountingTrainer(SuiteTrainer):
    counts_tokens = True


def make_trainer(rows: int, batch_size: int, accumulation: int, output_dir=None, **settings) -> SuiteTrainer:
    """A trainer of one epoch, with requests to stop of its own."""
    tokenizer, model = t5()
    with MAKING:
        args = SuiteTrainingArguments(
            output_dir=str(output_dir or folder()), per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=accumulation, num_train_epochs=1, learning_rate=1e-3, schedule="constant",
            optim="sgd", eval_strategy="no", disable_tqdm=True, use_cpu=True, seed=0,
            **{"save_strategy": "no", "logging_steps": 1, **settings},
        )  # fmt: skip
        return CountingTrainer(
            model=copy.deepcopy(model).train(), args=args, train_dataset=encoded(rows),
            data=ExampleOrder(shuffled_order(rows, 0), "row {}".format), collator=make_collator(model),
            processing_class=tokenizer,
        )  # fmt: skip


def trained(rows, batch_size, accumulation, prepare=lambda trainer: None, **settings) -> dict:
    """What a rank says of its training, after `prepare(trainer)`."""
    trainer = make_trainer(rows, batch_size, accumulation, **settings)
    prepare(trainer)
    trainer.train()
    lines = [line for line in trainer.state.log_history if "loss" in line]
    incidents = trainer.updates.incidents.path
    return {
        "numbers": [(line["loss"], line["grad_norm"]) for line in lines],
        "tokens": [line["tokens_seen"] for line in lines],
        "mean_loss": trainer.state.log_history[-1]["train_loss"],
        "weights": digest_tensors(trainer.model.parameters()),
        "first_weight": trainer.model.shared.weight.detach().clone(),
        "skipped": trainer.updates.skipped_updates,
        "incidents": [json.loads(line) for line in incidents.read_text().splitlines()] if incidents.exists() else [],
    }


@functools.cache
def trained_by_one_rank() -> dict:
    """What one rank says of two updates, of six rows and of one."""
    return trained(7, 6, 1)


def fails_at(step: int, value: float = math.nan):
    """The loss of an update on the last rank is no number."""

    def prepare(trainer):
        loss_of = trainer.compute_loss_func

        def loss(outputs, labels, num_items_in_batch=None):
            is_due = trainer.state.global_step + 1 == step and trainer.args.process_index == trainer.args.world_size - 1
            return loss_of(outputs, labels, num_items_in_batch) * (value if is_due else 1.0)

        trainer.compute_loss_func = loss

    return prepare


class TrainingTest(OwnStopRequests):
    """Updates of six rows; the last has one: a rank without a row waits for the others, and adds nothing."""

    @parameterized.parameters((2, 1, 3), (3, 2, 1))
    @pytest.mark.quick_cases(1)
    def test_losses_gradients_tokens_and_weights_are_those_of_one_rank(self, world_size, batch_size, accumulation):
        self.check(world_size, batch_size, accumulation)

    def test_the_mean_loss_of_a_run_is_of_all_ranks_where_no_update_is_logged(self):
        expected = trained_by_one_rank()["mean_loss"]
        for report in on_ranks(2, lambda: trained(7, 3, 1, logging_steps=9)):
            self.assertEqual(report["numbers"], [])
            self.assertAlmostEqual(report["mean_loss"], expected, delta=NEAR * expected)

    @parameterized.parameters((2, 3, 1), (3, 1, 2))
    @pytest.mark.slow
    @pytest.mark.ranks
    def test_so_are_those_of_other_cuts(self, world_size, batch_size, accumulation):
        self.check(world_size, batch_size, accumulation)

    def check(self, world_size, batch_size, accumulation):
        expected = trained_by_one_rank()
        for report in on_ranks(world_size, trained, 7, batch_size, accumulation):
            np.testing.assert_allclose(report["numbers"], expected["numbers"], rtol=NEAR)
            self.assertEqual(report["tokens"], expected["tokens"])
            torch.testing.assert_close(report["first_weight"], expected["first_weight"], rtol=NEAR, atol=1e-7)

    @parameterized.parameters(*SEVERAL)
    @pytest.mark.quick_cases(1)
    def test_an_update_that_is_broken_on_one_rank_is_skipped_by_all(self, world_size):
        directory = folder()
        by_rank = on_ranks(world_size, lambda: trained(7, 6 // world_size, 1, fails_at(1), output_dir=directory))
        for of_this_rank in by_rank:
            self.assertEqual(of_this_rank["skipped"], 1)
            self.assertEqual(of_this_rank["weights"], by_rank[0]["weights"])
            (incident,) = of_this_rank["incidents"]
            names = [f"row {index}" for index in shuffled_order(7, 0)(0)[:6]]
            self.assertEqual((incident["step"], incident["examples"]), (1, names))

    @parameterized.parameters((2, -1), (3, 0))
    @pytest.mark.quick_cases(1)
    def test_ranks_stop_after_the_same_update_with_the_files_of_all(self, world_size, asked):
        self.check_stop(world_size, asked)

    @parameterized.parameters((2, 0), (3, -1))
    @pytest.mark.slow
    @pytest.mark.ranks
    def test_so_they_do_where_another_is_asked(self, world_size, asked):
        self.check_stop(world_size, asked)

    def check_stop(self, world_size, asked):
        """The checkpoint has the tokens of the update, too, though none was logged."""
        directory = folder()

        def live():
            trainer = make_trainer(
                13, 6 // world_size, 1, directory, save_strategy="steps", save_steps=100, logging_steps=100
            )
            if Ranks.of_process().rank == asked % world_size:
                trainer.stop.request("SIGTERM")
            trainer.train()

        by_rank = outcomes(world_size, live)
        self.assertEqual([type(outcome) for outcome in by_rank], [Preempted] * world_size)
        self.assertEqual([path.name for path in directory.glob("checkpoint-*")], ["checkpoint-1"])
        files = Manifest.read(directory / "checkpoint-1").files
        self.assertLen([name for name in files if "rank" in name], world_size)
        state = json.loads((directory / "checkpoint-1" / "trainer_state.json").read_text())
        lengths = encoded(13).input_ids.lengths
        self.assertEqual(state["num_input_tokens_seen"], sum(lengths[row] for row in shuffled_order(13, 0)(0)[:6]))


# Four sentence pairs of so many tokens, with one to nine target labels.
PAIR_LENGTH = 12
NUM_LABELS = (1, 9, 2, 5)
CLASSES_OF_PAIRS = (0, 1, 1, 0)


def sentence_pair(number: int, num_labels: int, pair_label: int) -> dict[str, torch.Tensor]:
    ids = torch.arange(PAIR_LENGTH).roll(5 * number) + number + 3
    is_target = torch.arange(PAIR_LENGTH) < num_labels
    return {
        "input_ids": ids,
        "token_type_ids": (torch.arange(PAIR_LENGTH) >= 7).long(),
        "labels": ids.add(1).masked_fill(~is_target, -100),
        "next_sentence_label": torch.tensor(pair_label),
    }


SENTENCE_PAIRS = [sentence_pair(*row) for row in zip(range(4), NUM_LABELS, CLASSES_OF_PAIRS, strict=True)]


def batch_of_pairs(rows) -> dict[str, torch.Tensor]:
    """The rows' batch; without any, that of an input that has no labels."""
    return torch.utils.data.default_collate(list(rows) or [sentence_pair(0, 0, -100)])


@functools.cache
def pair_model() -> BertForPreTraining:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(vocab_size=24, max_position_embeddings=PAIR_LENGTH, initializer_range=0.5, **sizes, **dropout)
    return BertForPreTraining(config).train()


def gradients_by_hand(rows) -> dict[str, torch.Tensor]:
    """Of the mean surprisal of the targets and the mean surprisal of the pairs."""
    model = copy.deepcopy(pair_model())
    batch = batch_of_pairs(rows)
    labels, pair_labels = batch.pop("labels"), batch.pop("next_sentence_label")
    outputs = model(**batch)
    log_p, pair_log_p = (
        logits.log_softmax(-1) for logits in (outputs.prediction_logits, outputs.seq_relationship_logits)
    )
    of_targets = [-log_p[row, place, labels[row, place]] for row, place in labels.ne(-100).nonzero().tolist()]
    of_pairs = [-pair_log_p[row, label] for row, label in enumerate(pair_labels.tolist())]
    (sum(of_targets) / len(of_targets) + sum(of_pairs) / len(of_pairs)).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def gradients_of_update(batch_size: int, accumulation: int, pieces: int = 1, **settings) -> dict[str, torch.Tensor]:
    """What an update of all pairs takes from the weights at a learning rate of 1."""
    with MAKING:
        args = PreTrainerArguments(
            output_dir=str(folder()), per_device_train_batch_size=batch_size, gradient_accumulation_steps=accumulation,
            num_train_epochs=1, learning_rate=1.0, schedule="constant", warmup_steps=0, optim="sgd", max_grad_norm=1e9,
            eval_strategy="no", save_strategy="no", disable_tqdm=True, use_cpu=True, **settings,
        )  # fmt: skip
        trainer = PreTrainer(
            model=copy.deepcopy(pair_model()), args=args, train_dataset=SENTENCE_PAIRS,
            data=ExampleOrder(lambda epoch: range(len(SENTENCE_PAIRS))), collator=batch_of_pairs,
        )  # fmt: skip
    trainer.micro_batches.pieces = pieces
    trainer.train()
    before = dict(pair_model().named_parameters())
    after = dict(trainer.unwrapped_model().named_parameters())
    return {name: (before[name] - after[name]).detach() for name in before}


class SentencePairsTest(OwnStopRequests):
    """A pair counts once, however many labels it has, and wherever it is computed."""

    def assert_near(self, gradients, expected):
        torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-6)

    @parameterized.parameters((1, 4), (4, 1, 2), (4, 1), (2, 2), (3, 2), (2, 2, 4))
    @pytest.mark.quick_cases(2)
    def test_an_update_s_gradient_does_not_depend_on_its_cut(self, *cut):
        """Into batches of each device, and into pieces where memory runs out."""
        self.assert_near(gradients_of_update(*cut), gradients_by_hand(SENTENCE_PAIRS))

    @parameterized.parameters((3, 1, 2), (2, 2, 1), (2, 1, 2))
    @pytest.mark.quick_cases(1)
    def test_an_update_s_gradient_does_not_depend_on_the_ranks(self, world_size, batch_size, accumulation):
        """Of three ranks, two have no row in the second micro-batch."""
        expected = gradients_by_hand(SENTENCE_PAIRS)
        for gradients in on_ranks(world_size, gradients_of_update, batch_size, accumulation):
            self.assert_near(gradients, expected)

    def test_ranks_that_do_not_count_together_have_a_mean_each(self):
        """For its pairs as for its targets, by `--average_tokens_across_devices False`."""
        first, second = (gradients_by_hand(rows) for rows in (SENTENCE_PAIRS[:2], SENTENCE_PAIRS[2:]))
        expected = {name: (first[name] + second[name]) / 2 for name in first}
        for gradients in on_ranks(2, lambda: gradients_of_update(2, 1, average_tokens_across_devices=False)):
            self.assert_near(gradients, expected)


def fails(stop) -> None:
    raise ArithmeticError("a fault of its own")


def leaves_set_up(stop) -> None:
    raise Preempted("SIGTERM")


def stops_as_agreed(stop) -> None:
    with stop.phase("training"):
        raise Preempted("SIGTERM")


def is_done(stop) -> None:
    pass


class LostRankTest(parameterized.TestCase):
    """What becomes of the others when one rank leaves; slow tests kill processes (`lost_rank_runs`)."""

    @parameterized.parameters(("1", 20.0, dict), ("2", 0.3, OSError))
    def test_a_rank_on_another_machine_reaches_one_whose_name_is_loopback_there(self, ranks_here, seconds, expected):
        """127.0.1.1 is what the first machine calls itself, 127.0.0.5 the address by which others know it."""
        environment = {"MASTER_ADDR": "127.0.1.1", "LOCAL_WORLD_SIZE": ranks_here}
        connect_to = socket.create_connection

        def connect_from_elsewhere(address, timeout):
            return connect_to(("127.0.0.5", address[1]), timeout)

        elsewhere = mock.patch.object(socket, "create_connection", connect_from_elsewhere)
        wait = mock.patch.object(lost_ranks, "CONNECT_SECONDS", seconds)
        with mock.patch.dict(os.environ, environment), elsewhere, wait:
            by_rank = outcomes(2, lambda: lost_ranks.connect(Ranks.of_process()))
        for outcome in by_rank:
            self.assertIsInstance(outcome, expected)
            if isinstance(outcome, dict):
                self.enter_context(next(iter(outcome.values())))

    @parameterized.parameters(
        ("1", "no port to listen at for the other ranks, at any address of this machine"),
        ("2", "no port to listen at for the other ranks, at 127.0.1.1 or any address of this machine"),
    )
    def test_a_rank_that_gets_no_port_says_where_it_tried(self, ranks_here, message):
        environment = {"MASTER_ADDR": "127.0.1.1", "LOCAL_WORLD_SIZE": ranks_here}
        full = mock.patch.object(socket, "create_server", side_effect=OSError)
        with mock.patch.dict(os.environ, environment), full:
            main, _ = outcomes(2, lambda: lost_ranks.connect(Ranks.of_process()))
        self.assertEqual(str(main), message)

    @parameterized.product(
        number=(0, 2),
        case=(
            (fails, False, [74, 74]), (fails, True, [75, 75]), (leaves_set_up, False, [74, 74]),
            (stops_as_agreed, True, []), (is_done, False, []),
        ),
    )  # fmt: skip
    def test_a_rank_that_leaves_takes_the_others_with_it_unless_it_is_done_or_stops_as_agreed(self, number, case):
        leave, are_asked_to_stop, expected = case
        exit_codes, errors = [], folder() / "errors"

        def live():
            stop = StopRequests()
            stop.requested = are_asked_to_stop
            ranks = Ranks.of_process()
            with contextlib.suppress(ArithmeticError, Preempted), watching_ranks(ranks, stop):
                if ranks.rank == number:
                    leave(stop)
                else:
                    deadline = time.monotonic() + (10 if expected else 0.3)
                    while len(exit_codes) < 2 and time.monotonic() < deadline:
                        time.sleep(0.01)

        at_once = mock.patch.object(lost_ranks, "GRACE_SECONDS", 0.05)
        exiting = mock.patch.object(os, "_exit", exit_codes.append)
        with errors.open("w") as file, mock.patch.object(sys, "__stderr__", file), at_once, exiting:
            on_ranks(3, live)
        self.assertEqual(exit_codes, expected)
        self.assertEqual(f"rank {number} has exited" in errors.read_text(), bool(expected))
