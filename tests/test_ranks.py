"""Ranks: one that has died takes the others with it; weights that differ or are no numbers are found before they are saved."""

import atexit
import contextlib
import copy
import io
import math
import random
import signal
from unittest import mock

import lost_rank_runs
import pytest
import torch
import torch.distributed as dist
from absl.testing import parameterized
from ranks_in_threads import on_ranks, outcomes
from support import folder

from t5suite.testing import TINY_T5, exits_with, parse_flags, tiny_model, tiny_trainer

KILLED = -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.ranks
class ThreeRanksTest(parameterized.TestCase):
    @parameterized.product(
        number=(0, 2),
        ends=(
            ("IsKilled", KILLED, 74), ("IsKilledWithAChild", KILLED, 74), ("IsKilledAfterARequest", KILLED, 75),
            ("IsKilledAmongStrangers", KILLED, 74), ("Fails", 1, 74), ("LeavesSetUp", 75, 74), ("IsDoneFirst", 0, 0),
            ("StopsAsAgreed", 75, 75), ("CannotBeReached", 0, 0),
        ),
    )  # fmt: skip
    def test_the_others_end_unless_one_is_done_or_stops_as_agreed(self, number, ends):
        """They end together: a rank that learns from rank 0's end alone would wait for twice the 20 s."""
        way, code_of_one, code_of_others = ends
        outcome = lost_rank_runs.reported(number)[way]
        expected = [code_of_one if rank == number else code_of_others for rank in range(3)]
        self.assertEqual(outcome["codes"], expected, way)
        self.assertLess(outcome["seconds"], 36)


def flip_bit(place: int, bit: int):
    """Flips a bit of a parameter; again, and it is as it was."""

    def change(parameter):
        bits = parameter.detach().view(-1).view(torch.uint8)
        bits[place % len(bits)] ^= 1 << bit

    return change


def swap(first: int, second: int):
    """Swaps two values of a parameter; again, and they are where they were."""

    def change(parameter):
        values = parameter.detach().view(-1)
        values[[first, second]] = values[[second, first]]

    return change


def said_by_ranks(world_size: int, model, changes) -> list[list[str]]:
    """For each change what each rank says of it, when it logs a loss; "" if it says nothing.

    Args:
      changes: `(rank, name of a parameter, function of it)`: what becomes of the parameter on that rank alone; called
        again, it undoes it.
    """

    def live() -> list[str]:
        trainer = tiny_trainer(model=copy.deepcopy(model))
        parameters = dict(trainer.model.named_parameters())
        messages = []
        for rank, name, change in changes:
            if dist.get_rank() == rank:
                change(parameters[name])
            messages.append(refusal_of(lambda: trainer.log({"loss": 1.0})))
            if dist.get_rank() == rank:
                change(parameters[name])
        return messages

    with contextlib.redirect_stdout(io.StringIO()):
        by_rank = on_ranks(world_size, live)
    return [list(of_change) for of_change in zip(*by_rank, strict=True)]


def refusal_of(function) -> str:
    """The message of an error of numbers (70) that a call raises; "" if it raises none."""
    try:
        function()
    except ValueError as error:
        if getattr(error, "exit_code", None) != 70:
            raise
        return str(error)
    return ""


class LeavingTest(parameterized.TestCase):
    """Gloo's threads may abort a process whose interpreter is at its end: the group is left before."""

    @parameterized.parameters("fine_tune_t5", "pre_train_t5")
    def test_a_process_that_ends_leaves_its_group(self, script):
        at_exit = []

        def register(function, *arguments, **more_arguments):
            if function.__module__.startswith("t5suite."):
                at_exit.append(function)

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            with mock.patch.object(atexit, "register", register):
                parse_flags(script, ["--use_cpu", "True"])
            for leave in at_exit:
                leave()
            self.assertFalse(dist.is_initialized())
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


EMBEDDING = "shared.weight"


class AgreementTest(parameterized.TestCase):
    def test_ranks_with_the_same_weights_say_nothing(self):
        nothing = (0, EMBEDDING, lambda parameter: None)
        self.assertEqual(said_by_ranks(2, tiny_model(), [nothing]), [["", ""]])

    @parameterized.parameters(torch.float32, torch.bfloat16)
    @pytest.mark.slow
    def test_any_flipped_bit_is_found_and_named_on_both_ranks(self, dtype):
        rng, model = random.Random(0), tiny_model().to(dtype)
        names = [name for name, _ in model.named_parameters()]
        changes = [(1, rng.choice(names), flip_bit(rng.randrange(1 << 20), rng.randrange(8))) for _ in range(12)]
        for (_, name, _), messages in zip(changes, said_by_ranks(2, model, changes), strict=True):
            for message in messages:
                self.assertIn(f"weights of ranks 0 and 1 differ, and no value has a majority ({name})", message)

    def test_swapped_values_are_found_however_far_apart(self):
        """Also where a long tensor is read in pieces."""
        model = tiny_model(config_overrides=f"{TINY_T5},d_model=256")
        changes = [(1, EMBEDDING, swap(3, 3 + distance)) for distance in (1, 14, 1 << 8, 1 << 16, 1 << 17)]
        for messages in said_by_ranks(2, model, changes):
            self.assertIn(f"({EMBEDDING})", messages[0])

    def test_swapped_tensors_are_found(self):
        model = tiny_model()
        other = dict(model.named_parameters())["encoder.block.0.layer.0.SelfAttention.k.weight"]
        name = "encoder.block.0.layer.0.SelfAttention.q.weight"
        before = dict(model.named_parameters())[name].detach().clone()

        def live():
            trainer = tiny_trainer(model=copy.deepcopy(model))
            if dist.get_rank() == 1:
                parameters = dict(trainer.model.named_parameters())
                parameters[name].data.copy_(other)
                parameters["encoder.block.0.layer.0.SelfAttention.k.weight"].data.copy_(before)
            return refusal_of(lambda: trainer.log({"loss": 1.0}))

        for message in on_ranks(2, live):
            self.assertIn(name, message)

    def test_the_rank_that_differs_is_named_with_its_weights(self):
        name = "decoder.final_layer_norm.weight"
        [messages] = said_by_ranks(3, tiny_model(), [(2, name, flip_bit(5, 1))])
        for message in messages:
            self.assertIn(f"the weights of rank 2 differ from those of ranks 0 and 1 ({name})", message)


class CheckWeightsTest(parameterized.TestCase):
    NAME = "encoder.block.0.layer.1.DenseReluDense.wo.weight"

    def spoil(self, model, value) -> int:
        """Puts a value into a weight; returns how many numbers the weight has."""
        weight = dict(model.named_parameters())[self.NAME]
        with torch.no_grad():
            weight[1, 2] = value
        return weight.numel()

    @parameterized.parameters(math.nan, math.inf, -math.inf)
    def test_a_weight_that_is_not_finite_is_named_and_not_saved(self, value):
        directory, trainer = folder(), tiny_trainer()
        trainer.save_model(str(directory / "whole"))
        size = self.spoil(trainer.model, value)
        names = rf"step 0: weights are NaN or infinite: {self.NAME} \(1 of {size}\); they are not"
        with exits_with(70, names):
            trainer.save_model(str(directory / "spoiled"))
        self.assertTrue((directory / "whole" / "model.safetensors").exists())
        self.assertFalse((directory / "spoiled").exists())

    def test_all_ranks_learn_what_one_found(self):
        directory, model = folder(), tiny_model()

        def save():
            trainer = tiny_trainer(model=copy.deepcopy(model))
            if dist.get_rank() == 1:
                self.spoil(trainer.model, math.nan)
            trainer.save_model(str(directory / "model"))

        for error in outcomes(2, save):
            self.assertEqual(error.exit_code, 70)
            self.assertIn(f"on rank 1: {self.NAME}", str(error))
        self.assertFalse((directory / "model").exists())
