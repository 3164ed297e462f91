"""A call of the documented Python interface leaves the user's objects as they were.

Each call gets objects of the user's own: a model, its tokenizer, rows in every form, settings. All of them are described
before and after: weights bit for bit, their devices and ties, modes, ids of a text, order and values of rows.
"""

import copy
import hashlib
import random
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from absl.testing import parameterized
from datasets import ClassLabel, Dataset, Features, Value
from transformers import PreTrainedTokenizerBase

import t5suite
from t5suite import FineTuner
from t5suite.data import objectives
from t5suite.data.mixtures import mixing_rates

SMALL = "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2"
WORDS = ("bad", "good")
PROBE = "It was good. <extra_id_0>"


class Objects:
    """What a user has in hand."""

    def __init__(self):
        made = FineTuner(config_overrides=SMALL, use_cpu=True, quiet=True, output_dir=new_folder())
        self.model = made.model.train()
        self.model.decoder.dropout.eval()  # a part of the model in a mode of its own
        self.tokenizer = made.tokenizer
        self.rows = [
            {"text": f"It was {word} {i}.", "label": word, "more": {"n": [i]}} for i in range(6) for word in WORDS
        ]
        self.frame = pd.DataFrame({"text": ["a", "b"] * 6, "label": WORDS * 6}, index=range(12, 0, -1))
        features = Features({"text": Value("string"), "label": ClassLabel(names=list(WORDS))})
        self.dataset = Dataset.from_dict({"text": ["a", "b"] * 6, "label": [0, 1] * 6}, features=features)
        self.splits = {"train": self.rows, "validation": list(self.rows[:4])}
        self.labels = list(WORDS)
        self.settings = {"num_beams": 2, "num_return_sequences": 2, "max_new_tokens": 3}
        self.predictions = ["entailment", "not_entailment"]
        self.task_rows = [{"sentence1": "A dog.", "sentence2": "An animal.", "label": label} for label in (0, 1)]
        self.lengths = {"cola": 8551, "rte": 2490}
        self.tokens = np.arange(40, 60)
        self.mask = np.arange(20) % 5 == 1
        self.sentinels = list(range(32099, 32089, -1))

    def described(self) -> dict:
        """Every object by what a user can see of it."""
        return {name: describe(value) for name, value in vars(self).items()}

    def tuner(self, data=None, **settings) -> FineTuner:
        """A FineTuner of these objects."""
        own = {"text_column": "text", "target_column": "label", "labels": self.labels} if data is not None else {}
        defaults = {"max_steps": 2, "per_device_train_batch_size": 4, "use_cpu": True, "quiet": True, **own}
        chosen = {**defaults, "output_dir": new_folder(), **settings}
        return FineTuner(self.model, data, tokenizer=self.tokenizer, **chosen)


def new_folder() -> str:
    return str(Path(tempfile.mkdtemp()) / "run")


def describe(value):
    """What of an object must stay the same, as a value that can be compared."""
    if isinstance(value, torch.nn.Module):
        parameters = {name: describe_tensor(tensor) for name, tensor in value.named_parameters(remove_duplicate=False)}
        modes = {name: (type(module), module.training) for name, module in value.named_modules()}
        return parameters, modes, value.config.to_dict(), value.generation_config.to_dict()
    if isinstance(value, PreTrainedTokenizerBase):
        kind = (value.padding_side, value.truncation_side, value.model_max_length)
        return len(value), value.special_tokens_map, kind, value(PROBE)["input_ids"]
    if isinstance(value, pd.DataFrame):
        return value.to_dict("tight"), [str(kind) for kind in value.dtypes]
    if isinstance(value, Dataset):
        return value.to_list(), value.features, value.format
    if isinstance(value, np.ndarray):
        return value.dtype, value.tolist()
    return copy.deepcopy(value)


def describe_tensor(tensor: torch.Tensor) -> tuple:
    """A parameter: which one it is, where and how it is kept, its values."""
    bits = tensor.detach().cpu().contiguous().view(torch.uint8) if tensor.device.type != "meta" else torch.empty(0)
    values = hashlib.sha256(bits.numpy().tobytes()).hexdigest()
    return id(tensor), str(tensor.device), tensor.dtype, tensor.requires_grad, tensor.grad is None, values


def trained(mine: Objects, data, **settings):
    """A run over these rows; its model is another, so that the user's keeps its weights."""
    own = {"text_column": "text", "target_column": "label", "labels": mine.labels, "config_overrides": SMALL}
    steps = {"max_steps": 2, "eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}
    return FineTuner(None, data, use_cpu=True, quiet=True, output_dir=new_folder(), **steps, **own, **settings).train()


# What docs/python.md, docs/predict.md and docs/data.md show, and the contract's functions.
CALLS = {
    "print": lambda mine: str(mine.tuner(mine.splits)),
    "summary": lambda mine: mine.tuner(mine.splits).summary(),
    "evaluate": lambda mine: mine.tuner(mine.splits).evaluate(),
    "predict a text": lambda mine: mine.tuner(mine.splits).predict("It was good.", **mine.settings),
    "predict rows": lambda mine: mine.tuner(mine.splits).predict(mine.rows, return_scores=True),
    "predict a frame": lambda mine: mine.tuner(mine.splits).predict(mine.frame),
    "predict a data set": lambda mine: mine.tuner(mine.splits).predict(mine.dataset),
    "predict a raw text": lambda mine: mine.tuner().predict(["text"], raw=True, do_sample=True, max_new_tokens=3),
    "predict_labels": lambda mine: mine.tuner(mine.splits).predict_labels(mine.rows[:2], labels=mine.labels),
    "save": lambda mine: mine.tuner(mine.splits).save(new_folder()),
    "train on splits": lambda mine: trained(mine, mine.splits),
    "train on rows": lambda mine: trained(mine, mine.rows, validation_split=0.5),
    "train on a frame": lambda mine: trained(mine, mine.frame, validation_split=0.5),
    "train on a data set": lambda mine: trained(mine, {"train": mine.dataset, "validation": mine.dataset}),
    "examples": lambda mine: [t5suite.load_task("glue", "rte").examples(row) for row in mine.task_rows],
    "score": lambda mine: t5suite.load_task("glue", "rte").score(mine.task_rows, mine.predictions),
    "mixing_rates": lambda mine: mixing_rates(mine.lengths, limit=5000, temperature=2.0),
    "corrupt": lambda mine: objectives.corrupt(mine.tokens, mine.mask, mine.sentinels, eos_id=1),
}  # fmt: skip


# Calls of which a quick test makes one with rows in another form.
OTHER_FORMS = ("predict rows", "predict a raw text", "train on rows", "train on a frame")


class UsersObjectsTest(parameterized.TestCase):
    @parameterized.parameters(*(name for name in CALLS if name not in OTHER_FORMS))
    @pytest.mark.quick_cases(1)
    def test_a_call_leaves_them_as_they_were(self, name):
        self.check(name)

    @parameterized.parameters(*OTHER_FORMS)
    @pytest.mark.slow
    def test_so_does_one_with_rows_in_another_form(self, name):
        self.check(name)

    def check(self, name):
        mine = Objects()
        before = mine.described()
        surroundings = torch.get_default_dtype(), torch.is_grad_enabled(), random.getstate()
        random_states = torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()
        CALLS[name](mine)
        for object_name, description in mine.described().items():
            self.assertEqual(description, before[object_name], object_name)
        self.assertEqual((torch.get_default_dtype(), torch.is_grad_enabled(), random.getstate()), surroundings)
        self.assertEqual((torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()), random_states)

    @pytest.mark.slow
    def test_the_model_that_is_trained_is_the_user_s_and_is_otherwise_as_it_was(self):
        mine = Objects()
        before = describe(mine.model)
        mine.tuner(mine.splits).train()
        parameters, modes, config, generation_config = describe(mine.model)
        self.assertEqual([tensor[:4] for tensor in parameters.values()], [tensor[:4] for tensor in before[0].values()])
        self.assertNotEqual(parameters, before[0])
        self.assertEqual((modes, config, generation_config), before[1:])
