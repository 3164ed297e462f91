"""The sequence of a run: which libraries' paths its ranks use, which kernels of torch, and which flags do nothing."""

import os
import re
import signal
import tempfile
from types import SimpleNamespace
from unittest import mock

import torch
from absl.testing import absltest, parameterized
from tiny_predictor import output_path, predict_words, rows_file

from t5suite.models.quantization import quantization_options
from t5suite.testing import exits_with, run_cli, tiny_model, tiny_trainer, tiny_tuner
from t5suite.training import model_setup, process_setup, run_directory
from t5suite.training.fine_tuning import warn_of_idle_flags
from t5suite.training.flags.fine_tuning import (
    FINE_TUNING_ARGUMENTS,
    FineTuningArguments,
    SuiteTrainingArguments,
    warn_of_idle_saving_flags,
)
from t5suite.training.flags.parser import changed_settings, parse_arguments
from t5suite.training.plans import settle_no_eval


class LibrariesTest(parameterized.TestCase):
    def test_ranks_use_the_fast_paths_that_all_of_them_have_proved(self):
        """Two nodes may have other versions; a path that is off on one is off on both."""
        ranks = mock.Mock(gather=lambda off: [off, frozenset({"candidate_trees"})])
        arguments = mock.Mock(reference_code="quick_dropout", allow_untested_libraries=False)
        with mock.patch.object(process_setup.Ranks, "of_process", lambda: ranks):
            self.assertEqual(process_setup.libraries_of(arguments).off, {"quick_dropout", "candidate_trees"})

    @parameterized.parameters(([], []), ([], ["loss_chunks"]), (["loss_chunks"], []))
    def test_a_resumed_run_says_when_it_uses_the_libraries_in_another_way(self, before, now):
        manifest = {"libraries": {"off": before, "untested": {}}}
        resumed = mock.Mock(manifest=manifest, update=lambda **entries: manifest.update(entries))
        with (
            self.assertLogs(run_directory.logger, "WARNING")
            if before != now
            else self.assertNoLogs(run_directory.logger, "WARNING")
        ):
            run_directory.note_libraries(resumed, run_directory.Libraries(frozenset(now)))
        self.assertEqual(manifest["libraries"], {"off": now, "untested": {}})


class GpusTest(parameterized.TestCase):
    @parameterized.parameters((0, None, 0, 0), (1, None, 1, 0), (4, None, 1, 1), (4, "auto", 1, 0))
    def test_a_process_uses_one_gpu_and_says_so_where_it_sees_several(self, count, device_map, used, num_lines):
        arguments = SuiteTrainingArguments(output_dir=tempfile.mkdtemp(), use_cpu=True)
        arguments._n_gpu = count  # what transformers has counted
        lines = []
        with (
            mock.patch.object(process_setup, "start_logging"),
            mock.patch.object(process_setup.logger, "warning", lambda *words: lines.append(words)),
        ):
            process_setup.prepare_process(arguments, device_map)
        self.assertEqual(arguments.n_gpu, used)
        self.assertEqual(arguments.train_batch_size, arguments.per_device_train_batch_size)
        self.assertLen(lines, num_lines)
        for line in lines:
            self.assertEqual(line[1], count)

    @parameterized.parameters(
        ({}, 1, 0),
        ({"LOCAL_RANK": "3"}, 4, 3),
        ({"LOCAL_RANK": "3", "SLURM_LOCALID": "3"}, 4, 3),
        ({"LOCAL_RANK": "3", "SLURM_LOCALID": "3"}, 1, 0),  # srun --gpus-per-task 1
        ({"LOCAL_RANK": "0", "SLURM_LOCALID": "0"}, 1, 0),
        ({"LOCAL_RANK": "1", "SLURM_LOCALID": "0"}, 1, None),  # torchrun in a task of srun
        ({"LOCAL_RANK": "4"}, 4, None),
        ({"LOCAL_RANK": "5", "SLURM_LOCALID": "5"}, 4, None),  # eight tasks that all see four GPUs
        ({"LOCAL_RANK": "5", "SLURM_LOCALID": "5", "SLURM_TRES_PER_TASK": "cpu=4"}, 4, None),
        ({"LOCAL_RANK": "5", "SLURM_LOCALID": "5", "SLURM_TRES_PER_TASK": "cpu=4,gres/gpu=2"}, 2, 1),
        ({"LOCAL_RANK": "5", "SLURM_LOCALID": "5", "SLURM_GPUS_PER_TASK": "2"}, 2, 1),
        ({"LOCAL_RANK": "5", "SLURM_LOCALID": "5", "SLURM_GPU_BIND": "per_task:2"}, 2, 1),
        ({"LOCAL_RANK": "4", "SLURM_LOCALID": "4", "SLURM_GPU_BIND": "none"}, 4, None),
        ({"LOCAL_RANK": "4", "SLURM_LOCALID": "4", "SLURM_GPU_BIND": "verbose,none"}, 4, None),
        ({"LOCAL_RANK": "5", "SLURM_LOCALID": "5", "SLURM_TRES_BIND": "gres/gpu:per_task:2"}, 2, 1),
        ({"LOCAL_RANK": "4", "SLURM_LOCALID": "4", "SLURM_TRES_BIND": "gres/gpu:none"}, 4, None),
    )
    def test_a_process_takes_the_gpu_of_its_local_rank_among_those_that_it_sees(self, variables, count, expected):
        arguments = SuiteTrainingArguments(output_dir=tempfile.mkdtemp(), use_cpu=True)
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("LOCAL_RANK", "SLURM_"))
        }
        self.enter_context(mock.patch.dict(os.environ, environment | variables, clear=True))
        self.enter_context(mock.patch("torch.cuda.device_count", lambda: count))
        if expected is not None:
            self.assertEqual(process_setup.gpu_of_rank(), expected)
            return
        self.enter_context(mock.patch.object(SuiteTrainingArguments, "device", torch.device("cuda")))
        self.enter_context(mock.patch.object(process_setup, "start_logging"))
        with exits_with(78, f"local rank {variables['LOCAL_RANK']}, but there are {count} GPUs; start fewer processes"):
            process_setup.prepare_process(arguments)


def emulates_bfloat16(including_emulation: bool = True) -> bool:
    """`torch.cuda.is_bf16_supported` of a GPU before Ampere."""
    return including_emulation


def has_bfloat16(including_emulation: bool = True) -> bool:
    """The same of a newer one."""
    return True


class BfloatTest(parameterized.TestCase):
    """A GPU before Ampere has no bfloat16: torch emulates it, and calls it supported."""

    @parameterized.parameters(
        (
            emulates_bfloat16,
            True,
            ["WARNING:t5suite.training.run:--bf16 is emulated on Tesla T4, and slower than float32"],
        ),
        (emulates_bfloat16, False, []),
        (has_bfloat16, True, []),
    )
    def test_a_run_says_so(self, is_bf16_supported, bf16, expected):
        args = SimpleNamespace(bf16=bf16, fp16=False, device=torch.device("cuda"))
        model_args = SimpleNamespace(device_map=None, embedding_on_cpu=False)
        with (
            mock.patch("torch.cuda.is_bf16_supported", is_bf16_supported),
            mock.patch("torch.cuda.get_device_name", lambda device: "Tesla T4"),
            self.assertLogs("t5suite", "INFO") as logs,
        ):
            model_setup.place_by_flags(tiny_model(), model_args, args, trains=True)
        warnings = [line for line in logs.output if line.startswith("WARNING")]
        for line, beginning in zip(warnings, expected, strict=True):
            self.assertStartsWith(line, beginning)

    @parameterized.parameters((emulates_bfloat16, torch.float32), (has_bfloat16, torch.bfloat16))
    def test_matrices_of_4_bits_are_on_the_process_s_gpu_and_multiplied_in_what_it_has(self, is_bf16_supported, dtype):
        with (
            mock.patch("accelerate.PartialState", lambda: SimpleNamespace(device=torch.device("cuda"))),
            mock.patch("torch.cuda.current_device", lambda: 3),
            mock.patch("torch.cuda.is_bf16_supported", is_bf16_supported),
            mock.patch("transformers.BitsAndBytesConfig") as config,
        ):
            options = quantization_options("4bit", "t5-base", scratch=False)
        self.assertEqual(config.call_args.kwargs["bnb_4bit_compute_dtype"], dtype)
        self.assertEqual(options["device_map"], {"": 3})


class QuantizedTest(absltest.TestCase):
    def test_weights_in_few_bits_are_where_the_arguments_put_the_run(self):
        """On a machine with a GPU, too."""
        SuiteTrainingArguments(output_dir=tempfile.mkdtemp(), use_cpu=True)
        with (
            mock.patch("torch.cuda.is_available", lambda: True),
            mock.patch("torch.cuda.current_device", lambda: 0),
            mock.patch("transformers.BitsAndBytesConfig"),
        ):
            options = quantization_options("8bit", "t5-base", scratch=False)
        self.assertEqual(options["device_map"], {"": "cpu"})


class IdleFlagsTest(parameterized.TestCase):
    """Flags of Hugging Face that do nothing here, or in this run."""

    @parameterized.parameters(
        ("", None),
        ("--save_steps 200 --save_strategy steps --load_best_model_at_end False", None),
        ("--save_steps 200 --save_strategy steps --eval_strategy steps --eval_steps 200", None),
        (
            "--save_steps 200 --save_strategy steps",
            "--save_strategy steps --save_steps 200 has no effect: .* by --eval_strategy epoch; "
            "give --eval_strategy steps --eval_steps 200, or --load_best_model_at_end False",
        ),
        (
            "--save_steps 1000 --save_strategy steps --eval_strategy steps --eval_steps 500",
            "^--save_steps 1000 has no effect: .* by --eval_strategy steps --eval_steps 500; give --eval_strategy steps "
            "--eval_steps 1000, or",
        ),
        (
            "--save_strategy epoch --eval_strategy steps --eval_steps 500",
            "^--save_strategy epoch has no effect: .* by --eval_strategy steps --eval_steps 500; "
            "give --eval_strategy epoch, or",
        ),
        (
            "--save_steps 200",
            "^--save_steps 200 has no effect: .* by --eval_strategy epoch; give --eval_strategy steps --eval_steps 200, or "
            "--load_best_model_at_end False --save_strategy steps$",
        ),
        (
            "--save_steps 200 --load_best_model_at_end False",
            "--save_steps 200 has no effect: it belongs to --save_strategy steps, and this is epoch",
        ),
        (
            "--save_steps 200 --save_strategy best",
            "^--save_steps 200 has no effect: it belongs to --save_strategy steps, and this is best",
        ),
        (
            "--save_strategy no --load_best_model_at_end True --metric_for_best_model accuracy",
            "^--load_best_model_at_end has no effect: --save_strategy no writes no checkpoint",
        ),
        (
            "--eval_strategy no --load_best_model_at_end",
            "^--load_best_model_at_end has no effect: --eval_strategy no evaluates nothing",
        ),
        ("--save_strategy no", None),
        ("--save_strategy no --load_best_model_at_end False", None),
        ("--eval_strategy steps --eval_steps 833 --max_steps 13333 --keep_every 3332", None),
        ("--eval_strategy steps --eval_steps 0.1 --max_steps 13333 --keep_every 1334", None),
        ("--eval_strategy steps --eval_steps 20 --max_steps 60 --keep_every 30", None),
        ("--eval_strategy steps --eval_steps 300 --max_steps 1000 --keep_every 1000", None),  # the last update's
        ("--eval_strategy steps --eval_steps 300 --max_steps 1000 --keep_every 250", None),
        (
            "--eval_strategy steps --eval_steps 833 --max_steps 13333 --keep_every 3333",
            "^--keep_every 3333 has no effect: checkpoints are written every 833 updates and at the end, and none of these "
            "is a multiple of 3333 in 13333 updates; give a multiple of 833, such as 3332$",
        ),
        (
            "--eval_strategy steps --eval_steps 0.1 --max_steps 13333 --keep_every 1333",
            "^--keep_every 1333 has no effect: checkpoints are written every 1334 updates .* such as 1334$",
        ),
        (
            "--eval_strategy steps --eval_steps 500 --max_steps 3200 --keep_every 5000",
            "^--keep_every 5000 has no effect: .* in 3200 updates; give a multiple of 500, such as 3000$",
        ),
        (
            "--eval_strategy steps --eval_steps 5000 --max_steps 3000 --keep_every 700",
            "^--keep_every 700 has no effect: .* every 5000 updates .* in 3000 updates$",
        ),
    )
    def test_flags_of_saving_that_give_way_are_named_with_what_would_be_right(self, words, warning):
        args = parse_arguments(FINE_TUNING_ARGUMENTS, ["--use_cpu", *words.split()])[-1]
        if warning is None:
            with self.assertNoLogs("t5suite", "WARNING"):
                warn_of_idle_saving_flags(args)
            return
        with self.assertLogs("t5suite", "WARNING") as logs:
            warn_of_idle_saving_flags(args)
        self.assertRegex(logs.records[0].getMessage(), warning)

    @parameterized.parameters(
        ("", ("epoch", 500)),
        ("--save_strategy steps --save_steps 1000", ("steps", 1000)),
        ("--save_strategy steps --save_steps 0.25", ("steps", 0.25)),
        ("--save_strategy no", ("no", 500)),
    )
    def test_without_evaluation_checkpoints_are_written_as_the_flags_of_saving_say(self, words, expected):
        words = ["--use_cpu", "--no_eval", *words.split()]
        arguments = FineTuningArguments(*parse_arguments(FINE_TUNING_ARGUMENTS, words))
        settle_no_eval(arguments)
        args = arguments.training
        self.assertEqual((args.save_strategy.value, args.save_steps, args.load_best_model_at_end), (*expected, False))
        self.assertEqual(isinstance(args.save_steps, int), expected[1] >= 1)
        with self.assertNoLogs("t5suite", "WARNING"):
            warn_of_idle_saving_flags(args)

    @parameterized.parameters(
        ("--no_eval --save_strategy steps --save_steps 2.5", "--save_steps 2.5: give a whole number"),
        (
            "--eval_strategy no --save_strategy best",
            "--save_strategy best .* --eval_strategy no makes none; choose epoch",
        ),
    )
    def test_checkpoints_that_would_not_be_written_as_asked_are_refused(self, words, message):
        with exits_with(78, message):
            arguments = parse_arguments(FINE_TUNING_ARGUMENTS, ["--use_cpu", *words.split()])
            settle_no_eval(FineTuningArguments(*arguments))

    @parameterized.parameters("", "--eval_strategy no")
    def test_flags_of_parts_that_the_suite_has_its_own_for_are_named(self, others):
        idle = (
            "--dataloader_drop_last True --dataloader_num_workers 1 --dataloader_prefetch_factor 3 "
            "--dataloader_multiprocessing_context spawn --dataloader_in_order False --length_column_name size "
            "--label_names target --remove_unused_columns False --include_for_metrics loss "
            "--eval_do_concat_batches False --eval_use_gather_object True --do_train False --do_eval False "
            "--enable_jit_checkpoint True --logging_nan_inf_filter True --project p --trackio_bucket_id b "
            "--trackio_static_space_id s --accelerator_config {'even_batches':False} --hub_model_id h --hub_revision r "
            "--hub_strategy end --wandb_project w --experiment_name x --aim_repo a --optim_target_modules all-linear "
        )
        for words, expected in (
            (idle, re.findall("--(?!dataloader_num)([a-z_]+)", idle)),
            ("--do_train --do_eval", []),
            ("--accelerator_config {'gradient_accumulation_kwargs':{'sync_each_batch':True}}", []),
            ("--report_to tensorboard --wandb_project w --experiment_name x --aim_repo a", ["aim_repo"]),
        ):
            arguments = parse_arguments(FINE_TUNING_ARGUMENTS, ["--use_cpu", *words.split(), *others.split()])
            plan = SimpleNamespace(train=[1], sources={})
            idle_flags = warn_of_idle_flags(changed_settings(arguments), plan, trains=True, predicts=False)
            self.assertCountEqual(idle_flags, expected)

    def test_sigterm_is_left_to_the_suite(self):
        handler = signal.getsignal(signal.SIGTERM)
        self.addCleanup(signal.signal, signal.SIGTERM, handler)
        trainer = tiny_trainer(enable_jit_checkpoint=True)
        self.assertIs(signal.getsignal(signal.SIGTERM), handler)
        self.assertFalse(trainer.args.enable_jit_checkpoint)

    @parameterized.parameters(
        ({"config_name": "mini"}, ["INFO:t5suite.training.run:model: random weights (--config_name mini)"]),
        ({"from_scratch": True}, ["INFO:t5suite.training.run:model: random weights (--from_scratch)"]),
        ({"config_name": "mini", "init_checkpoint": "w.bin"}, []),
        ({"model_name_or_path": "google/t5-v1_1-small"}, []),
    )
    def test_random_weights_that_a_flag_asks_for_are_named(self, flags, expected):
        no_flags = {"config_name": None, "from_scratch": False, "init_checkpoint": None}
        with self.assertLogs("t5suite", "INFO") as logs:
            model_setup.logger.info("begun")
            model_setup.note_random_weights(SimpleNamespace(**no_flags | flags))
        self.assertEqual(logs.output[1:], expected)

    @parameterized.parameters("bf16_full_eval", "fp16_full_eval")
    def test_a_model_is_placed_though_an_evaluation_was_asked_for_in_half_precision(self, name):
        """With the flag transformers 5.24 leaves it on the CPU until its own evaluation, which is not ours."""
        trainer = tiny_trainer(**{name: True})
        self.assertTrue(trainer.place_model_on_device)
        self.assertFalse(getattr(trainer.args, name))


class CudnnTest(absltest.TestCase):
    """cuDNN's attention is off wherever a model computes."""

    def setUp(self):
        super().setUp()
        self.addCleanup(torch.backends.cuda.enable_cudnn_sdp, torch.backends.cuda.cudnn_sdp_enabled())
        torch.backends.cuda.enable_cudnn_sdp(True)

    def test_a_script_turns_it_off(self):
        with mock.patch.object(process_setup, "start_logging"):
            process_setup.prepare_process(SuiteTrainingArguments(output_dir=tempfile.mkdtemp(), use_cpu=True))
        self.assertFalse(torch.backends.cuda.cudnn_sdp_enabled())

    def test_predicting_turns_it_off(self):
        run_cli(*predict_words(rows=rows_file(count=1), output=output_path()))
        self.assertFalse(torch.backends.cuda.cudnn_sdp_enabled())

    def test_a_tuner_turns_it_off_while_it_works(self):
        tuner = tiny_tuner()
        in_passes = []
        for module in tuner.model.modules():
            module.register_forward_pre_hook(lambda *_: in_passes.append(torch.backends.cuda.cudnn_sdp_enabled()))
        tuner.predict("A joy.")
        self.assertEqual(set(in_passes), {False})
        self.assertTrue(torch.backends.cuda.cudnn_sdp_enabled())
