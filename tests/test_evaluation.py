"""Evaluation: every row once, by every method and batch; the quick ways answer as the plain ones."""

import contextlib
import io
import json
import math
import statistics
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import transformers
from absl.testing import parameterized
from inner_sizes import evaluating_by_tokens, evaluating_without_loss
from support import folder

import fine_tune_t5
from t5suite import Task, load_task
from t5suite.testing import (
    TINY_T5,
    bundled_model,
    encode_rows,
    evaluate_rows,
    example_row,
    exits_with,
    make_task,
    read_rows,
    run_cli,
    save_model,
    tiny_model,
    tiny_rows,
    tiny_run,
    tiny_tokenizer,
    tiny_trainer,
    tiny_tuner,
    write_rows,
)

LENGTHS = {"source_length": 128, "target_length": 32}
RECORD_ROWS = [
    {
        "query": "@placeholder was good.",
        "entities": entities,
        "passage": "The food was good.\n@highlight\nThe man was old",
        "answers": [entities[-1]],
        "idx": {"passage": i, "query": i},
    }
    for i, entities in enumerate((["The food", "The man"], ["A", "B", "The man", "food"], ["The old man"]))
]
DPR_ROWS = [
    {"sentence": "Bees sting as they fly.", "pronoun": "they", "candidates": ["Bees", "The people"], "label": 0},
    {"sentence": "Men run as they talk.", "pronoun": "they", "candidates": ["The men", "Dogs"], "label": 1},
]


def evaluated(trainer, rows, benchmark, name, method="generate", batch_size=4, **settings):
    task = load_task(benchmark, name)
    return evaluate_rows(trainer, rows, task, method, batch_size=batch_size, **LENGTHS, **settings)


def scored_by_the_script(**flags) -> tuple[dict, Path]:
    """`(results, directory)` of `--eval_only --eval_method score`."""
    flags = {"eval_only": True, "eval_method": "score", "output_dir": tempfile.mkdtemp(), **flags}
    flags |= {"use_cpu": True, "disable_tqdm": True}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        results = fine_tune_t5.main([f"--{name}={value}" for name, value in flags.items()])
    return results, Path(flags["output_dir"])


def brute_force_choice(model, tokenizer, inputs, candidates):
    """One forward a candidate: the sum of its tokens' log-probabilities, end-of-sequence included."""
    input_ids = torch.tensor([tokenizer(inputs, max_length=LENGTHS["source_length"], truncation=True)["input_ids"]])
    scores = []
    for candidate in candidates:
        labels = torch.tensor([tokenizer(candidate)["input_ids"]])
        start = torch.full((1, 1), model.config.decoder_start_token_id)
        decoder_input_ids = torch.cat([start, labels[:, :-1]], dim=1)
        with torch.no_grad():
            log_p = model(input_ids=input_ids, decoder_input_ids=decoder_input_ids).logits.log_softmax(-1)
        scores.append(sum(float(log_p[0, t, token]) for t, token in enumerate(labels[0])))
    return candidates[max(range(len(scores)), key=lambda i: scores[i])]


class ReadOnceTest(parameterized.TestCase):
    @parameterized.parameters("generate", "score")
    def test_an_evaluation_formats_each_row_once(self, method):
        """What is tokenized, scored and shown is the same text."""
        rows, task, trainer = tiny_rows("entailment", count=5), load_task("mini", "entailment"), tiny_trainer()
        with mock.patch.object(Task, "examples", autospec=True, side_effect=Task.examples) as read:
            evaluate_rows(trainer, rows, task, method)
        self.assertEqual([call.args[1] for call in read.call_args_list], rows)


class MemoryTest(parameterized.TestCase):
    @parameterized.parameters(
        (8, "8 rows", "--per_device_eval_batch_size 4"),
        (3, "3 rows", "--per_device_eval_batch_size 1"),
        (1, "one row", "shorter texts, a smaller model, or more memory"),
    )
    def test_a_batch_that_does_not_fit_names_the_flag_that_makes_it_smaller(self, count, size, advice):
        def run_out(*_):
            raise torch.OutOfMemoryError("CUDA out of memory")

        trainer = tiny_trainer()
        for module in trainer.model.modules():
            module.register_forward_pre_hook(run_out)
        message = rf"^entailment: out of memory in an evaluation batch of {size} \(CUDA out of memory\); use {advice}$"
        with exits_with(71, message):
            evaluated(trainer, tiny_rows("entailment", count=count), "mini", "entailment", "score")


class ScoringTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("labels", "mini", "entailment", None),
        ("entities", "super_glue", "record", RECORD_ROWS),
        ("two_candidates", "super_glue", "dpr", DPR_ROWS),
    )
    @pytest.mark.quick_cases(1)
    def test_scoring_candidates_equals_one_forward_a_candidate(self, benchmark, name, rows):
        self.check(benchmark, name, rows)

    def check(self, benchmark, name, rows, count=12):
        task, trainer = load_task(benchmark, name), tiny_trainer()
        rows = rows or tiny_rows(name, count=count)
        predictions = evaluated(trainer, rows, benchmark, name, "score").predictions
        expected = [
            brute_force_choice(trainer.model.eval(), tiny_tokenizer(), example.inputs, task.candidates(row))
            for row in rows
            for example in task.examples(row)
        ]
        self.assertEqual(predictions, expected)
        self.assertGreater(len(set(expected)), 1)

    @pytest.mark.slow
    def test_scoring_numbers_equals_one_forward_a_number(self):
        self.check("mini", "similarity", None)

    def test_of_equal_candidates_the_first_is_chosen(self):
        """Of texts that differ in a space that no token keeps."""
        for entities in (["The man", "The  man"], ["The  man", "The man"]):
            rows = [{**RECORD_ROWS[0], "entities": entities, "answers": entities[:1]}]
            ids = [tiny_tokenizer()(text)["input_ids"] for text in entities]
            self.assertEqual(ids[0], ids[1])
            predictions = evaluated(tiny_trainer(), rows, "super_glue", "record", "score").predictions
            self.assertEqual(predictions, entities[:1])

    @parameterized.parameters(
        ("super_glue", ["wsc", "wsc.fixed"], "copa", "wsc,copa,wsc.fixed"), ("glue", ["wnli_simple"], "rte", "rte,wnli_simple")
    )  # fmt: skip
    @pytest.mark.quick_cases(1)
    def test_a_task_without_candidates_is_refused_alone_and_generates_in_a_mixture(
        self, benchmark, without_candidates, with_candidates, names
    ):
        data = tempfile.mkdtemp()
        for name in (*without_candidates, with_candidates):
            task = load_task(benchmark, name)
            write_rows(f"{data}/{benchmark}/{task.rows_of}/validation.jsonl", [example_row(task)])
        flags = {"benchmark": benchmark, "data_dir": data, "config_overrides": TINY_T5, "from_scratch": True}
        for name in without_candidates:
            with exits_with(78, f"{name} has no candidates"):
                scored_by_the_script(**flags, dataset_name=name)
        _, directory = scored_by_the_script(**flags, dataset_name=names)
        methods = {name: facts["method"] for name, facts in manifest_of(directory)["scored"].items()}
        self.assertEqual(methods, {with_candidates: "score", **dict.fromkeys(without_candidates, "generate")})


def manifest_of(directory) -> dict:
    return json.loads((directory / "manifest.json").read_text())


class GenerationTest(parameterized.TestCase):
    def test_the_longest_label_bounds_the_length_and_what_is_cut_off_is_counted(self):
        trainer, tokenizer, rows = tiny_trainer(), tiny_tokenizer(), tiny_rows("entailment", count=9)
        longest = max(len(tokenizer(word)["input_ids"]) for word in load_task("mini", "entailment").label_words)
        with counted_generate(trainer.model) as generate:
            evaluation = evaluated(trainer, rows, "mini", "entailment", reference_code="quick_decoding")
        configurations = [call.kwargs["generation_config"] for call in generate.call_args_list]
        self.assertEqual({configuration.max_new_tokens for configuration in configurations}, {longest})
        self.assertEqual(evaluation.truncated, 9)  # random weights never end a sequence
        self.assertEqual(evaluation.predictions, evaluated(trainer, rows, "mini", "entailment").predictions)

    def test_an_answer_ends_with_any_of_the_model_s_end_tokens(self):
        trainer = tiny_trainer()
        model = trainer.model
        model.generation_config.eos_token_id = list(range(model.config.vocab_size))
        evaluation = evaluated(trainer, tiny_rows("entailment", count=4), "mini", "entailment")
        self.assertEqual((evaluation.truncated, evaluation.predictions), (0, [""] * 4))

    @parameterized.parameters(({}, 1), ({"eos_token_id": 5}, [5, 1]))
    def test_what_a_file_of_settings_leaves_open_is_the_tokenizer_s(self, settings, ends):
        file = folder() / "generation.json"
        file.write_text(json.dumps({"max_new_tokens": 3, **settings}))
        trainer = tiny_trainer(generation_config=str(file))
        generation = trainer.model.generation_config
        self.assertEqual(
            (generation.max_new_tokens, generation.decoder_start_token_id, generation.eos_token_id), (3, 0, ends)
        )
        rows = tiny_rows("entailment", count=4)
        plain = evaluated(tiny_trainer(), rows, "mini", "entailment")
        self.assertEqual(evaluated(trainer, rows, "mini", "entailment").predictions, plain.predictions)

    def test_a_file_of_settings_with_an_id_beyond_the_vocabulary_is_refused(self):
        file = folder() / "generation.json"
        file.write_text(json.dumps({"forced_bos_token_id": 99999}))
        with exits_with(78, f"--generation_config {file}: forced_bos_token_id is 99999"):
            tiny_trainer(generation_config=str(file))

    @parameterized.parameters(1, 2)
    def test_labels_are_written_without_the_settings_of_the_checkpoint(self, num_beams):
        rows = tiny_rows("entailment", count=9)
        evaluations = []
        for has_settings in (False, True):
            trainer = tiny_trainer(generation_num_beams=num_beams, generation_max_length=4)
            first_tokens = range(trainer.model.config.vocab_size // 2)
            settings = {
                "suppress_tokens": list(first_tokens), "begin_suppress_tokens": list(first_tokens), "min_length": 9,
                "bad_words_ids": [[token] for token in first_tokens], "sequence_bias": [[[600], 50.0]],
                "exponential_decay_length_penalty": (1, 9.0), "repetition_penalty": 9.0, "length_penalty": -9.0,
                "do_sample": True, "num_return_sequences": 2, "return_dict_in_generate": True, "output_scores": True,
                "output_hidden_states": True, "forced_eos_token_id": 1, "max_length": 2, "early_stopping": True,
            }  # fmt: skip
            if has_settings:
                for name, setting in settings.items():
                    setattr(trainer.model.generation_config, name, setting)
            with self.assertNoLogs("transformers", "WARNING"):
                evaluations.append(evaluated(trainer, rows, "mini", "entailment"))
        plain, evaluation = evaluations
        self.assertEqual(evaluation.predictions, plain.predictions)
        self.assertEqual((evaluation.truncated, plain.truncated), (9, 9))

    def test_free_text_is_written_once_a_row_whatever_the_checkpoint_returns(self):
        trainer = tiny_trainer(generation_max_length=4)
        plain = evaluated(trainer, RECORD_ROWS, "super_glue", "record")
        generation = trainer.model.generation_config
        generation.num_return_sequences = 2
        generation.return_dict_in_generate = generation.output_hidden_states = True
        evaluation = evaluated(trainer, RECORD_ROWS, "super_glue", "record")
        self.assertEqual(evaluation.predictions, plain.predictions)
        self.assertLen(evaluation.predictions, len(RECORD_ROWS))

    def test_beams_are_searched_where_asked(self):
        rows = tiny_rows("entailment", count=9)
        greedy = evaluated(tiny_trainer(generation_max_length=6), rows, "mini", "entailment").predictions
        beams = tiny_trainer(generation_num_beams=2, generation_max_length=6)
        self.assertNotEqual(evaluated(beams, rows, "mini", "entailment").predictions, greedy)

    def test_the_loss_is_nats_per_target_token_without_dropout(self):
        """Of a model in the middle of training, which it then goes on with."""
        trainer, task, rows = tiny_trainer(), load_task("mini", "similarity"), tiny_rows("similarity", count=5)
        model = trainer.model.eval()
        dropouts = [module for module in model.modules() if isinstance(module, torch.nn.Dropout)]
        self.assertNotEmpty(dropouts)
        for dropout in dropouts:
            dropout.p = 0.5
        total, tokens = 0.0, 0
        for row in encode_rows(rows, task, "validation", **LENGTHS):
            labels = torch.tensor([row["labels"]])
            with torch.no_grad():
                loss = model(input_ids=torch.tensor([row["input_ids"]]), labels=labels).loss
            total, tokens = total + float(loss) * labels.numel(), tokens + labels.numel()
        model.train()
        loss = evaluated(trainer, rows, "mini", "similarity", batch_size=2).loss
        self.assertAlmostEqual(loss, total / tokens, places=5)
        self.assertTrue(model.training)


def counted_generate(model):
    return mock.patch.object(type(model), "generate", autospec=True, side_effect=type(model).generate)


# The eight tasks of GLUE's average: the scored splits of each, and the metrics whose mean is its own number.
GLUE = {
    "cola": (["cola"], ["matthews_correlation"]), "sst2": (["sst2"], ["accuracy"]),
    "mrpc": (["mrpc"], ["f1", "accuracy"]), "stsb": (["stsb"], ["pearson", "spearman"]),
    "qqp": (["qqp"], ["f1", "accuracy"]), "mnli": (["mnli_matched", "mnli_mismatched"], ["accuracy"]),
    "qnli": (["qnli"], ["accuracy"]), "rte": (["rte"], ["accuracy"]),
}  # fmt: skip
WORDS = "good bad so of it was the man food village horse noon quiet day".split()


def glue_folder(*without) -> Path:
    """Rows of GLUE's tasks, without some splits."""
    folder = Path(tempfile.mkdtemp())
    for name, (splits, _) in GLUE.items():
        task = load_task("glue", name)
        row = example_row(task)
        for number, split in enumerate(splits):
            rows = []
            for i in range(9):
                texts = {
                    column: f"{WORDS[(i + number) % 14]} {WORDS[3 * i % 14]} {WORDS[i * i % 14]}"
                    for column in row if column != "label"
                }  # fmt: skip
                label = i / 2 if name == "stsb" else (i // 2 + number) % len(task.label_words)
                rows.append({**texts, "label": label})
            if split not in without:
                file = split.replace(name, "validation")
                write_rows(folder / "glue" / name / f"{file}.jsonl", rows)
    return folder


class AverageTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = str(save_model(tempfile.mkdtemp(), tiny_model(scale=3.0)))
        cls.data = glue_folder()
        cls.of_all = cls.results(cls.data)

    @classmethod
    def results(cls, data_dir, names="all", **flags):
        source = {"benchmark": "glue", "dataset_name": names, "data_dir": data_dir, "allow_missing_tasks": True}
        results, cls.directory = scored_by_the_script(model_name_or_path=cls.model, **source, **flags)
        return results

    def own_numbers(self, results, *without) -> list[float]:
        numbers = []
        for name, (splits, metrics) in GLUE.items():
            if name not in without:
                numbers.append(
                    statistics.fmean(results["tasks"][split][metric] for split in splits for metric in metrics)
                )
        self.assertFalse(any(map(math.isnan, numbers)), results)
        self.assertGreater(len(set(numbers)), 1)
        return numbers

    def check(self, results, name, mean):
        self.assertEqual(list(results["averages"]), [name])
        self.assertAlmostEqual(results["averages"][name], mean)

    def test_the_glue_average_is_the_mean_over_eight_tasks_each_counting_once(self):
        self.check(self.of_all, "glue", statistics.fmean(self.own_numbers(self.of_all)))

    def test_some_tasks_average_bears_no_published_name_and_a_scored_test_split_counts_for_nothing(self):
        rows = read_rows(self.data / "glue" / "rte" / "validation.jsonl")[:2]
        write_rows(self.data / "glue" / "rte" / "test.jsonl", rows)
        results = self.results(self.data, "rte,mrpc", do_predict=True)
        self.assertNotEqual(results["tasks"]["rte.test"]["accuracy"], results["tasks"]["rte"]["accuracy"])
        others = [name for name in GLUE if name not in ("rte", "mrpc")]
        self.check(results, "average", statistics.fmean(self.own_numbers(results, *others)))

    @parameterized.parameters(("mnli_mismatched", "mnli"), ("rte", "rte"))
    @pytest.mark.slow
    def test_an_average_that_lacks_a_task_or_a_half_does_not_bear_the_published_name(self, split, task):
        self.check_without(split, task)

    @pytest.mark.slow
    def test_nor_does_one_that_lacks_the_other_half(self):
        self.check_without("mnli_matched", "mnli")

    def check_without(self, split, task):
        results = self.results(glue_folder(split))
        self.assertNotIn(split, results["tasks"])
        self.check(results, "glue (7 of 8 tasks)", statistics.fmean(self.own_numbers(results, task)))
        with contextlib.redirect_stdout(io.StringIO()) as output:
            run_cli("verify", self.directory, "--scores_only")
        self.assertStartsWith(output.getvalue(), "equal: ")

    @pytest.mark.slow
    def test_mnli_with_60_and_100_points_selects_and_is_logged_with_80(self):
        """Of real answers: labels are such that 3 of 5 are right in one half, and all in the other."""
        data = Path(tempfile.mkdtemp())
        texts = [
            {"premise": f"It was {word}.", "hypothesis": f"It is {word}."} for word in ("a", "bad", "so", "of", "e")
        ]

        def write_labels(**labels):
            for split, of_split in labels.items():
                rows = [{**row, "label": label} for row, label in zip(texts, of_split, strict=True)]
                write_rows(data / "glue" / "mnli" / f"{split}.jsonl", rows)

        write_labels(train=[0] * 5, validation_matched=[0] * 5, validation_mismatched=[0] * 5)
        flags = {"benchmark": "glue", "dataset_name": "mnli", "data_dir": str(data), "eval_method": "score"}
        _, directory = scored_by_the_script(model_name_or_path=self.model, **flags)
        (predictions,) = (directory / "predictions").glob("mnli*_matched*")
        lines = read_rows(predictions)
        right = [["entailment", "neutral", "contradiction"].index(line["prediction"]) for line in lines]
        wrong = [(label + 1) % 3 for label in right]
        write_labels(validation_matched=[*right[:3], *wrong[3:]], validation_mismatched=right)
        run = tiny_run(
            self.model, **flags, learning_rate=0.0, max_steps=1, eval_strategy="steps", eval_steps=1, save_steps=1
        )
        logged = next(line for line in run.history if "eval/average" in line)
        self.assertEqual((logged["eval/accuracy"], logged["eval/average"]), (80.0, 80.0))
        self.assertEqual(logged["eval/mnli_matched/accuracy"], 60.0)
        self.assertEqual(logged["eval/mnli_mismatched/accuracy"], 100.0)
        state = json.loads((run.directory / "checkpoint-1" / "trainer_state.json").read_text())
        self.assertEqual(state["best_metric"], 80.0)


class ModelsTest(parameterized.TestCase):
    def test_a_bfloat16_checkpoint_is_trained_in_float32(self):
        folder = save_model(tempfile.mkdtemp(), tiny_model().to(torch.bfloat16))
        stored = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype="auto")
        self.assertEqual(stored.dtype, torch.bfloat16)
        self.assertEqual(tiny_tuner(str(folder), "mini/sentiment").model.dtype, torch.float32)

    def test_a_folder_without_weights_is_refused(self):
        with exits_with(78, "holds no weights.*--from_scratch"):
            tiny_run(bundled_model())


class EvaluatorTest(parameterized.TestCase):
    @parameterized.parameters(
        ("mini", "entailment", None, "generate"), ("mini", "similarity", None, "score"),
        ("super_glue", "record", RECORD_ROWS, "generate"), ("super_glue", "dpr", DPR_ROWS, "score"),
    )  # fmt: skip
    @pytest.mark.quick_cases(1)
    def test_reports_are_equal(self, benchmark, name, rows, method):
        self.check(benchmark, name, rows, method)

    @parameterized.parameters(
        ("mini", "entailment", None, "score"), ("mini", "similarity", None, "generate"),
        ("super_glue", "record", RECORD_ROWS, "score"), ("super_glue", "dpr", DPR_ROWS, "generate"),
    )  # fmt: skip
    @pytest.mark.slow
    def test_so_are_those_of_the_other_method(self, benchmark, name, rows, method):
        self.check(benchmark, name, rows, method)

    def check(self, benchmark, name, rows, method):
        rows = rows or tiny_rows(name, count=9)
        with evaluating_by_tokens(100):
            by_tokens = evaluated(tiny_trainer(), rows, benchmark, name, method)
        quick = evaluated(tiny_trainer(), rows, benchmark, name, method)
        plain = evaluated(tiny_trainer(), rows, benchmark, name, method, reference_code="all")
        for evaluation in (by_tokens, quick):
            self.assertEqual(evaluation.predictions, plain.predictions)
            # NaN is not equal to itself.
            np.testing.assert_equal(evaluation.metrics, plain.metrics)
            self.assertAlmostEqual(evaluation.loss, plain.loss, places=5)
            self.assertEqual(evaluation.truncated, plain.truncated)

    @pytest.mark.slow
    def test_no_loss_is_computed_that_nobody_needs(self):
        self.enterContext(evaluating_without_loss())
        trainer, rows = tiny_trainer(), tiny_rows("entailment", count=9)
        with mock.patch.object(trainer.model, "forward", wraps=trainer.model.forward) as forward:
            self.assertIsNone(evaluated(trainer, rows, "mini", "entailment").loss)
        self.assertFalse(forward.called)
        selected = {"metric_for_best_model": "loss", "eval_strategy": "steps", "eval_steps": 1}
        run = tiny_run(**selected, save_steps=1, max_steps=1, max_eval_samples=2)
        (loss,) = [line["eval/loss"] for line in run.history if "eval/loss" in line]
        state = json.loads((run.directory / "checkpoint-1" / "trainer_state.json").read_text())
        self.assertIn(state["best_metric"], (loss, -loss))

    @parameterized.parameters(1, 300)
    @pytest.mark.slow
    def test_batches_by_tokens_have_every_example_once_the_longest_first(self, most):
        """Answers are so long that the decoder takes one batch of the encoder at a time."""
        self.check_batches(most)

    @parameterized.parameters(150, 10**6)
    @pytest.mark.slow
    def test_so_they_have_them_in_other_sizes(self, most):
        self.check_batches(most)

    def check_batches(self, most):
        trainer, labels = tiny_trainer(), [" ".join([word] * 60) for word in ("bad", "good")]
        self.enterContext(evaluating_by_tokens(most))
        task = make_task(labels=labels)
        rows = [{"text": " ".join(["so"] * (1 + i * 7 % 40)), "label": i % 2} for i in range(40)]
        lengths = {"source_length": 128, "target_length": 128}
        encoded = encode_rows(rows, task, "validation", **lengths)
        batches = []

        def record(module, arguments, settings):
            batches.append([[token for token in row if token] for row in settings["input_ids"].tolist()])

        with trainer.model.get_encoder().register_forward_pre_hook(record, with_kwargs=True):
            evaluate_rows(trainer, rows, task, "score", **lengths)
        read = [ids for batch in batches for ids in batch]
        self.assertCountEqual(map(tuple, read), [tuple(row["input_ids"]) for row in encoded])
        self.assertEqual(list(map(len, read)), sorted(map(len, read), reverse=True))
        longest_answer = max(len(row["labels"]) for row in encoded)
        sizes = [len(batch) * (len(batch[0]) + longest_answer) for batch in batches]
        for batch, size in zip(batches, sizes, strict=True):
            self.assertTrue(len(batch) == 1 or size <= most, size)
        # A batch takes the next row wherever that fits.
        for batch, size in zip(batches[:-1], sizes[:-1], strict=True):
            self.assertGreater(size + len(batch[0]) + longest_answer, most)
