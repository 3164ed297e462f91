"""Optimizers of other libraries: every one that transformers has is known, and refused early where it is missing."""

from unittest import mock

from absl.testing import absltest, parameterized
from transformers.training_args import OptimizerNames

from t5suite.errors import ConfigError
from t5suite.optim.libraries import LIBRARIES, check_library, library_of
from t5suite.training.flags.fine_tuning import SuiteTrainingArguments
from t5suite.training.flags.parser import parse_arguments

OWN = {"adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_torch_npu_fused", "adafactor", "sgd", "adagrad",
       "rmsprop"}  # fmt: skip


class LibrariesTest(parameterized.TestCase):
    def test_every_optimizer_of_the_trainer_is_torch_s_or_in_the_table(self):
        listed = {name for names in LIBRARIES for name in names.split()}
        self.assertEqual(listed, {member.value for member in OptimizerNames} - OWN)

    @parameterized.parameters(
        (["--optim", "adamw_bnb_8bit"], r"pip install 't5suite\[quantization\]'"),
        (["--optimizer", "paged_adamw_8bit"], r"pip install 't5suite\[quantization\]'"),
        (["--optim", "galore_adamw"], "pip install galore-torch"),
    )
    def test_a_library_that_is_not_there_is_named_with_its_install_line(self, argv, message):
        with mock.patch("importlib.util.find_spec", return_value=None), self.assertRaisesRegex(ConfigError, message):
            parse_arguments((SuiteTrainingArguments,), ["--use_cpu", *argv])

    def test_a_library_that_is_there_is_taken(self):
        with mock.patch("importlib.util.find_spec", return_value=object()):
            check_library("adamw_bnb_8bit")
        self.assertIsNone(library_of("adamw_torch"))


if __name__ == "__main__":
    absltest.main()
