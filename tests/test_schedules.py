"""Schedules: exact values from warm-up to end, against torch and transformers, through the trainer and after a resume."""

import contextlib
import functools
import io
import logging
import math
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import pytest
import torch
from absl.testing import parameterized
from documented import SCRIPTS, choices_of
from transformers import get_scheduler

import fine_tune_t5
from t5suite.testing import exits_with, parse_flags, read_rows, tiny_model, tiny_rows, tiny_trainer

STEPS, WARMUP = 1000, 100
# Those of Hugging Face's names whose defaults must give their values.
SHARED = ("constant", "constant_with_warmup", "cosine", "cosine_with_restarts", "inverse_sqrt", "linear", "polynomial")
END_VALUES = {
    "constant": 1.0, "constant_with_warmup": 1.0, "cosine": 0.0, "cosine_with_restarts": 0.0,
    "inverse_sqrt": math.sqrt(WARMUP / STEPS), "inverse_sqrt_t5": 0.01, "linear": 0.0, "plateau": 1.0,
    "polynomial": 0.0, "relative_step": 0.01, "warmup_stable_decay": 0.0,
}  # fmt: skip
BY_EVALUATIONS = ("--eval_strategy", "steps", "--eval_steps", "5")
# Those without a warm-up, and those that end at a floor.
WITHOUT_WARMUP = ("constant", "inverse_sqrt_t5", "relative_step")
WITH_FLOOR = ("cosine", "cosine_with_restarts", "linear", "polynomial", "warmup_stable_decay")


def optimizer(rate=1.0):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)


def rates(scheduler, count):
    """The rate of every update, as the trainer steps it: the update first, then the schedule."""
    values = []
    for _ in range(count):
        values.append(scheduler.get_last_lr()[0])
        scheduler.optimizer.step()
        scheduler.step()
    return values


# A schedule looks at neither.
some_model = functools.cache(tiny_model)
some_rows = functools.cache(lambda: tiny_rows("entailment", count=1))


@functools.cache
def trainer_of(name, settings: tuple):
    """A trainer of `--schedule name` that trains nothing; its rate and warm-up are set anew for each scheduler."""
    parts = {"rows": some_rows(), "model": some_model()}
    kwargs = dict(settings) or None
    if name == "plateau":  # its flag asks for evaluations, and this trainer has none
        trainer = tiny_trainer(**parts)
        trainer.args.schedule, trainer.args.lr_scheduler_kwargs = name, kwargs
        return trainer
    return tiny_trainer(**parts, schedule=name, lr_scheduler_kwargs=kwargs)


def make_scheduler(optimizer, name, num_training_steps, num_warmup_steps=0, settings=None):
    """The scheduler that a trainer makes for `--schedule name`."""
    trainer = trainer_of(name, tuple((settings or {}).items()))
    trainer.args.learning_rate = optimizer.param_groups[0]["lr"]
    trainer.args.warmup_steps = num_warmup_steps
    trainer.lr_scheduler = None
    return trainer.create_scheduler(num_training_steps, optimizer)


def make_multiplier(name, num_training_steps, num_warmup_steps=0, settings=None):
    """step -> the factor of the learning rate."""
    return make_scheduler(optimizer(), name, num_training_steps, num_warmup_steps, settings).lr_lambdas[0]


def flags_of(*words) -> dict:
    words = [] if "--eval_strategy" in words else ["--eval_strategy", "no"], words
    return parse_flags("fine_tune_t5", ["--use_cpu", *words[0], *words[1]])


class EveryScheduleTest(parameterized.TestCase):
    def test_every_schedule_has_an_end_value_here(self):
        names_of_hugging_face = {"cosine_with_min_lr", "cosine_warmup_with_min_lr", "greedy", "reduce_lr_on_plateau"}
        names = set(choices_of(SCRIPTS["fine_tune_t5"]["schedule"]))
        self.assertEqual(names - names_of_hugging_face, END_VALUES.keys())

    @parameterized.parameters(*END_VALUES)
    def test_values_are_finite_from_the_top_to_the_end_value_and_beyond_and_one_step_is_a_run_too(self, name):
        multiplier = make_multiplier(name, STEPS, WARMUP)
        self.assertEmpty([step for step in range(2 * STEPS) if not 0.0 <= multiplier(step) <= 1.0])
        self.assertAlmostEqual(multiplier(STEPS), END_VALUES[name], places=12)
        top = 0.01 if name in ("inverse_sqrt_t5", "relative_step") else 1.0
        self.assertEqual(make_multiplier(name, STEPS, 0)(0), top)
        self.assertTrue(all(0 <= make_multiplier(name, 1, 1)(step) <= 1 for step in (0, 1, 2)))

    @parameterized.parameters(*(name for name in END_VALUES if name not in WITHOUT_WARMUP))
    @pytest.mark.quick_cases(1)
    def test_the_warm_up_rises_in_equal_steps_to_one(self, name):
        for start in (0.0, 0.5):
            multiplier = make_multiplier(name, STEPS, WARMUP, {"warmup_start": start})
            self.assertEqual((multiplier(0), multiplier(WARMUP)), (start, 1.0))
            self.assertAlmostEqual(multiplier(WARMUP // 4), start + (1 - start) / 4, places=12)
            values = [multiplier(step) for step in range(WARMUP + 1)]
            self.assertEqual(values, sorted(values))

    @parameterized.parameters(*WITH_FLOOR)
    def test_the_floor_is_where_it_ends(self, name):
        trainer = tiny_trainer(
            some_rows(), model=some_model(), schedule=name, lr_scheduler_kwargs="min_lr=2e-3", learning_rate=1e-2,
            warmup_steps=WARMUP,
        )  # fmt: skip
        scheduler = trainer.create_scheduler(STEPS, optimizer(1e-2))
        values = rates(scheduler, STEPS + 50)[WARMUP:]
        self.assertAlmostEqual(values[-1], 2e-3, places=14)
        self.assertAlmostEqual(min(values), 2e-3, places=14)

    @parameterized.parameters(*END_VALUES)
    def test_a_resumed_scheduler_goes_on_to_the_bit(self, name):
        whole = rates(make_scheduler(optimizer(0.3), name, STEPS, WARMUP), 200)
        first = make_scheduler(optimizer(0.3), name, STEPS, WARMUP)
        begun = rates(first, 130)
        file = io.BytesIO()
        torch.save([first.state_dict(), first.optimizer.state_dict()], file)
        file.seek(0)
        state, optimizer_state = torch.load(file, weights_only=True)
        second = make_scheduler(optimizer(0.3), name, STEPS, WARMUP)
        second.optimizer.load_state_dict(optimizer_state)
        second.load_state_dict(state)
        self.assertEqual(begun + rates(second, 70), whole)


class ExactValuesTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("linear", "linear", {}, {0: 0, 50: 0.5, 100: 1, 550: 0.5, 1000: 0}),
        ("polynomial", "polynomial", {"power": 2.0}, {50: 0.5, 100: 1, 550: 0.25, 1000: 0}),
        ("cosine", "cosine", {"min_lr_rate": 0.1}, {0: 0, 100: 1, 550: 0.55, 1000: 0.1, 1500: 0.1}),
        ("nano_t5", "cosine", {"warmup_start": 0.5, "min_lr_rate": 5e-4}, {0: 0.5, 50: 0.75, 550: 0.50025, 1000: 5e-4}),
        ("restarts", "cosine_with_restarts", {"num_cycles": 3}, {100: 1, 250: 0.5, 400: 1, 700: 1, 850: 0.5, 1000: 0}),
        ("inverse_sqrt", "inverse_sqrt", {}, {50: 0.5, 100: 1, 400: 0.5, 900: 1 / 3}),
        ("timescale", "inverse_sqrt", {"timescale": 300}, {100: 1, 1000: 0.5}),
        ("tail", "inverse_sqrt", {"decay_share": 0.1}, {400: 0.5, 900: 1 / 3, 950: 1 / 6, 1000: 0}),
        ("t5", "inverse_sqrt_t5", {"timescale": 400}, {0: 0.05, 400: 0.05, 900: 1 / 30, 1000: 1000**-0.5}),
        ("stable", "warmup_stable_decay", {"decay_share": 0.2}, {50: 0.5, 100: 1, 800: 1, 900: 0.5, 1000: 0}),
        ("sqrt", "warmup_stable_decay", {"decay_share": 0.4, "decay_type": "1-sqrt"}, {600: 1, 700: 0.5, 1000: 0}),
        ("stable_cosine", "warmup_stable_decay", {"decay_type": "cosine"}, {900: 1, 950: 0.5, 1000: 0}),
        ("constant", "constant", {}, {0: 1, 1000: 1}),
        ("constant_with_warmup", "constant_with_warmup", {}, {25: 0.25, 1000: 1}),
        ("relative", "relative_step", {"warmup_init": True}, {0: 1e-6, 999: 1e-3}),
    )
    def test_values(self, name, settings, expected):
        multiplier = make_multiplier(name, STEPS, WARMUP, settings)
        for step, value in expected.items():
            self.assertAlmostEqual(multiplier(step), value, places=12, msg=f"step {step}")

    @parameterized.product(name=SHARED, warmup=(0, 30))
    def test_hugging_face_s_name_means_hugging_face_s_values(self, name, warmup):
        theirs = get_scheduler(name, optimizer(0.3), warmup, 200)
        ours = make_scheduler(optimizer(0.3), name, 200, warmup)
        # Their polynomial ends at 1e-7.
        for a, b in zip(rates(ours, 201), rates(theirs, 201), strict=True):
            self.assertAlmostEqual(a, b, delta=1.1e-7 if name == "polynomial" else 1e-15)

    @parameterized.parameters(65536, 1000, 10)
    def test_t5_s_with_a_tail_is_nano_t5_s_legacy(self, total):
        """min(1e-2, 1/sqrt(t)) for ceil(0.9 T) steps, then linearly from there to 0; any base rate serves."""
        first = math.ceil(0.9 * total)
        multiplier = make_multiplier("inverse_sqrt_t5", total, 0, {"decay_share": 0.1})
        for step in {0, 1, first // 2, first - 1, first, (first + total) // 2, total}:
            flat = min(1e-2, min(max(step, 1), first) ** -0.5)
            expected = flat * min(1.0, (total - step) / (total - first))
            self.assertAlmostEqual(multiplier(step), expected, places=12)

    def test_every_group_has_its_own_base_rate(self):
        groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in (1.0, 0.1)]
        scheduler = make_scheduler(torch.optim.SGD(groups), "linear", 10)
        rates(scheduler, 5)
        self.assertEqual(scheduler.get_last_lr(), [0.5, 0.05])


class PlateauTest(parameterized.TestCase):
    def scheduler(self, **settings):
        return make_scheduler(optimizer(), "plateau", STEPS, 4, {"patience": 1, "factor": 0.5, **settings})

    def test_the_rate_falls_after_more_bad_evaluations_than_patience(self):
        scheduler = self.scheduler()
        rates(scheduler, 10)
        after = []
        for value in (-2.0, -1.5, -1.5, -1.6, -1.4, -1.4, -1.39995):
            scheduler.observe(value)
            after.append(scheduler.get_last_lr()[0])
        self.assertEqual(after, [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25])
        self.assertEqual(scheduler.optimizer.param_groups[0]["lr"], 0.25)

    @parameterized.parameters(0, 1, 2)
    def test_the_rate_falls_again_after_as_many_bad_evaluations_and_as_torch_s_does(self, patience):
        scheduler, other = self.scheduler(patience=patience), optimizer()
        torchs = torch.optim.lr_scheduler.ReduceLROnPlateau(other, "max", factor=0.5, patience=patience, threshold=0.0)
        rates(scheduler, 10)
        rate = other.param_groups[0]["lr"]
        for value in (1.0, 2.0, *[0.5] * 9, 3.0, *[0.5] * 4):
            scheduler.observe(value)
            torchs.step(value)
            self.assertAlmostEqual(scheduler.get_last_lr()[0], other.param_groups[0]["lr"] / rate)

    def test_a_slightly_worse_loss_is_no_improvement(self):
        """torch's relative threshold says it is one, for values below 0."""
        scheduler, resumed = self.scheduler(patience=0), self.scheduler(patience=0)
        for value in (-2.0, -2.0001):
            scheduler.observe(value)
        self.assertEqual(scheduler.reduction, 0.5)
        resumed.load_state_dict(scheduler.state_dict())
        resumed.observe(-2.0001)
        self.assertEqual((resumed.reduction, resumed.best), (0.25, -2.0))

    def test_what_stands_for_nan_counts_only_after_a_number(self):
        scheduler = self.scheduler(patience=0)
        for value, reduction in ((-math.inf, 1.0), (-math.inf, 1.0), (-2.0, 1.0), (-math.inf, 0.5), (-1.0, 0.5)):
            scheduler.observe(value)
            self.assertEqual(scheduler.reduction, reduction)

    def test_an_evaluation_before_the_first_step_is_not_compared_with_later_ones(self):
        scheduler = self.scheduler(patience=0)
        trainer = trainer_of("plateau", (("patience", 0), ("factor", 0.5)))
        handler = trainer.callback_handler
        handler.lr_scheduler = scheduler
        for step, value, reduction in ((0, 9.0, 1.0), (1, 2.0, 1.0), (2, 1.0, 0.5)):
            with mock.patch.object(trainer.state, "global_step", step):
                handler.on_evaluate(trainer.args, trainer.state, trainer.control, {"eval_selection": value})
            self.assertEqual(scheduler.reduction, reduction)

    def test_the_values_of_other_data_are_not_compared_with_those_before(self):
        scheduler = self.scheduler(patience=0)
        for value, reduction in ((9.0, 1.0), (8.0, 0.5)):
            scheduler.observe(value)
            self.assertEqual(scheduler.reduction, reduction)
        scheduler.forget_best()
        for value, reduction in ((1.0, 0.5), (2.0, 0.5), (1.0, 0.25)):
            scheduler.observe(value)
            self.assertEqual(scheduler.reduction, reduction)

    @parameterized.parameters(("reduce_lr_on_plateau", 0.5), ("greedy", 1.0))
    def test_hugging_face_s_watchers_do_not_compare_them_either(self, name, rate):
        """8 after 9 lowers the rate, 1 on other data does not; greedy raises it by the first value."""
        settings = {"mode": "max", "threshold_mode": "abs", "patience": 0, "factor": 0.5, "min_lr": 0.0}
        scheduler = get_scheduler(name, optimizer(), scheduler_specific_kwargs=settings)
        trainer = trainer_of("plateau", (("patience", 0), ("factor", 0.5)))
        for value in (9.0, 8.0):
            scheduler.step(value)
        self.assertEqual(scheduler.get_last_lr(), [0.5])
        with mock.patch.object(trainer, "lr_scheduler", scheduler):
            trainer._drop_best(None)
        scheduler.step(1.0)
        self.assertEqual(scheduler.get_last_lr(), [rate])

    def test_it_warms_up_and_stops_at_its_floor(self):
        scheduler = self.scheduler(patience=0, min_lr_rate=0.2)
        self.assertEqual(rates(scheduler, 6), [0.0, 0.25, 0.5, 0.75, 1.0, 1.0])
        for _ in range(5):
            scheduler.observe(-1.0)
        self.assertEqual(scheduler.get_last_lr(), [0.2])


class SettingsTest(parameterized.TestCase):
    @parameterized.parameters(
        (["--schedule", "cosin"], "--schedule: unknown schedule 'cosin'; did you mean cosine"),
        (["--schedule", "linear", "--lr_scheduler_kwargs", "power=2"], "linear has no setting 'power'"),
        (["--schedule", "cosine", "--lr_scheduler_kwargs", "min_lr=1"], "min_lr=1: must lie between 0 and --learning_rate"),
        (["--schedule", "cosine", "--lr_scheduler_kwargs", "min_lr=0,min_lr_rate=0"], "not both"),
        (["--schedule", "cosine", "--lr_scheduler_kwargs", "warmup_start=2"], "warmup_start=2.0: must lie between"),
        (["--schedule", "warmup_stable_decay", "--lr_scheduler_kwargs", "decay_type=lin"], "did you mean linear"),
        (["--schedule", "constant", "--lr_scheduler_kwargs", "a=1"], "has no setting 'a'; it has none"),
        (["--schedule", "plateau"], "follows the evaluations, and --eval_strategy no makes none"),
        (["--schedule", "cosine_with_min_lr"], "cosine_with_min_lr without --lr_scheduler_kwargs: One of min_lr or min_lr_rate"),
    )  # fmt: skip
    def test_bad_settings_are_named(self, argv, message):
        with exits_with(78, message):
            flags_of(*argv)

    @parameterized.parameters(
        ("linear", "min_lrr=1e-5", "linear .* has no setting 'min_lrr'; it has none"),
        ("cosine_with_min_lr", "min_lrr=1e-5", "has no setting 'min_lrr'; did you mean min_lr"),
        ("cosine_with_min_lr", "min_lr=low", "min_lr=low: expected float"),
        ("warmup_stable_decay", "num_stable_steps=3", "warmup_stable_decay with .*'num_stable_steps': 3.*: .*num_decay_steps"),
        ("reduce_lr_on_plateau", "factor=2", "reduce_lr_on_plateau with .*: Factor should be < 1.0"),
        ("reduce_lr_on_plateau", "mode=min,factor=0.5", "mode=min: the score that reduce_lr_on_plateau .*; leave mode out"),
        ("greedy", "mode=min", "mode=min: the score that greedy .*; leave mode out"),
        ("greedy", "patienec=3", "greedy with .*unexpected keyword argument 'patienec'"),
    )  # fmt: skip
    def test_settings_that_hugging_face_s_schedule_does_not_take_or_lacks_are_named(self, kind, settings, message):
        with exits_with(78, message):
            flags_of("--lr_scheduler_type", kind, "--lr_scheduler_kwargs", settings, *BY_EVALUATIONS)

    @parameterized.parameters(
        ("warmup_stable_decay", "num_decay_steps=3", {"num_decay_steps": 3}),
        ("greedy", "mode=max", {"mode": "max", "threshold_mode": "abs"}),
        ("reduce_lr_on_plateau", "min_lr=[1e-5,1e-6]", {"mode": "max", "threshold_mode": "abs", "min_lr": [1e-5, 1e-6]}),
    )  # fmt: skip
    def test_those_of_which_it_is_made_are_taken(self, kind, settings, expected):
        flags = flags_of("--lr_scheduler_type", kind, "--lr_scheduler_kwargs", settings, *BY_EVALUATIONS)
        self.assertEqual(flags["lr_scheduler_kwargs"], expected)

    def test_a_setting_may_be_at_the_ends_of_its_range_and_not_beyond_them(self):
        """A share lies between 0 and 1, a count is a whole number of at least 1 (of patience: 0), a power no less than 0."""
        cases = {
            "cosine": ("min_lr_rate=0", "min_lr_rate=1", "min_lr=0.5", "warmup_start=0", "warmup_start=1"),
            "warmup_stable_decay": ("decay_share=0", "decay_share=1", "decay_type=1-sqrt"),
            "polynomial": ("power=0", "power=7.5"),
            "cosine_with_restarts": ("num_cycles=1", "num_cycles=3.0"),
            "inverse_sqrt": ("timescale=1", "timescale=none"),
            "plateau": ("factor=0", "factor=1", "patience=0", "threshold=0"),
        }
        beyond = {
            "cosine": ("min_lr_rate=-0.01", "min_lr_rate=1.01", "min_lr=0.51", "min_lr=-1e-9", "warmup_start=-0.01", "min_lr_rate=true"),
            "warmup_stable_decay": ("decay_share=-0.01", "decay_share=1.01", "decay_type=1"),
            "polynomial": ("power=-0.01", "power=nan"),
            "cosine_with_restarts": ("num_cycles=0", "num_cycles=2.5", "num_cycles=1e999", "num_cycles=true"),
            "inverse_sqrt": ("timescale=0", "timescale=-5", "timescale=soon"),
            "plateau": ("factor=-0.01", "factor=1.01", "patience=-1", "threshold=-1e-9", "factor=none"),
        }  # fmt: skip
        trainer = trainer_of("plateau", ())
        for table, is_refused in ((cases, False), (beyond, True)):
            for name, text in [(name, text) for name, texts in table.items() for text in texts]:
                flags = {"schedule": name, "lr_scheduler_kwargs": text, "learning_rate": 0.5, "warmup_steps": 0}
                refusal = exits_with(78, f"--lr_scheduler_kwargs.*{text.partition('=')[0]}")
                trainer.lr_scheduler = None
                outcome = refusal if is_refused else contextlib.nullcontext()
                with self.subTest(text), mock.patch.multiple(trainer.args, **flags), outcome:
                    trainer.create_scheduler(8, optimizer(0.5))

    def test_flags_that_do_not_go_with_a_schedule_are_named(self):
        trainer = tiny_trainer(
            some_rows(), model=some_model(), schedule="inverse_sqrt_t5", lr_scheduler_type="constant"
        )
        for rate, warns in ((0.5, True), (1.0, False)):
            trainer.args.learning_rate, trainer.lr_scheduler = rate, None
            with self.assertLogs("t5suite", "WARNING") as logs:
                trainer.create_scheduler(8, optimizer())
            self.assertIn("--lr_scheduler_type has no effect with --schedule inverse_sqrt_t5", logs.output[0])
            self.assertEqual("sets absolute learning rates" in "".join(logs.output), warns)

    @parameterized.parameters(
        ({"warmup_steps": 100}, True), ({"warmup_steps": 100, "schedule": "cosine"}, True), ({}, False),
        ({"warmup_steps": 7}, False), ({"warmup_steps": 100, "schedule": "polynomial"}, True),
        ({"warmup_steps": 100, "schedule": "constant"}, False),
        ({"warmup_steps": 100, "lr_scheduler_type": "constant"}, False),
    )  # fmt: skip
    def test_a_run_that_ends_in_its_warm_up_says_so(self, flags, warns):
        trainer = tiny_trainer(some_rows(), model=some_model(), **flags)
        with self.assertLogs("t5suite") as logs:
            logging.getLogger("t5suite").info("there is something")
            trainer.create_scheduler(8, optimizer())
        self.assertEqual("of 8 updates: the run ends before" in "".join(logs.output), warns)

    @parameterized.parameters("constant", "reduce_lr_on_plateau", "greedy")
    def test_a_warm_up_that_hugging_face_s_schedule_does_not_have_is_named(self, kind):
        trainer = trainer_of("constant", ())
        trainer.lr_scheduler = None
        flags = {"schedule": None, "lr_scheduler_type": kind, "warmup_steps": 100}
        with mock.patch.multiple(trainer.args, **flags), self.assertLogs("t5suite", "WARNING") as logs:
            trainer.create_scheduler(8, optimizer())
        warnings = [record.getMessage() for record in logs.records]
        self.assertEqual(warnings, [f"--warmup_steps has no effect: --lr_scheduler_type {kind} does not use it"])

    @parameterized.parameters("reduce_lr_on_plateau", "greedy")
    def test_hugging_face_s_watchers_take_more_for_better(self, name):
        flags = flags_of("--lr_scheduler_type", name, *BY_EVALUATIONS)
        scheduler = get_scheduler(name, optimizer(), scheduler_specific_kwargs=flags["lr_scheduler_kwargs"])
        self.assertEqual((scheduler.mode, scheduler.threshold_mode), ("max", "abs"))


def trained(resume=None, **flags):
    """`(learning rates that were logged, trainer)` of eight updates of a tiny T5."""
    trainer = tiny_trainer(max_steps=8, save_strategy="steps", save_steps=4, learning_rate=0.02, **flags)
    trainer.train(resume_from_checkpoint=resume)
    return [line["learning_rate"] for line in trainer.state.log_history if "loss" in line], trainer


class TrainerTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_update_n_runs_at_the_rate_of_n_minus_1_also_after_a_resume(self):
        flags = {"schedule": "cosine", "warmup_steps": 2, "optimizer": "adamw_rms"}
        logged, trainer = trained(**flags)
        cosine = [0.5 * (1 + math.cos(math.pi * step / 6)) for step in range(6)]
        self.assertSequenceAlmostEqual(logged, [0.02 * value for value in (0.0, 0.5, *cosine)], places=15)
        again, resumed = trained(**flags, resume=str(Path(trainer.args.output_dir) / "checkpoint-4"))
        self.assertEqual(again, logged)
        for a, b in zip(trainer.model.parameters(), resumed.model.parameters(), strict=True):
            self.assertTrue(torch.equal(a, b))

    def test_relative_steps_are_logged_and_heed_no_schedule(self):
        with self.assertLogs("t5suite", "WARNING") as logs:
            logged, _ = trained(optimizer="adafactor", optim_args="relative_step=True,warmup_init=True")
        self.assertEqual(logged, [1e-6 * (step + 1) for step in range(8)])
        self.assertIn("--learning_rate has no effect", "".join(logs.output))

    @pytest.mark.slow
    def test_each_evaluation_that_is_no_better_lowers_the_rate_of_a_plateau(self):
        directory = Path(tempfile.mkdtemp()) / "run"
        fine_tune_t5.main([*plateau_flags(directory), "--max_steps", "4", "--eval_steps", "1", "--save_strategy", "no"])
        self.assertEqual(logged_rates(directory), [1e-3, 1e-3, 5e-4, 2.5e-4])

    def test_bad_evaluations_before_a_run_was_made_longer_count_for_the_patience_of_its_plateau(self):
        directory = Path(tempfile.mkdtemp()) / "run"
        flags = [*plateau_flags(directory, patience=1), "--eval_steps=1", "--save_strategy=steps", "--save_steps=2"]
        fine_tune_t5.main([*flags, "--max_steps", "2"])
        fine_tune_t5.main([*flags, "--max_steps", "4", "--extend"])
        # The evaluation after step 1 is the first, those after steps 2 and 3 are bad.
        self.assertEqual(logged_rates(directory), [1e-3, 1e-3, 1e-3, 5e-4])

    @pytest.mark.slow
    def test_a_plateau_is_seen_by_the_evaluations_of_a_run(self):
        directory = Path(tempfile.mkdtemp()) / "run"
        flags = plateau_flags(directory)
        flags += ["--max_steps", "12", "--eval_steps", "2", "--save_strategy", "steps", "--save_steps", "4"]
        flags += ["--save_total_limit", "9"]
        # The evaluation after step 2 is the first.
        expected = [1e-3 * 0.5 ** max(0, step // 2 - 1) for step in range(12)]
        fine_tune_t5.main(flags)
        self.assertEqual(logged_rates(directory), expected)
        state = torch.load(directory / "checkpoint-8" / "scheduler.pt", weights_only=True)
        self.assertEqual((state["reduction"], state["last_epoch"]), (0.125, 8))
        shutil.rmtree(directory / "checkpoint-12")
        (directory / "results.json").unlink()
        fine_tune_t5.main(flags)
        self.assertEqual(logged_rates(directory), expected)


def plateau_flags(directory, patience=0) -> list[str]:
    """A run in which every evaluation but the first is bad: none is better by 1000 points."""
    tiny = "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2"
    return ["--config_overrides", tiny, "--dataset_name", "sentiment", "--max_train_samples", "64", "--use_cpu",
            "--max_eval_samples", "8", "--eval_method", "score", "--eval_strategy", "steps",
            "--load_best_model_at_end", "False", "--schedule", "plateau", "--lr_scheduler_kwargs",
            f"patience={patience},factor=0.5,threshold=1000", "--learning_rate", "1e-3", "--logging_steps", "1",
            "--disable_tqdm", "True", "--output_dir", str(directory)]  # fmt: skip


def logged_rates(directory):
    name = "train/learning_rate"
    return [line[name] for line in read_rows(directory / "metrics.jsonl") if name in line]
