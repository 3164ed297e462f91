"""FLOPs against the formula, and peaks by name."""

import doctest
from unittest import mock

import torch
from absl.testing import absltest, parameterized
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    BertConfig,
    BertForMaskedLM,
    LongT5Config,
    LongT5ForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

from t5suite.training.memory_summary import checkpoint_layers
from t5suite.training.monitoring import rates as throughput


def t5_formula(config, S, T):
    """The formula of the module's docstring."""
    d, i, f = config.d_model, config.num_heads * config.d_kv, config.d_ff
    m = 3 if config.is_gated_act else 2
    encoder = config.num_layers * (2 * S * (4 * d * i + m * d * f) + 4 * S * S * i)
    decoder = config.num_decoder_layers * (
        2 * T * (6 * d * i + m * d * f) + 2 * S * 2 * d * i + 4 * T * T * i + 4 * T * S * i
    )
    return encoder + decoder + 2 * T * d * config.vocab_size


def t5(**settings):
    config = T5Config(vocab_size=32128, decoder_start_token_id=0, **settings)
    with torch.device("meta"):
        return T5ForConditionalGeneration(config)


class FlopsTest(parameterized.TestCase):
    @parameterized.parameters(
        (dict(d_model=768, d_ff=2048, num_layers=12, num_heads=12, feed_forward_proj="gated-gelu"), 512, 114),
        (dict(d_model=512, d_ff=2048, num_layers=6, num_heads=8), 128, 29),
        (dict(d_model=64, d_kv=24, d_ff=96, num_layers=3, num_decoder_layers=1, num_heads=4), 17, 5),
    )
    def test_the_count_equals_the_formula(self, settings, S, T):
        model = t5(**settings)
        counted = throughput.forward_flops(model, {"input_ids": (1, S), "decoder_input_ids": (1, T)})
        self.assertEqual(counted, t5_formula(model.config, S, T))

    def test_t5_base_is_as_published(self):
        model = t5(d_model=768, d_ff=2048, num_layers=12, num_heads=12, feed_forward_proj="gated-gelu")
        counted = throughput.forward_flops(model, {"input_ids": (128, 512), "decoder_input_ids": (128, 114)})
        self.assertAlmostEqual(3 * counted / 1e12, 54.5209, places=4)

    def test_other_architectures_are_counted_and_their_weights_left_alone(self):
        model = BertForMaskedLM(
            BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
        )
        before = {name: weight.clone() for name, weight in model.state_dict().items()}
        one, two = (throughput.forward_flops(model, {"input_ids": (rows, 16)}) for rows in (1, 2))
        self.assertGreater(one, 2 * 2 * 16 * (4 * 32 * 32 + 2 * 32 * 64))
        self.assertEqual(two, 2 * one)
        for name, weight in model.state_dict().items():
            self.assertTrue(weight.equal(before[name]))


class ManyShapesTest(parameterized.TestCase):
    """What is told of a shape at once is what would have been counted."""

    SHAPES = [(1, 3, 5), (2, 17, 5), (3, 100, 1), (1, 512, 114), (7, 9, 33)]

    def assert_as_counted(self, model, names, most_counted):
        flops_of, reference = throughput.ForwardFlops(model), throughput.ForwardFlops(model)
        with mock.patch.object(flops_of, "counted", wraps=flops_of.counted) as counted:
            for rows, *lengths in self.SHAPES:
                shapes = {name: (rows, length) for name, length in zip(names, lengths)}
                for _ in range(2):
                    self.assertEqual(flops_of(shapes), reference.counted(shapes), shapes)
        self.assertEqual(counted.call_count, most_counted)

    def test_encoder_decoders(self):
        model = t5(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_decoder_layers=1, num_heads=2)
        self.assert_as_counted(model, ["input_ids", "decoder_input_ids"], 1 + len(throughput.PROBES))

    def test_models_of_one_input(self):
        config = BertConfig(
            vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
        )
        self.assert_as_counted(BertForMaskedLM(config), ["input_ids"], 1 + len(throughput.PROBES))

    def test_attention_in_blocks_is_counted_shape_by_shape(self):
        config = LongT5Config(
            vocab_size=100, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, local_radius=5,
            encoder_attention_type="local", decoder_start_token_id=0,
        )  # fmt: skip
        with torch.device("meta"):
            model = LongT5ForConditionalGeneration(config)
        found = throughput.ForwardFlops(model)
        self.assert_as_counted(model, ["input_ids", "decoder_input_ids"], len(self.SHAPES) + len(throughput.PROBES))
        self.assertEmpty(found._fitted(("input_ids", "decoder_input_ids")))


class StepFlopsTest(parameterized.TestCase):
    """Forward and backward pass, with what is trained."""

    SHAPES = {"input_ids": (2, 24), "decoder_input_ids": (2, 7)}
    SIZES = dict(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_decoder_layers=1, num_heads=2)

    def counted_anew(self, model):
        """As torch counts it where both passes run, attention as plain products."""
        model.set_attn_implementation("eager")
        with torch.device("meta"):
            inputs = {name: torch.zeros(shape, dtype=torch.long) for name, shape in self.SHAPES.items()}
            with FlopCounterMode(display=False) as counter:
                model(**inputs).logits.sum().backward()
        return counter.get_total_flops()

    def test_three_passes_where_everything_is_trained(self):
        model = t5(**self.SIZES)
        found = throughput.StepFlops(model)(self.SHAPES)
        self.assertEqual(found, 3 * 2 * t5_formula(model.config, 24, 7))
        self.assertEqual(found, self.counted_anew(model))

    @parameterized.parameters("encoder", "decoder", "encoder.block.0", "shared")
    def test_less_where_a_part_is_frozen(self, part):
        model = t5(**self.SIZES)
        for name, parameter in model.named_parameters():
            if name.startswith(part) and parameter is not model.shared.weight:
                parameter.requires_grad_(False)
        found = throughput.StepFlops(model)(self.SHAPES)
        self.assertEqual(found, self.counted_anew(model))
        whole = throughput.StepFlops(t5(**self.SIZES))(self.SHAPES)
        self.assertEqual(found < whole, part != "shared")

    def test_a_frozen_encoder_costs_one_pass(self):
        model = t5(**self.SIZES)
        model.requires_grad_(False)
        model.decoder.requires_grad_(True)
        model.shared.requires_grad_(False)
        whole, frozen = throughput.StepFlops(t5(**self.SIZES)), throughput.StepFlops(model)
        # Twice as many inputs: what the encoder does more is one pass of three.
        longer = {**self.SHAPES, "input_ids": (2, 48)}
        config = model.config
        d, i, f = config.d_model, config.num_heads * config.d_kv, config.d_ff
        of_encoder = lambda S: 2 * config.num_layers * (2 * S * (4 * d * i + 2 * d * f) + 4 * S * S * i)
        self.assertLess(frozen(longer) - frozen(self.SHAPES), whole(longer) - whole(self.SHAPES))
        difference = (whole(longer) - frozen(longer)) - (whole(self.SHAPES) - frozen(self.SHAPES))
        # What keys and values pass back to the encoder is left out, too.
        passed_back = 2 * config.num_decoder_layers * 2 * 24 * 2 * d * i
        self.assertEqual(difference, 2 * (of_encoder(48) - of_encoder(24)) + passed_back)

    def test_below_an_adapter_gradients_pass_through_and_none_is_made(self):
        import peft

        config = peft.LoraConfig(task_type="SEQ_2_SEQ_LM", r=2, target_modules=["q", "v"])
        with torch.device("meta"):
            model = peft.get_peft_model(t5(**self.SIZES), config)
        found = throughput.StepFlops(model)(self.SHAPES)
        forward = throughput.ForwardFlops(t5(**self.SIZES))(self.SHAPES)
        # Attention's products have two gradients and no weights.
        attention = 2 * (4 * 24 * 24 * 16 * 2 + 4 * 7 * 7 * 16 + 4 * 7 * 24 * 16)
        self.assertEqual(found, 2 * forward + attention)

    def test_checkpointing_computes_again_and_counts_once(self):
        model = t5(**self.SIZES)
        whole = throughput.StepFlops(model)(self.SHAPES)
        checkpoint_layers(model)
        self.assertEqual(throughput.StepFlops(model.train())(self.SHAPES), whole)

    @parameterized.parameters("sdpa", "eager", "flex_attention")
    def test_attention_counts_whatever_computes_it(self, implementation):
        model = t5(**self.SIZES)
        model.config._attn_implementation = implementation
        self.assertEqual(throughput.ForwardFlops(model)(self.SHAPES), 2 * t5_formula(model.config, 24, 7))


class PeakTest(parameterized.TestCase):
    @parameterized.parameters(*throughput.PEAK_FLOPS.items())
    def test_every_device_of_the_table_is_found_by_its_own_entry(self, name, peak):
        self.assertEqual(throughput.peak_of_name(f"NVIDIA {name}"), peak)

    def test_unknown_and_given(self):
        self.assertIsNone(throughput.peak_flops(torch.device("cpu")))
        self.assertIsNone(throughput.utilisation(1e12, None))
        self.assertEqual(throughput.utilisation(1e12, throughput.peak_flops(torch.device("cpu"), 2)), 0.5)

    def test_docstrings(self):
        base = t5(d_model=768, d_ff=2048, num_layers=12, num_heads=12, feed_forward_proj="gated-gelu")
        runner = doctest.DocTestRunner()
        for test in doctest.DocTestFinder().find(throughput, extraglobs={"t5_v1_1_base": base}):
            if "StepMonitor" not in test.name:
                runner.run(test)
        self.assertGreater(runner.tries, 4)
        self.assertEqual(runner.failures, 0)


if __name__ == "__main__":
    absltest.main()
