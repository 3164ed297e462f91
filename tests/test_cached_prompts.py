"""A decoder-only model reads a prompt once for all its candidates, with the scores of reading it for each."""

import copy
import functools
import types
from unittest import mock

import family_worker
import torch
from absl.testing import absltest, parameterized
from test_families import CAUSAL, PROMPTS
from transformers import DynamicCache, MistralConfig, MistralForCausalLM

from t5suite.models.adapters import adapted
from t5suite.models.answering import answerer_for, read_prompts, rows_of
from t5suite.tasks.registry import load_task

CANDIDATES = [[[9, 1], [30, 31, 32, 1], [7], [8, 1]][: 2 + i % 3] for i in range(len(PROMPTS))]
LABELS = [[30 + i % 5, 1][: 1 + i % 2] for i in range(len(PROMPTS))]
MODELS = [*CAUSAL, "mistral with a window"]


@functools.cache
def model_of(name):
    if name != "mistral with a window":
        return family_worker.tokenizer_and_model(name, load_task("mini", "entailment"))
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, vocab_size=128)
    config = MistralConfig(**sizes, num_key_value_heads=1, sliding_window=8, pad_token_id=0, eos_token_id=1)
    return family_worker.tokenizer_and_model("gpt2", load_task("mini", "entailment"))[0], MistralForCausalLM(config)


def reading_of(name, model=None):
    """Prompts of 3 to 48 tokens with labels, not yet read."""
    tokenizer, plain = model_of(name)
    answerer = answerer_for((model or plain).eval(), tokenizer)
    pairs = zip(PROMPTS, LABELS, strict=True)
    return answerer.read([{"input_ids": prompt, "labels": labels} for prompt, labels in pairs])


def read_for_each(reading):
    """The slow way: every pair of prompt and candidate, read whole."""
    answerer, pairs = reading.answerer, zip(PROMPTS, CANDIDATES, strict=True)
    return [[-answerer.answer_nll([(prompt, ids)])[0] for ids in of_row] for prompt, of_row in pairs]


class CachedPromptsTest(parameterized.TestCase):
    def assert_scores_close(self, found, expected):
        for mine, other in zip(found, expected, strict=True):
            for a, b in zip(mine, other, strict=True):
                self.assertAlmostEqual(a, b, delta=2e-5 * max(1.0, abs(b)))

    @parameterized.parameters(*MODELS)
    def test_scores_and_loss_equal_those_of_prompts_read_for_each_candidate(self, name):
        reading = reading_of(name)
        with torch.no_grad():
            found = reading.candidate_scores(CANDIDATES)
            self.assertIsNotNone(reading.cached)
            self.assert_scores_close(found, read_for_each(reading))
            alone = reading_of(name)
            self.assert_scores_close([reading.nll], [alone.nll])
            self.assertIsNone(alone.cached)
        self.assertEqual(reading.tokens, [len(labels) for labels in LABELS])

    @parameterized.parameters("lora", "prompt_tuning", "prefix")
    def test_adapters_change_no_score(self, kind):
        tokenizer, plain = model_of("gpt2")
        given = {} if kind == "lora" else {"num_virtual_tokens": 3}
        model = adapted(copy.deepcopy(plain), tokenizer, kind, given)
        reading = reading_of("gpt2", model)
        with torch.no_grad():
            self.assert_scores_close(reading.candidate_scores(CANDIDATES), read_for_each(reading))
        self.assertEqual(reading.cached is None, kind == "prefix")

    @parameterized.parameters(4, 100, 32768)
    def test_chunks_change_no_score(self, at_once):
        reading = reading_of("gpt2")
        with torch.no_grad(), mock.patch("t5suite.models.seq2seq_answering.SCORED_TOKENS_AT_ONCE", at_once):
            found = reading.candidate_scores(CANDIDATES)
            self.assert_scores_close(found, read_for_each(reading))

    def test_every_prompt_is_read_once(self):
        reading = reading_of("gpt2")
        columns = []
        handle = reading.answerer.model.register_forward_pre_hook(
            lambda module, args, given: columns.append(tuple(given["input_ids"].shape)), with_kwargs=True
        )
        with torch.no_grad():
            reading.candidate_scores(CANDIDATES)
            reading.nll  # noqa: B018
        handle.remove()
        self.assertEqual(columns[0], (len(PROMPTS), max(map(len, PROMPTS))))
        self.assertLessEqual(max(width for _, width in columns[1:]), 3)

    def test_a_model_that_keeps_something_else_is_read_for_each(self):
        class Forgetful(torch.nn.Module):
            def __init__(self, inner):
                super().__init__()
                self.inner, self.config, self.device = inner, inner.config, inner.device

            def forward(self, input_ids, attention_mask, position_ids=None, logits_to_keep=0, use_cache=False):
                given = {"attention_mask": attention_mask, "position_ids": position_ids}
                outputs = self.inner(input_ids, **given, logits_to_keep=logits_to_keep, use_cache=False)
                return types.SimpleNamespace(logits=outputs.logits, past_key_values=None)

        tokenizer, plain = model_of("gpt2")
        answerer = answerer_for(Forgetful(plain), tokenizer, family="causal")
        with torch.no_grad():
            found = answerer.candidate_scores(PROMPTS, CANDIDATES)
        self.assertFalse(answerer.keeps_prompts)
        with torch.no_grad():
            self.assert_scores_close(found, reading_of("gpt2").candidate_scores(CANDIDATES))

    def test_text_without_a_prompt_is_read_whole_and_its_first_token_counts_for_nothing(self):
        tokenizer, model = model_of("gpt2")
        reading = answerer_for(model, tokenizer).read([{"input_ids": [], "labels": [5, 6, 7]}])
        with torch.no_grad():
            log_p = model(torch.tensor([[5, 6, 7]])).logits.log_softmax(-1)[0]
            self.assertAlmostEqual(reading.nll[0], -float(log_p[0, 6] + log_p[1, 7]), places=4)
            reading.candidate_scores([[[5, 6, 7]]])
        self.assertEqual(reading.tokens, [2])
        self.assertIsNone(reading.cached)

    def test_rows_of_a_cache_leave_it_as_it_is(self):
        _, model = model_of("gpt2")
        ids = torch.tensor([[5, 6, 7], [0, 8, 9]])
        with torch.no_grad():
            cached = read_prompts(model, {"input_ids": ids, "attention_mask": ids.ne(0).long()})
        before = [layer.keys.clone() for layer in cached.cache.layers]
        picked = rows_of(cached.cache, torch.tensor([1, 1, 0]))
        picked.update(*[torch.ones(3, *before[0].shape[1:2], 1, before[0].shape[-1])] * 2, 0)
        self.assertIsInstance(picked, DynamicCache)
        self.assertEqual(picked.layers[0].keys.shape[:3:2], (3, 4))
        for layer, keys in zip(cached.cache.layers, before, strict=True):
            torch.testing.assert_close(layer.keys, keys, rtol=0, atol=0)


if __name__ == "__main__":
    absltest.main()
