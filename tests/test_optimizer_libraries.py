"""Optimizers of other libraries: every one that transformers has is known, and refused early where it is missing."""

import inspect
import re
from unittest import mock

from absl.testing import absltest, parameterized
from later_flags import later_wins
from transformers import trainer_optimizer
from transformers.training_args import OptimizerNames

from t5suite.base.errors import ConfigError
from t5suite.optim.settings import LIBRARIES, check_library, check_their_args, library_of
from t5suite.training.flags.fine_tuning import SuiteTrainingArguments
from t5suite.training.flags.parser import parse_arguments

OWN = {"adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_torch_npu_fused", "adafactor", "sgd", "adagrad",
       "rmsprop"}  # fmt: skip


class LibrariesTest(parameterized.TestCase):
    def test_every_optimizer_of_the_trainer_is_torch_s_or_in_the_table(self):
        listed = {name for names in LIBRARIES for name in names.split()}
        self.assertEqual(listed, {member.value for member in OptimizerNames} - OWN)

    @parameterized.parameters(*[(member.value,) for member in OptimizerNames if "bnb" not in member.value])
    def test_the_settings_of_an_optimizer_are_those_that_the_trainer_reads(self, name):
        source = inspect.getsource(trainer_optimizer._OPTIMIZER_HANDLERS[name])
        if trainer_optimizer._OPTIMIZER_HANDLERS[name] is trainer_optimizer._get_bitsandbytes_optimizer:
            source = source.partition('"ademamix" in')[2] if "ademamix" in name else ""
        loops = [re.findall(r'"(\w+)"', names) for names in re.findall(r"for key in \(([^)]*)\)", source)]
        read = re.findall(r'optim_args\.(?:get|pop)\(\s*"(\w+)"|"(\w+)" in ctx\.optim_args', source)
        expected = {one or other for one, other in read} | {key for keys in loops for key in keys}
        for key in expected:
            check_their_args(name, {key: 1})
        with self.assertRaisesRegex(ConfigError, f"{name} .* has no setting 'foo'; .*{next(iter(expected), 'none')}"):
            check_their_args(name, {"foo": 1, **dict.fromkeys(expected, 1)})

    @parameterized.parameters(
        (["--optim", "adamw_bnb_8bit"], r"pip install 't5suite\[quantization\]'"),
        (["--optimizer", "paged_adamw_8bit"], r"pip install 't5suite\[quantization\]'"),
        (["--optim", "galore_adamw"], "pip install galore-torch"),
    )
    def test_a_library_that_is_not_there_is_named_with_its_install_line(self, argv, message):
        with mock.patch("importlib.util.find_spec", return_value=None), self.assertRaisesRegex(ConfigError, message):
            parse_arguments((SuiteTrainingArguments,), later_wins(["--use_cpu", *argv]))

    def test_a_library_that_is_there_is_taken(self):
        with mock.patch("importlib.util.find_spec", return_value=object()):
            check_library("adamw_bnb_8bit")
        self.assertIsNone(library_of("adamw_torch"))


if __name__ == "__main__":
    absltest.main()
