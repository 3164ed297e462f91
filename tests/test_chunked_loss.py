"""Less memory, the same loss and gradients: logits in chunks, activations computed again."""

import contextlib
import itertools
import math
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
import transformers
from absl.testing import parameterized
from inner_sizes import loss_in_chunks
from torch.utils._python_dispatch import TorchDispatchMode

from t5suite.models.t5.chunked_loss import LossSettings, accept_loss_labels, summed_cross_entropy, takes_loss_labels
from t5suite.testing import tiny_trainer, tiny_tuner

IGNORED = -100
SIZES = dict(
    vocab_size=101, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, dropout_rate=0.0, decoder_start_token_id=0
)


def model_of(name: str, dtype=torch.float64):
    torch.manual_seed(0)
    config_class, tied = MODELS[name]
    model = transformers.AutoModelForSeq2SeqLM.from_config(config_class(**SIZES, tie_word_embeddings=tied))
    if not tied:  # transformers 5 ties them all
        model.config.tie_word_embeddings = model.config.scale_decoder_outputs = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.to(dtype).train()


def batch_of(rows=4, inputs=7, targets=6, ignored=True):
    """`(inputs of a model, labels)`; some labels are no tokens."""
    torch.manual_seed(1)
    batch = {
        "input_ids": torch.randint(3, 101, (rows, inputs)),
        "decoder_input_ids": torch.randint(3, 101, (rows, targets)),
    }
    labels = torch.randint(3, 101, (rows, targets))
    if ignored:
        labels[0, 2:] = labels[-1, 0] = IGNORED
    return batch, labels


def plain_loss(logits_BTV, labels_BT, smoothing=0.0, z_loss=0.0):
    """The definition, in the logits' own precision."""
    is_token = labels_BT.ne(IGNORED)
    log_p = logits_BTV.log_softmax(-1)[is_token]
    nll = -log_p.gather(1, labels_BT[is_token][:, None])[:, 0]
    log_z = logits_BTV[is_token].logsumexp(-1)
    return ((1 - smoothing) * nll - smoothing * log_p.mean(-1) + z_loss * log_z.square()).sum()


def leaf(tensor, dtype):
    """A copy that is given gradients."""
    return tensor.detach().clone().to(dtype).requires_grad_()


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def distance(actual: dict, expected: dict) -> float:
    """Euclidean distance of gradients, as a share of the expected ones' norm."""
    assert actual.keys() == expected.keys()
    total = math.fsum(float((actual[name].double() - expected[name].double()).square().sum()) for name in expected)
    return math.sqrt(total / math.fsum(float(g.double().square().sum()) for g in expected.values()))


MODELS = {
    "t5": (transformers.T5Config, True), "t5_untied": (transformers.T5Config, False),
    "mt5": (transformers.MT5Config, False), "umt5": (transformers.UMT5Config, False),
    "umt5_tied": (transformers.UMT5Config, True),
}  # fmt: skip
LOSSES = ((0.0, 0.0), (0.1, 1e-2))
CHUNKS = (None, 5, 1)


class NumbersTest(parameterized.TestCase):
    @parameterized.parameters(*itertools.product(MODELS, LOSSES, CHUNKS))
    @pytest.mark.quick_cases(4)
    def test_loss_and_gradients_are_those_of_the_logits(self, name, loss, chunk):
        batch, labels = batch_of()
        model = model_of(name)
        expected = plain_loss(model(**batch).logits, labels, *loss)
        plain_gradients = gradients(model, expected)
        accept_loss_labels(model)
        outputs = model(**batch, loss_labels=labels, loss_settings=LossSettings(*loss, chunk))
        self.assertLess(abs(outputs.loss_sum.item() - expected.item()) / expected.item(), 1e-13)
        self.assertLess(distance(gradients(model, outputs.loss_sum), plain_gradients), 1e-13)

    @parameterized.parameters(*CHUNKS)
    def test_under_autocast_no_further_from_the_truth_than_the_plain_way(self, chunk):
        torch.manual_seed(0)
        hidden, weight = torch.randn(60, 32).double(), torch.randn(301, 32).double() / 4
        labels = torch.randint(0, 301, (60,))

        def run(way, dtype=torch.float32):
            pair = {"hidden": leaf(hidden, dtype), "weight": leaf(weight, dtype)}
            loss = way(*pair.values())
            (loss / 7).backward()
            return loss.item(), {name: tensor.grad for name, tensor in pair.items()}

        def plain(hidden, weight):
            with torch.autocast("cpu", torch.bfloat16):
                logits = hidden @ weight.T
            self.assertEqual(logits.dtype, torch.bfloat16)
            return F.cross_entropy(logits.float(), labels, reduction="sum")

        def ours(hidden, weight):
            with torch.autocast("cpu", torch.bfloat16):
                return summed_cross_entropy(hidden, weight, labels, LossSettings(chunk_tokens=chunk))[0]

        true_loss, truth = run(lambda h, w: F.cross_entropy(h @ w.T, labels, reduction="sum"), torch.float64)
        plain_value, plain_gradients = run(plain)
        our_value, our_gradients = run(ours)
        self.assertAlmostEqual(our_value, plain_value, delta=1e-5 * plain_value)
        self.assertGreater(abs(our_value - true_loss), 1e-6 * true_loss)  # bf16 it is
        for name in truth:
            error = distance({name: our_gradients[name]}, {name: truth[name]})
            self.assertLess(error, 1.1 * distance({name: plain_gradients[name]}, {name: truth[name]}))
            self.assertEqual(our_gradients[name].dtype, torch.float32)

    @parameterized.parameters(*CHUNKS)
    def test_guesses_are_the_likeliest_tokens(self, chunk):
        batch, labels = batch_of()
        model = model_of("t5")
        logits = model(**batch).logits
        labels = torch.where(torch.rand(labels.shape) < 0.4, logits.argmax(-1), labels)
        labels[0, 3] = IGNORED
        accept_loss_labels(model)
        outputs = model(**batch, loss_labels=labels, loss_settings=LossSettings(0.0, 0.0, chunk, True))
        right = int((logits.argmax(-1).eq(labels) & labels.ne(IGNORED)).sum())
        self.assertGreater(right, 5)
        self.assertEqual(int(outputs.guessed), right)

    @parameterized.parameters(*CHUNKS)
    def test_a_batch_without_labels_counts_for_nothing(self, chunk):
        batch, labels = batch_of()
        model = model_of("t5")
        accept_loss_labels(model)
        outputs = model(
            **batch, loss_labels=torch.full_like(labels, IGNORED), loss_settings=LossSettings(0.1, 1e-2, chunk)
        )
        self.assertEqual(outputs.loss_sum.item(), 0.0)
        self.assertEqual(max(float(g.abs().max()) for g in gradients(model, outputs.loss_sum).values()), 0.0)

    def test_a_frozen_output_layer_gets_no_gradient_and_passes_it_on(self):
        batch, labels = batch_of()
        model = model_of("t5_untied")
        model.lm_head.requires_grad_(False)
        plain_gradients = gradients(model, plain_loss(model(**batch).logits, labels))
        accept_loss_labels(model)
        for chunk in CHUNKS:
            loss = model(**batch, loss_labels=labels, loss_settings=LossSettings(chunk_tokens=chunk)).loss_sum
            self.assertLess(distance(gradients(model, loss), plain_gradients), 1e-13)


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that is made within."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, (tuple, list)) else (output,):
            if torch.is_tensor(tensor):
                self.elements = max(self.elements, tensor.numel())
        return output


class MemoryTest(parameterized.TestCase):
    @parameterized.parameters((0.0, 0.0), (0.1, 1e-2))
    def test_no_tensor_is_as_large_as_the_logits_of_the_batch(self, smoothing, z_loss):
        batch, labels = batch_of(rows=64, targets=4, ignored=False)
        model = model_of("t5")
        accept_loss_labels(model)
        with Largest() as seen:
            settings = LossSettings(smoothing, z_loss, 20, True)
            model(**batch, loss_labels=labels, loss_settings=settings).loss_sum.backward()
        self.assertLess(seen.elements, 64 * 4 * 101 / 2)
        with Largest() as plain:
            plain_loss(model(**batch).logits, labels, smoothing, z_loss).backward()
        self.assertEqual(plain.elements, 64 * 4 * 101)


class WhoTakesItTest(parameterized.TestCase):
    @parameterized.parameters(*MODELS)
    def test_transformers_own_t5s(self, name):
        self.assertTrue(takes_loss_labels(model_of(name)))

    def test_others_do_not(self):
        bart = transformers.BartForConditionalGeneration(
            transformers.BartConfig(vocab_size=50, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                       decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16)
        )  # fmt: skip
        self.assertFalse(takes_loss_labels(bart))

        class Own(transformers.T5ForConditionalGeneration):
            pass

        self.assertFalse(takes_loss_labels(Own(transformers.T5Config(**SIZES))))
        hooked, replaced, biased = model_of("t5"), model_of("t5"), model_of("t5")
        hooked.lm_head.register_forward_hook(lambda module, inputs, outputs: outputs)
        replaced.forward = lambda **batch: None
        biased.lm_head = torch.nn.Linear(16, 101, dtype=torch.float64)
        for model in (hooked, replaced, biased, model_of("t5").half()):
            self.assertFalse(takes_loss_labels(model))

    def adapted(self, **settings):
        import peft

        torch.manual_seed(0)
        config = peft.LoraConfig(
            task_type="SEQ_2_SEQ_LM", r=2, target_modules=["q", "v"], init_lora_weights=False, **settings
        )
        return peft.get_peft_model(model_of("t5_untied"), config)

    def test_a_model_below_an_adapter_does(self):
        batch, labels = batch_of()
        model = self.adapted()
        plain_gradients = gradients(model, plain_loss(model(**batch).logits, labels))
        self.assertTrue(takes_loss_labels(model))
        accept_loss_labels(model)
        for chunk in CHUNKS:
            loss = model(**batch, loss_labels=labels, loss_settings=LossSettings(chunk_tokens=chunk)).loss_sum
            self.assertLess(distance(gradients(model, loss), plain_gradients), 1e-13)

    def test_a_model_whose_output_layer_an_adapter_changes_does_not(self):
        self.assertFalse(takes_loss_labels(self.adapted(modules_to_save=["lm_head"])))

    def test_no_argument_of_the_model_is_swallowed(self):
        """Encoder states that are given would be ignored: transformers' forward reads them, the loss of labels does not."""
        batch, labels = batch_of()
        model = model_of("t5")
        accept_loss_labels(model)
        states = model.encoder(batch["input_ids"])
        with self.assertRaisesRegex(ValueError, "not computed from encoder_outputs"):
            model(**batch, loss_labels=labels, encoder_outputs=states)
        self.assertTrue(torch.isfinite(model(**batch, loss_labels=labels, encoder_outputs=None).loss_sum))

    def test_nobody_else_sees_a_difference(self):
        batch, labels = batch_of()
        model, other = model_of("t5"), model_of("t5")
        accept_loss_labels(model)
        accept_loss_labels(model)
        self.assertTrue(model(**batch, labels=labels).logits.equal(other(**batch, labels=labels).logits))
        self.assertTrue(model.generate(batch["input_ids"]).equal(other.generate(batch["input_ids"])))
        self.assertEqual(model.state_dict().keys(), other.state_dict().keys())
        import inspect

        self.assertEqual(inspect.signature(model.forward), inspect.signature(other.forward))


class TrainerTest(parameterized.TestCase):
    def run_of(self, tokens, **settings):
        settings |= {"reference_code": "loss_chunks"} if tokens == 0 else {}
        with loss_in_chunks(tokens):
            trainer = tiny_trainer(
                per_device_train_batch_size=4, gradient_accumulation_steps=2, optim="sgd", num_train_epochs=2,
                schedule="constant", **settings,
            )  # fmt: skip
        shapes = []
        with watching_logits(shapes):
            trainer.train()
        lines = [(line["loss"], line["grad_norm"]) for line in trainer.state.log_history if "loss" in line]
        return lines, shapes

    @parameterized.parameters((0.0, 0.0), (0.1, 1e-2))
    @pytest.mark.slow
    def test_a_run_is_the_same_to_rounding(self, smoothing, z_loss):
        settings = {"label_smoothing_factor": smoothing, "z_loss": z_loss}
        plain_lines, shapes = self.run_of(0, **settings)
        self.assertNotEmpty(shapes)
        for tokens in (3,) if smoothing else (None, 3):
            lines, shapes = self.run_of(tokens, **settings)
            self.assertEmpty(shapes)
            self.assertLen(lines, len(plain_lines))
            for (loss, norm), (plain_loss, plain_norm) in zip(lines, plain_lines, strict=True):
                self.assertAlmostEqual(loss, plain_loss, delta=2e-5 * plain_loss)
                self.assertAlmostEqual(norm, plain_norm, delta=2e-4 * plain_norm)
            self.assertAlmostEqual(lines[0][0], plain_lines[0][0], delta=2e-6 * plain_lines[0][0])

    @pytest.mark.slow
    def test_batch_metrics_are_given_logits_of_every_token(self):
        def nll(outputs, batch):
            labels = batch["labels"]
            losses = F.cross_entropy(outputs.logits.mT, labels, reduction="none")
            return {"nll": losses[labels.ne(IGNORED)].mean()}

        tuner = tiny_tuner(
            data="mini/entailment", batch_metrics=nll, max_train_samples=21, max_steps=3, logging_steps=1,
            per_device_train_batch_size=8, dropout_rate=0.0,
        )  # fmt: skip
        tuner.train(valid=False)
        lines = [line for line in tuner.history if "train/loss" in line]
        self.assertLen(lines, 3)
        for line in lines:
            self.assertAlmostEqual(line["train/nll"], line["train/loss"], delta=1e-5 * line["train/loss"])


@contextlib.contextmanager
def watching_logits(shapes: list):
    """Within, the shapes of logits that an output layer makes while gradients are wanted."""
    forward = torch.nn.Linear.forward

    def watched(layer, states):
        logits = forward(layer, states)
        if torch.is_grad_enabled() and logits.ndim == 3 and logits.shape[-1] > 400:
            shapes.append(logits.shape)
        return logits

    with mock.patch.object(torch.nn.Linear, "forward", watched):
        yield
