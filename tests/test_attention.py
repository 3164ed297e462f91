"""T5's attention: quick in evaluation with transformers' own numbers, masks of the host, and cuDNN left out."""

import copy
import math
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
import transformers
from absl.testing import parameterized
from torch.utils.checkpoint import checkpoint
from transformers.models.t5 import modeling_t5

from t5suite.models.t5 import attention, dropout
from t5suite.models.t5.attention import (
    QuickT5Attention,
    merge_bias_and_mask,
    quicken_attention,
    slow_attention,
    stock_class,
)
from t5suite.models.t5.dropout import quick_dropout, quicken_dropout
from t5suite.models.t5.packing import accept_packed_batches, encoder_mask
from t5suite.testing import exits_with

MODELS = {
    "t5": (transformers.T5Config, transformers.T5ForConditionalGeneration),
    "mt5": (transformers.MT5Config, transformers.MT5ForConditionalGeneration),
}
PACKED = {
    "encoder_segment_ids": torch.tensor([[1, 1, 1, 2, 2, 2], [1, 1, 2, 2, 0, 0]]),
    "decoder_segment_ids": torch.tensor([[1, 1, 2, 2], [1, 2, 2, 0]]),
}


def tiny(implementation="sdpa", kind="t5", **settings):
    """A random T5 of two layers, in training mode without dropout."""
    torch.manual_seed(0)
    config_class, model_class = MODELS[kind]
    settings = {"dropout_rate": 0.0, "use_cache": False, **settings}
    config = config_class(
        vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_heads=2, num_layers=2, decoder_start_token_id=0,
        attn_implementation=implementation, **settings,
    )  # fmt: skip
    return model_class(config).train()


def pair(implementation="sdpa", kind="t5", **settings):
    """A model as transformers makes it, and its quick twin."""
    model = tiny(implementation, kind, **settings)
    twin = copy.deepcopy(model)
    assert quicken_attention(twin) == 6
    return model, twin


def batch_of(lengths, width=6):
    torch.manual_seed(1)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    ids = torch.randint(3, 50, mask.shape) * mask
    return {
        "input_ids": ids,
        "attention_mask": mask.long(),
        "decoder_input_ids": torch.randint(3, 50, (len(lengths), 4)),
    }


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def trained(model, batch):
    """Logits and gradients."""
    model.zero_grad()
    logits = model(**batch).logits
    logits.square().mean().backward()
    return [logits.detach(), *[p.grad.clone() for p in model.parameters()]]


class QuickAttentionTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_evaluation_gives_transformers_own_numbers(self):
        packed = {**batch_of([6, 6]), **PACKED}
        del packed["attention_mask"]
        for kind in MODELS:
            model, twin = (each.double().eval() for each in pair(kind=kind))
            for each in (model, twin):
                accept_packed_batches(each)
            for batch in [*map(batch_of, ([6, 6], [6, 3], [1, 2])), packed]:
                for stock, ours in zip(trained(model, batch), trained(twin, batch), strict=True):
                    torch.testing.assert_close(ours, stock, rtol=1e-9, atol=1e-12)

    def test_training_gives_transformers_own_gradients_also_with_dropout(self):
        of_each = []
        for each in pair(dropout_rate=0.3):
            torch.manual_seed(3)
            of_each.append(trained(each.double(), batch_of([6, 3])))
        for stock, ours in zip(*of_each, strict=True):
            torch.testing.assert_close(ours, stock, rtol=1e-9, atol=1e-12)

    def test_bias_and_mask_meet_once_a_stack(self):
        _, twin = pair()
        calls, plain = [], attention.merge_bias_and_mask
        attention.merge_bias_and_mask = lambda *args: calls.append(args) or plain(*args)
        try:
            twin.eval()(**batch_of([6, 3]))
        finally:
            attention.merge_bias_and_mask = plain
        # A stack's own attention, and the decoder's to the encoder, whose mask is made once, too.
        self.assertLen([args for args in calls if args[0] is not None], 2)
        self.assertLen([args for args in calls if args[0] is None], 1)

    def test_generation_writes_the_same(self):
        model, twin = (each.eval() for each in pair())
        batch = batch_of([6, 3])
        del batch["decoder_input_ids"]
        self.assertEqual(*(each.generate(**batch, max_new_tokens=8, num_beams=2).tolist() for each in (model, twin)))

    def test_generation_with_a_cache_has_the_same_scores(self):
        batch = batch_of([6, 3])
        del batch["decoder_input_ids"]
        words = dict(max_new_tokens=8, use_cache=True, output_scores=True, return_dict_in_generate=True)
        scores = [each.eval().generate(**batch, **words).scores for each in pair(use_cache=True)]
        for stock, ours in zip(*scores, strict=True):
            torch.testing.assert_close(ours, stock)

    def test_eager_tells_attention_weights(self):
        model, twin = pair("eager")
        outputs = [each.eval()(**batch_of([6, 3]), output_attentions=True) for each in (model, twin)]
        for name in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
            for stock, ours in zip(outputs[0][name], outputs[1][name], strict=True):
                torch.testing.assert_close(ours, stock)

    def test_stacks_with_attention_of_the_user_s_stay_whole_and_slow_again_is_transformers_own(self):
        model, twin = pair()
        self.assertIs(stock_class(twin.encoder.block[0].layer[0].SelfAttention), modeling_t5.T5Attention)
        self.assertEqual(slow_attention(twin), 6)
        self.assertFalse(any(isinstance(module, QuickT5Attention) for module in twin.modules()))
        attention = model.encoder.block[1].layer[0].SelfAttention
        attention.__class__ = type("OwnAttention", (modeling_t5.T5Attention,), {})
        self.assertEqual(quicken_attention(model), 4)  # the decoder's
        self.assertIs(type(model.encoder.block[0].layer[0].SelfAttention), modeling_t5.T5Attention)

    def test_a_causal_bias_hides_what_is_behind(self):
        bias = torch.arange(9.0).view(1, 1, 3, 3)
        seen = (
            merge_bias_and_mask(bias, None, is_causal=True, dtype=torch.float32)[0, 0] > torch.finfo(torch.float32).min
        )
        self.assertTrue(torch.equal(seen, torch.ones(3, 3).tril().bool()))


class QuickDropoutTest(parameterized.TestCase):
    @parameterized.parameters((0.1, torch.float32), (0.9, torch.float64), (1e-3, torch.bfloat16))
    def test_as_many_as_asked_for_are_dropped_independently_and_the_mean_stays(self, p, dtype):
        torch.manual_seed(0)
        n = 400_003
        output = quick_dropout(torch.ones(n, 1, dtype=dtype), p).double()
        zeros = output.eq(0)
        self.assertAlmostEqual(zeros.sum().item(), n * p, delta=5 * (n * p * (1 - p)) ** 0.5 + n / 65536)
        self.assertTrue((zeros | ((1 - p) * output - 1).abs().lt(5e-3)).all())
        for distance in (1, 2, 3, 4):  # four neighbours come from one random number
            both = (zeros[distance:] & zeros[:-distance]).sum().item()
            self.assertAlmostEqual(both, n * p * p, delta=5 * n**0.5 * p + 1)

    def test_a_recomputed_layer_draws_the_same_and_evaluation_draws_nothing(self):
        model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.5))
        self.assertEqual((quicken_dropout(model), quicken_dropout(model)), (1, 0))
        x, draws = torch.randn(8, 16), []
        for recomputed in (False, True):
            torch.manual_seed(3)
            model.zero_grad()
            output = checkpoint(model, x, use_reentrant=False) if recomputed else model(x)
            self.assertBetween(output.eq(0).sum().item(), 40, 90)
            output.square().sum().backward()
            draws.append([model[0].weight.grad.clone(), torch.rand(2)])
        torch.testing.assert_close(*draws, rtol=0, atol=0)
        torch.testing.assert_close(model.eval()(x), model[0](x), rtol=0, atol=0)

    def test_weights_of_attention_are_dropped_and_its_numbers_are_transformers_own(self):
        model, twin = (each.double() for each in pair(dropout_rate=0.3))
        quicken_dropout(twin)
        draws = mock.Mock(side_effect=lambda input, p: input)
        with mock.patch.object(attention, "quick_dropout", draws), mock.patch.object(dropout, "quick_dropout", draws):
            undropped = trained(twin, batch_of([6, 3]))
        shapes = [call.args[0].shape[1:] for call in draws.call_args_list]
        for queries, keys, layers in ((6, 6, 2), (4, 4, 2), (4, 6, 2)):
            self.assertEqual(shapes.count((2, queries, keys)), layers)
        self.assertEqual({call.args[1] for call in draws.call_args_list}, {0.3})
        for stock, ours in zip(trained(model.eval(), batch_of([6, 3])), undropped, strict=True):
            torch.testing.assert_close(ours, stock, rtol=1e-9, atol=1e-12)


SETTINGS = dict(vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=3, num_heads=4, dropout_rate=0.0)
# Source and target lengths of the examples of each row; the rest of [3, 40] and [3, 20] is padding.
ROWS = (((9, 4), (20, 7), (3, 1)), ((17, 11),), ((1, 2), (12, 8), (14, 5), (6, 4)))
SOURCE_LENGTH, TARGET_LENGTH = 40, 20


def packed_tiny(model_type="t5", attention="sdpa", **settings):
    """A T5 whose attention is far from uniform, so that a wrong mask shows."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **SETTINGS, decoder_start_token_id=0, **settings)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config, attn_implementation=attention)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(2.0 if ".q." in name or "relative" in name else 1.0)
    accept_packed_batches(model)
    return model


def examples(seed=0):
    rng = torch.Generator().manual_seed(seed)
    draw = lambda n: torch.randint(2, 60, (n,), generator=rng)
    return [[(draw(s), draw(t)) for s, t in row] for row in ROWS]


def packed(rows):
    """Rows of examples -> one batch."""
    sources = torch.zeros(len(rows), SOURCE_LENGTH, dtype=torch.long)
    targets = torch.zeros(len(rows), TARGET_LENGTH, dtype=torch.long)
    batch = {
        "input_ids": sources.clone(),
        "encoder_segment_ids": sources.clone(),
        "labels": torch.full_like(targets, -100),
        "decoder_input_ids": targets.clone(),
        "decoder_segment_ids": targets.clone(),
    }
    for number, row in enumerate(rows):
        s = t = 0
        for segment, (inputs, labels) in enumerate(row, start=1):
            source, target = slice(s, s + len(inputs)), slice(t, t + len(labels))
            batch["input_ids"][number, source] = inputs
            batch["encoder_segment_ids"][number, source] = segment
            batch["labels"][number, target] = labels
            batch["decoder_input_ids"][number, target] = torch.cat([torch.zeros(1, dtype=torch.long), labels[:-1]])
            batch["decoder_segment_ids"][number, target] = segment
            s, t = source.stop, target.stop
    batch["attention_mask"] = batch["encoder_segment_ids"].gt(0).long()
    return batch


def summed_loss(model, batch):
    logits_BTV = model(**{k: v for k, v in batch.items() if k != "labels"}).logits
    return F.cross_entropy(logits_BTV.transpose(1, 2), batch["labels"], ignore_index=-100, reduction="sum")


def summed_loss_alone(model, rows):
    return sum(
        F.cross_entropy(model(input_ids=inputs[None], labels=labels[None]).logits[0], labels, reduction="sum")
        for row in rows
        for inputs, labels in row
    )


def relative_difference(a, b):
    """Of whole gradients; that of no tensor may be ten times as large."""
    difference, norm = ({n: f(n).norm().item() for n in b} for f in (lambda n: a[n] - b[n], lambda n: b[n]))
    worst = max(difference[n] / max(norm[n], 1e-8) for n in b)
    return max(math.hypot(*difference.values()) / math.hypot(*norm.values()), worst / 10)


class PackedT5Test(parameterized.TestCase):
    @parameterized.parameters(
        ("t5", "sdpa", "gated-gelu"), ("t5", "eager", "relu"), ("mt5", "sdpa", "gated-gelu"), ("umt5", "sdpa", "relu")
    )
    @pytest.mark.quick_cases(1)
    def test_packed_loss_and_gradients_equal_unpacked_ones(self, model_type, attention, feed_forward_proj):
        model, rows = packed_tiny(model_type, attention, feed_forward_proj=feed_forward_proj), examples()
        loss, expected = summed_loss(model, packed(rows)), summed_loss_alone(model, rows)
        self.assertLess(abs(loss.item() / expected.item() - 1), 1e-6)
        of_packed, of_unpacked = gradients(model, loss), gradients(model, expected)
        self.assertEqual(of_packed.keys(), of_unpacked.keys())
        self.assertLess(relative_difference(of_packed, of_unpacked), 1e-5)

    @parameterized.parameters("sdpa", "eager")
    def test_a_segment_is_blind_to_the_others_and_to_padding(self, attention):
        model, rows = packed_tiny(attention=attention), examples()
        other = examples(seed=1)
        changed = [[other[r][i] if (r + i) % 2 else rows[r][i] for i in range(len(rows[r]))] for r in range(len(rows))]
        before, after = packed(rows), packed(changed)
        after["input_ids"][after["encoder_segment_ids"] == 0] = 33
        after["decoder_input_ids"][after["decoder_segment_ids"] == 0] = 34
        with torch.no_grad():
            logits, new_logits = model(**before).logits, model(**after).logits
        for r, row in enumerate(rows):
            for i in range(len(row)):
                mine = before["decoder_segment_ids"][r] == i + 1
                difference = (logits[r, mine] - new_logits[r, mine]).abs().max()
                if (r + i) % 2:
                    self.assertGreater(difference, 1e-2)
                else:
                    self.assertLess(difference, 1e-6 * logits.abs().max())

    def test_without_the_hooks_examples_see_each_other(self):
        """Guards the tests above: their models are not blind anyway."""
        model, rows = packed_tiny(), examples()
        batch = {k: v for k, v in packed(rows).items() if not k.endswith("segment_ids")}
        with torch.no_grad():
            loss, expected = summed_loss(model, batch), summed_loss_alone(model, rows)
        self.assertGreater(abs(loss.item() / expected.item() - 1), 1e-2)

    def test_half_a_packed_batch_is_refused(self):
        batch = packed(examples())
        del batch["decoder_segment_ids"]
        with self.assertRaisesRegex(ValueError, "decoder_segment_ids is missing"):
            packed_tiny()(**batch)

    def test_a_second_call_changes_nothing(self):
        model = packed_tiny()
        accept_packed_batches(model)
        for stack in (model.encoder, model.decoder):
            self.assertLen(stack._forward_pre_hooks, 1)

    def test_other_models_are_refused(self):
        bart = SimpleNamespace(config=transformers.BartConfig())
        with exits_with(78, "not 'bart'"):
            accept_packed_batches(bart)
        model = packed_tiny()
        model.encoder.config._attn_implementation = "flex_attention"
        with exits_with(78, "sdpa or eager, not 'flex_attention'"):
            model(**packed(examples()))

    def test_eager_still_adds_boolean_masks(self):
        """Fails when transformers fixes it; `packing._as_attention_takes_it` may then hand booleans to eager too."""
        model, batch = packed_tiny(attention="eager"), packed(examples())
        mask = encoder_mask(batch["encoder_segment_ids"])
        with torch.no_grad():
            wrong = model.encoder(batch["input_ids"], attention_mask=mask).last_hidden_state
            right = packed_tiny().encoder(batch["input_ids"], attention_mask=mask).last_hidden_state
        self.assertGreater((wrong - right).abs().max(), 1e-2)
