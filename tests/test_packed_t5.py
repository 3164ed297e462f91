"""Examples packed into rows count, learn and predict as they do alone."""

import copy
import doctest
import math
import tempfile

import torch
import torch.nn.functional as F
from absl.testing import absltest, parameterized
from transformers import AutoConfig, AutoModelForSeq2SeqLM, BartConfig, BartForConditionalGeneration

from t5suite.base.errors import ConfigError
from t5suite.models import attention
from t5suite.models.attention import accept_packed_batches

SETTINGS = dict(vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=3, num_heads=4, dropout_rate=0.0)
# Source and target lengths of the examples of each row; the rest of [3, 40] and [3, 20] is padding.
ROWS = (((9, 4), (20, 7), (3, 1)), ((17, 11),), ((1, 2), (12, 8), (14, 5), (6, 4)))
SOURCE_LENGTH, TARGET_LENGTH = 40, 20


def tiny(model_type="t5", attention="sdpa", **settings):
    """A T5 whose attention is far from uniform, so that a wrong mask shows."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **SETTINGS, decoder_start_token_id=0, **settings)
    model = AutoModelForSeq2SeqLM.from_config(config, attn_implementation=attention)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(2.0 if ".q." in name or "relative" in name else 1.0)
    accept_packed_batches(model)
    return model


def examples(seed=0):
    """Every example as (inputs, targets)."""
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


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def relative_difference(a, b):
    """Of whole gradients; that of no tensor may be ten times as large."""
    difference, norm = ({n: f(n).norm().item() for n in b} for f in (lambda n: a[n] - b[n], lambda n: b[n]))
    worst = max(difference[n] / max(norm[n], 1e-8) for n in b)
    return max(math.hypot(*difference.values()) / math.hypot(*norm.values()), worst / 10)


class PackedT5Test(parameterized.TestCase):
    @parameterized.product(
        model_type=("t5", "mt5", "umt5"), attention=("sdpa", "eager"), feed_forward_proj=("relu", "gated-gelu")
    )
    def test_packed_loss_and_gradients_equal_unpacked_ones(self, model_type, attention, feed_forward_proj):
        model, rows = tiny(model_type, attention, feed_forward_proj=feed_forward_proj), examples()
        loss, expected = summed_loss(model, packed(rows)), summed_loss_alone(model, rows)
        self.assertLess(abs(loss.item() / expected.item() - 1), 1e-6)
        found, wanted = gradients(model, loss), gradients(model, expected)
        self.assertEqual(found.keys(), wanted.keys())
        self.assertLess(relative_difference(found, wanted), 1e-5)

    @parameterized.parameters("sdpa", "eager")
    def test_a_segment_is_blind_to_the_others_and_to_padding(self, attention):
        model, rows = tiny(attention=attention), examples()
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

    def test_an_example_means_the_same_wherever_it_stands(self):
        model, rows = tiny(), examples()
        backwards = [row[::-1] for row in rows[::-1]]
        with torch.no_grad():
            loss, moved = summed_loss(model, packed(rows)), summed_loss(model, packed(backwards))
        self.assertLess(abs(loss.item() / moved.item() - 1), 1e-6)

    def test_without_the_hooks_examples_see_each_other(self):
        """Guards the tests above: their models are not blind anyway."""
        model, rows = tiny(), examples()
        batch = {k: v for k, v in packed(rows).items() if not k.endswith("segment_ids")}
        with torch.no_grad():
            loss, expected = summed_loss(model, batch), summed_loss_alone(model, rows)
        self.assertGreater(abs(loss.item() / expected.item() - 1), 1e-2)

    def test_batches_without_segments_are_computed_as_before(self):
        model = tiny()
        plain = copy.deepcopy(model)
        for stack in (plain.encoder, plain.decoder):
            stack._forward_pre_hooks.clear()
        batch = {"input_ids": torch.randint(2, 60, (3, 9)), "labels": torch.randint(2, 60, (3, 5))}
        with torch.no_grad():
            self.assertTrue(torch.equal(model(**batch).logits, plain(**batch).logits))
            generated, expected = (
                m.generate(batch["input_ids"], max_new_tokens=6, eos_token_id=1) for m in (model, plain)
            )
        self.assertTrue(torch.equal(generated, expected))

    def test_gradient_checkpointing_changes_nothing(self):
        model, batch = tiny(), packed(examples())
        expected = gradients(model, summed_loss(model, batch))
        model.gradient_checkpointing_enable()
        model.train()
        self.assertLess(relative_difference(gradients(model, summed_loss(model, batch)), expected), 1e-5)

    def test_under_ddp_and_autocast(self):
        """Masks are made within the wrapped forward: encoder and decoder both run in bfloat16."""
        model, batch = tiny(), packed(examples())
        expected = summed_loss(model, batch)
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{tempfile.mkdtemp()}/store", rank=0, world_size=1
        )
        try:
            wrapped = torch.nn.parallel.DistributedDataParallel(model)
            self.assertEqual(summed_loss(wrapped, batch).item(), expected.item())
        finally:
            torch.distributed.destroy_process_group()
        dtypes = set()
        model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
        for layer in (model.encoder.block[0], model.decoder.block[0]):
            layer.layer[0].SelfAttention.q.register_forward_hook(lambda _, args, output: dtypes.add(output.dtype))
        loss = summed_loss(model, batch)
        self.assertEqual(dtypes, {torch.bfloat16})
        self.assertLess(abs(loss.item() / expected.item() - 1), 3e-2)

    def test_hooks_are_set_once(self):
        model = tiny()
        accept_packed_batches(model)
        self.assertLen(model.encoder._forward_pre_hooks, 1)
        self.assertLen(model.decoder._forward_pre_hooks, 1)

    def test_half_a_packed_batch_is_refused(self):
        batch = packed(examples())
        del batch["decoder_segment_ids"]
        with self.assertRaisesRegex(ValueError, "decoder_segment_ids is missing"):
            tiny()(**batch)

    def test_other_models_are_refused(self):
        bart = BartForConditionalGeneration(
            BartConfig(
                vocab_size=20,
                d_model=8,
                encoder_layers=1,
                decoder_layers=1,
                encoder_attention_heads=2,
                decoder_attention_heads=2,
            )
        )
        with self.assertRaisesRegex(ConfigError, "not 'bart'"):
            accept_packed_batches(bart)
        model = tiny()
        model.encoder.config._attn_implementation = "flex_attention"
        with self.assertRaisesRegex(ConfigError, "sdpa or eager, not 'flex_attention'"):
            model(**packed(examples()))

    def test_eager_still_adds_boolean_masks(self):
        """Fails when transformers mends it; `attention._as_taken` may then hand booleans to eager too."""
        model, batch = tiny(attention="eager"), packed(examples())
        mask = attention.encoder_mask(batch["encoder_segment_ids"])
        with torch.no_grad():
            wrong = model.encoder(batch["input_ids"], attention_mask=mask).last_hidden_state
            right = tiny().encoder(batch["input_ids"], attention_mask=mask).last_hidden_state
        self.assertGreater((wrong - right).abs().max(), 1e-2)

    def test_examples_in_docstrings(self):
        for function in (attention.encoder_mask, attention.decoder_mask, attention.cross_mask):
            finder = doctest.DocTestFinder().find(function, globs={"torch": torch, function.__name__: function})
            for case in finder:
                self.assertEqual(doctest.DocTestRunner().run(case).failed, 0)


if __name__ == "__main__":
    absltest.main()
