"""Files of a checkpoint: their bytes, their records, and the states that come back from them bit by bit."""

import errno
import hashlib
import json
import os
import resource
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import safetensors.torch
import torch
from absl.testing import absltest, parameterized
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration, modeling_utils

from t5suite.base.errors import CheckpointError, ConfigError
from t5suite.optim.learning_rates import PlateauLR, make_scheduler
from t5suite.optim.optimizers import OPTIMIZERS, make_optimizer
from t5suite.optim.schedules import SCHEDULES
from t5suite.training.checkpoints import (
    Record,
    load_state,
    random_state,
    recorded_weights,
    restore_optimizer,
    restore_random_state,
    save_state,
    settle,
    write_bytes,
    write_json,
    write_tensors,
)
from t5suite.training.checkpoints.states import decode, encode
from t5suite.training.checkpoints.tensors import DTYPES, MOST_WAITING, PIECE, HashedFile

SHAPES = ((), (0,), (3, 5), (2, 0, 3), (1, 1))


def folder():
    return Path(tempfile.mkdtemp())


def record_of(path):
    content = Path(path).read_bytes()
    return Record(len(content), hashlib.sha256(content).hexdigest())


def same(a, b):
    """Equal in type and in every bit."""
    if torch.is_tensor(a):
        raw = lambda t: t.contiguous().reshape(-1).view(torch.uint8)
        return torch.is_tensor(b) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(raw(a), raw(b))
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return [*a] == [*b] and all(type(k) is type(j) and same(a[k], b[j]) for k, j in zip(a, b, strict=True))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (float, np.generic)):
        return np.asarray(a).tobytes() == np.asarray(b).tobytes()
    return a == b


def tiny_t5(dtype=torch.float32):
    torch.manual_seed(0)
    config = T5Config(vocab_size=64, d_model=16, d_kv=4, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0)
    return T5ForConditionalGeneration(config).to(dtype)


def trained(model, optimizer, steps=3):
    for step in range(steps):
        torch.manual_seed(step)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()


class TensorsTest(parameterized.TestCase):
    @parameterized.named_parameters((str(dtype).removeprefix("torch."), dtype) for dtype in DTYPES)
    def test_file_has_the_bytes_of_safetensors_own(self, dtype):
        tensors = {f"{place} {shape} é\n": torch.randint(0, 2, shape).to(dtype) for place, shape in enumerate(SHAPES)}
        tensors["other"] = torch.ones(2, dtype=torch.int16)
        ours, theirs = folder() / "a.safetensors", folder() / "b.safetensors"
        record = write_tensors(ours, tensors, {"format": "pt"})
        safetensors.torch.save_file(tensors, theirs, metadata={"format": "pt"})
        self.assertEqual(ours.read_bytes(), theirs.read_bytes())
        self.assertEqual(record, record_of(ours))

    @parameterized.parameters(PIECE - 1, PIECE, PIECE + 1, 6 * PIECE + 5)
    def test_record_is_that_of_the_file_at_any_size(self, size):
        path = folder() / "x.safetensors"
        tensor = torch.arange(size, dtype=torch.int64).to(torch.uint8)
        self.assertEqual(write_tensors(path, {"x": tensor, "y": tensor[:3]}), record_of(path))
        self.assertTrue(torch.equal(safetensors.torch.load_file(path)["x"], tensor))

    def test_views_and_shared_tensors_are_written_by_their_indices(self):
        base = torch.arange(24.0).reshape(4, 6)
        tensors = {
            "t": base.t(), "part": base[1:3, ::2], "expanded": base[:1].expand(4, 6), "same": base,
            "conjugate": torch.view_as_complex(base.reshape(12, 2)).conj(), "parameter": nn.Parameter(base),
        }  # fmt: skip
        path = folder() / "x.safetensors"
        write_tensors(path, tensors)
        loaded = safetensors.torch.load_file(path)
        for name, tensor in tensors.items():
            self.assertTrue(same(tensor.detach().resolve_conj(), loaded[name]), name)

    def test_bits_of_numbers_that_are_none_are_kept(self):
        bits = torch.tensor([0x7FC00001, 0x7F800001, -1, -(2**31), 0x7F800000], dtype=torch.int32)
        path = folder() / "x.safetensors"
        write_tensors(path, {"x": bits.view(torch.float32)})
        self.assertTrue(torch.equal(safetensors.torch.load_file(path)["x"].view(torch.int32), bits))

    def test_tensors_that_the_format_lacks_are_refused_by_name(self):
        for tensor in (torch.eye(2).to_sparse(), torch.empty(2, device="meta")):
            with self.assertRaisesRegex(ConfigError, "'layer.weight' cannot be saved"):
                write_tensors(folder() / "x.safetensors", {"layer.weight": tensor})

    def test_a_full_disk_names_file_and_bytes(self):
        path = folder() / "x.safetensors"
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))
        try:
            with self.assertRaises(OSError) as caught:
                write_tensors(path, {"x": torch.zeros(50_000)})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        error = caught.exception
        self.assertEqual((error.errno, error.filename), (errno.EFBIG, str(path)))
        self.assertBetween(error.bytes_wanted, 200_000, 200_100)

    @parameterized.parameters(True, False)
    def test_a_disk_that_fails_at_the_end_names_file_and_bytes(self, wait):
        path = folder() / "x.safetensors"

        def fail(descriptor):
            raise OSError(errno.EIO, "Input/output error")

        with mock.patch("os.fsync", fail), self.assertRaises(OSError) as caught:
            records = {"x": write_tensors(path, {"x": torch.zeros(50_000)}, wait=wait)}
            settle(records)
        self.assertEqual((caught.exception.errno, caught.exception.filename), (errno.EIO, str(path)))
        self.assertBetween(caught.exception.bytes_wanted, 200_000, 200_100)

    def test_files_that_are_written_beside_each_other_are_settled_with_their_own_records(self):
        place, records = folder(), {}
        for number in range(6):
            name = f"{number}.safetensors"
            records[name] = write_tensors(place / name, {"x": torch.full((300_000,), float(number))}, wait=False)
        settle(records)
        self.assertEqual(records, {name: record_of(place / name) for name in records})

    def test_copies_do_not_pile_up(self):
        view = torch.zeros(64, 1 << 20).t()  # not contiguous: each tensor is copied to be written
        tensors, waiting = {f"{i}": view[:, i : i + 2] for i in range(0, 60, 2)}, []
        write = HashedFile.write

        def watch(file, content, copied=False):
            write(file, content, copied)
            waiting.append(len(file._hashing))

        with mock.patch.object(HashedFile, "write", watch):
            write_tensors(folder() / "x.safetensors", tensors)
        self.assertLessEqual(max(waiting), MOST_WAITING)

    def test_a_file_is_on_the_disk_before_its_record_is_known(self):
        order, sync = [], os.fsync
        with mock.patch("os.fsync", lambda fd: (order.append(os.fstat(fd).st_size), sync(fd))):
            record = write_bytes(folder() / "x", b"hello")
        self.assertEqual(order, [record.size])

    def test_json_without_nan(self):
        path = folder() / "x.json"
        self.assertEqual(write_json(path, {"a": [1, "é"]}), record_of(path))
        self.assertEqual(json.loads(path.read_text()), {"a": [1, "é"]})
        with self.assertRaises(ValueError):
            write_json(folder() / "y.json", float("nan"))


class WeightsTest(parameterized.TestCase):
    @parameterized.parameters("5GB", "10KB")
    def test_save_pretrained_is_recorded_and_equals_the_stock_file(self, shard_size):
        model, ours, theirs, records = tiny_t5(), folder(), folder(), {}
        with recorded_weights(ours, records):
            model.save_pretrained(ours, max_shard_size=shard_size)
        settle(records)
        model.save_pretrained(theirs, max_shard_size=shard_size)
        names = sorted(path.name for path in theirs.glob("*.safetensors"))
        self.assertEqual(sorted(records), names, "transformers writes weights through another name now")
        self.assertGreater(len(names), 1 if shard_size == "10KB" else 0)
        for name in names:
            self.assertEqual((ours / name).read_bytes(), (theirs / name).read_bytes())
            self.assertEqual(records[name], record_of(ours / name))

    def test_the_stock_writer_is_back_afterwards_and_other_folders_are_not_recorded(self):
        stock, records = modeling_utils.safe_save_file, {}
        with self.assertRaises(ZeroDivisionError), recorded_weights(folder(), records):
            tiny_t5().save_pretrained(folder())
            raise ZeroDivisionError
        self.assertIs(modeling_utils.safe_save_file, stock)
        self.assertEqual(records, {})

    def test_a_version_that_writes_otherwise_still_saves(self):
        place = folder()
        with mock.patch("t5suite.training.checkpoints.weights.WRITER", "no_such_name"), recorded_weights(place, {}):
            tiny_t5().save_pretrained(place)
        self.assertTrue((place / "model.safetensors").is_file())


def round_trip(state):
    place = folder()
    records = save_state(place, "optimizer", state)
    settle(records)
    for name, record in records.items():
        assert record == record_of(place / name), name
    return load_state(place, "optimizer")


MAKERS = {
    **{name: lambda model, name=name: make_optimizer(name, model, 1e-2) for name in OPTIMIZERS},
    "adafactor_with_momentum": lambda model: make_optimizer("adafactor", model, 1e-2, {"beta1": 0.9}),
    "torch_adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-2)),
    "torch_adamw_fused": lambda model: torch.optim.AdamW(model.parameters(), fused=True, amsgrad=True),
    "torch_adafactor": lambda model: torch.optim.Adafactor(model.parameters()),
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "named_groups": lambda model: torch.optim.SGD(
        [{"params": [p], "name": n} for n, p in model.named_parameters()], lr=1.0
    ),
}


class OptimizerStatesTest(parameterized.TestCase):
    @parameterized.product(name=list(MAKERS), dtype=(torch.float32, torch.bfloat16))
    def test_restored_optimizer_goes_on_bit_by_bit(self, name, dtype):
        model, other = tiny_t5(dtype), tiny_t5(dtype)
        optimizer, restored = MAKERS[name](model), MAKERS[name](other)
        trained(model, optimizer)
        state = round_trip(optimizer.state_dict())
        self.assertTrue(same(state, optimizer.state_dict()))
        other.load_state_dict(model.state_dict())
        restore_optimizer(restored, state)
        self.assertTrue(same(restored.state_dict(), optimizer.state_dict()))
        trained(model, optimizer)
        trained(other, restored)
        self.assertTrue(same(dict(other.state_dict()), dict(model.state_dict())))
        self.assertTrue(same(restored.state_dict(), optimizer.state_dict()))

    def test_state_before_the_first_step(self):
        optimizer = make_optimizer("adamw", tiny_t5(), 1e-2)
        self.assertTrue(same(round_trip(optimizer.state_dict()), optimizer.state_dict()))

    @parameterized.parameters(*SCHEDULES)
    def test_schedules_go_on_bit_by_bit(self, name):
        def make():
            optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.3)
            return optimizer, make_scheduler(optimizer, name, 40, 0 if name in ("inverse_sqrt_t5",) else 5)

        def step(optimizer, scheduler):
            optimizer.step()
            scheduler.step()
            if isinstance(scheduler, PlateauLR):
                scheduler.observe(-1.0)

        first, second = make(), make()
        for _ in range(17):
            step(*first)
        state = round_trip(first[1].state_dict())
        self.assertTrue(same(state, first[1].state_dict()))
        second[0].load_state_dict(round_trip(first[0].state_dict()))
        second[1].load_state_dict(state)
        for _ in range(17):
            step(*first)
            step(*second)
            self.assertEqual(first[1].get_last_lr(), second[1].get_last_lr())

    @parameterized.parameters("ReduceLROnPlateau", "OneCycleLR", "CosineAnnealingLR", "SequentialLR")
    def test_torch_schedules(self, name):
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.3, momentum=0.9)
        lr_scheduler = torch.optim.lr_scheduler
        scheduler = {
            "ReduceLROnPlateau": lambda: lr_scheduler.ReduceLROnPlateau(optimizer),
            "OneCycleLR": lambda: lr_scheduler.OneCycleLR(optimizer, 0.1, 10),
            "CosineAnnealingLR": lambda: lr_scheduler.CosineAnnealingLR(optimizer, 10),
            "SequentialLR": lambda: lr_scheduler.SequentialLR(
                optimizer, [lr_scheduler.ConstantLR(optimizer), lr_scheduler.LinearLR(optimizer)], [2]
            ),
        }[name]()
        self.assertTrue(same(round_trip(scheduler.state_dict()), scheduler.state_dict()))

    def test_scaler(self):
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(torch.ones(1, requires_grad=True)).backward()
        scaler._scale.mul_(0.5)
        other = torch.amp.GradScaler("cpu")
        other.load_state_dict(round_trip(scaler.state_dict()))
        self.assertEqual(other.state_dict(), scaler.state_dict())


FLOATS = st.floats(width=64) | st.sampled_from([float("nan"), float("inf"), -0.0, 5e-324, 1e308])
LEAVES = st.none() | st.booleans() | st.integers() | FLOATS | st.text(max_size=4) | st.binary(max_size=4)
KEYS = st.text(max_size=4) | st.integers() | st.sampled_from(["$tensor", "$", "a.b", "a"])
STATES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=12,
)


class StatesTest(parameterized.TestCase):
    @settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(STATES)
    def test_any_nested_state_comes_back(self, state):
        text = json.dumps(encode(state, {}), allow_nan=False)
        self.assertTrue(same(decode(json.loads(text), {}), state))

    def test_tensors_numbers_and_odd_keys(self):
        state = {
            0: {"exp_avg": torch.randn(3, 2), "step": torch.tensor(7.0)},
            "0": {"exp_avg": torch.zeros(0)},
            "a": {"b": torch.ones(1)},
            "a.b": torch.zeros(1, dtype=torch.bfloat16),
            (1, 2): {3, "x"},
            "numpy": [np.float32(0.1), np.float64("nan"), np.int64(-3), np.bool_(True)],
            None: b"\x00\xff",
            "$tensor": "no tag",
        }
        self.assertTrue(same(round_trip(state), state))

    def test_tensors_have_readable_names(self):
        place = folder()
        settle(save_state(place, "optimizer", {"state": {0: {"exp_avg": torch.zeros(2)}}}))
        self.assertEqual([*safetensors.torch.load_file(place / "optimizer.safetensors")], ["state.0.exp_avg"])

    @parameterized.parameters((lambda: 0,), (object(),), (np.array([1, 2]),), (np.array([None])[0:1],))
    def test_what_cannot_be_kept_is_named(self, value):
        with self.assertRaisesRegex(ConfigError, r"optimizer\.state\.3: a .* cannot be kept in a checkpoint"):
            save_state(folder(), "optimizer", {"state": {3: value}})

    def test_a_state_nested_without_end_is_refused(self):
        state = []
        state.append(state)
        with self.assertRaises(ConfigError):
            encode(state, {})

    @parameterized.parameters(
        "", "{", "[NaN]", '{"$tensor": "gone"}', '{"$code": 1}', '{"$float": "xyz"}', '{"$float": 3}', '{"$dict": 3}',
        '{"$dict": [[[], 1]]}', '{"$numpy": ["O", "AAAAAAAAAAA="]}', '{"$numpy": []}', '{"$bytes": "?"}', "[" * 99999,
        '{"$numpy": {}}', '{"$set": [[]]}', '{"$tuple": null}',
    )  # fmt: skip
    def test_damaged_files_are_checkpoint_errors(self, text):
        place = folder()
        (place / "optimizer.json").write_text(text)
        with self.assertRaisesRegex(CheckpointError, "'optimizer' cannot be read"):
            load_state(place, "optimizer")

    def test_damaged_tensors_are_checkpoint_errors(self):
        place = folder()
        settle(save_state(place, "optimizer", [torch.zeros(8)]))
        path = place / "optimizer.safetensors"
        for content in (b"", path.read_bytes()[:-4], b"\xff" * 64):
            path.write_bytes(content)
            with self.assertRaises(CheckpointError):
                load_state(place, "optimizer")

    def test_loaded_tensors_do_not_hang_on_the_file(self):
        place = folder()
        settle(save_state(place, "optimizer", [torch.arange(8.0)]))
        (tensor,) = load_state(place, "optimizer")
        with open(place / "optimizer.safetensors", "r+b") as file:
            file.write(b"\xff" * (place / "optimizer.safetensors").stat().st_size)
        self.assertEqual(tensor.tolist(), list(range(8)))


class RandomStateTest(parameterized.TestCase):
    def draw(self):
        import random

        return random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.randn(3).tolist()

    def test_all_generators_go_on_through_json(self):
        self.draw()
        state = json.loads(json.dumps(random_state(), allow_nan=False))
        expected = [self.draw() for _ in range(3)]
        restore_random_state(state)
        self.assertEqual([self.draw() for _ in range(3)], expected)

    @parameterized.parameters(
        {},
        {"python": 3},
        {"torch": ""},
        {"numpy": None},
        {"numpy": ["MT19937", "AAAA", 0, 0, 0.0]},
        {"python": [3, "AAAA", None]},
    )
    def test_damaged_states_are_checkpoint_errors(self, **broken):
        whole = random_state()
        state = {**whole, **broken} if broken else {}
        with self.assertRaises(CheckpointError):
            restore_random_state(state)
        restore_random_state(whole)


if __name__ == "__main__":
    absltest.main()
