"""Answers of decoders: rows of many lengths together are answered and scored as each alone."""

import copy
import functools

import family_worker
import torch
from absl.testing import parameterized
from transformers import GenerationConfig, MistralConfig, MistralForCausalLM

from t5suite import load_task
from t5suite.models.answering import answerer_for
from t5suite.testing import tiny_tokenizer, tiny_tuner

PROMPTS = [[40 + i, *range(50, 51 + 3 * i), 9 + i] for i in range(16)]  # 3 to 48 tokens
CAUSAL = [name for name, (family, _) in family_worker.MODELS.items() if family == "causal"]
CANDIDATES = [[[9, 1], [30, 31, 32, 1], [7], [8, 1]][: 2 + i % 3] for i in range(len(PROMPTS))]
LABELS = [[30 + i % 5, 1][: 1 + i % 2] for i in range(len(PROMPTS))]
MODELS = [*CAUSAL, "mistral with a window"]


@functools.cache
def model_of(name):
    if name != "mistral with a window":
        return family_worker.model_of(name, load_task("mini", "entailment"))
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, vocab_size=128)
    config = MistralConfig(**sizes, num_key_value_heads=1, sliding_window=8, pad_token_id=0, eos_token_id=1)
    return MistralForCausalLM(config).eval()


class CausalAnswersTest(parameterized.TestCase):
    @parameterized.parameters(*CAUSAL)
    def test_prompts_of_many_lengths_together_are_answered_as_alone(self, name):
        """Left padding, and positions that follow it: the same tokens, and the same log-probabilities."""
        model = model_of(name)
        answerer = answerer_for(model, tiny_tokenizer())
        config = GenerationConfig(
            max_new_tokens=6, do_sample=False, return_dict_in_generate=True, output_scores=True, eos_token_id=None
        )
        with torch.no_grad():
            together = answerer.generate(PROMPTS, config)
            alone = [answerer.generate([prompt], config)[0] for prompt in PROMPTS]
        self.assertGreater(len({tuple(answers[0][0]) for answers in together}), 1)
        for a, b in zip(together, alone, strict=True):
            self.assertEqual(a[0][0], b[0][0])
            self.assertAlmostEqual(a[0][1], b[0][1], delta=1e-3)

    @parameterized.parameters(*CAUSAL)
    def test_candidates_are_scored_as_by_one_forward_each(self, name):
        model = model_of(name)
        candidates = [[[9, 1], [30, 31, 32, 1], [7, 1]][: 2 + i % 2] for i in range(len(PROMPTS))]
        with torch.no_grad():
            all_scores = answerer_for(model, tiny_tokenizer()).candidate_scores(PROMPTS, candidates)
            for prompt, ids, scores in zip(PROMPTS, candidates, all_scores, strict=True):
                for candidate, score in zip(ids, scores, strict=True):
                    log_p = model(torch.tensor([prompt + candidate])).logits.log_softmax(-1)[0]
                    places = range(len(prompt) - 1, len(prompt) + len(candidate) - 1)
                    expected = sum(float(log_p[t, token]) for t, token in zip(places, candidate, strict=True))
                    self.assertAlmostEqual(score, expected, delta=2e-4 * abs(expected))


def reading_of(model):
    """Prompts of 3 to 48 tokens with labels, not yet read."""
    pairs = zip(PROMPTS, LABELS, strict=True)
    features = [{"input_ids": prompt, "labels": labels} for prompt, labels in pairs]
    return answerer_for(model.eval(), tiny_tokenizer()).read(features)


def read_for_each(reading):
    """The slow way: every pair of prompt and candidate, read whole."""
    answerer, pairs = reading.answerer, zip(PROMPTS, CANDIDATES, strict=True)
    return [[-answerer.answer_nll([(prompt, ids)])[0] for ids in of_row] for prompt, of_row in pairs]


class CausalScoresTest(parameterized.TestCase):
    def assert_scores_close(self, scores, expected):
        for mine, other in zip(scores, expected, strict=True):
            for a, b in zip(mine, other, strict=True):
                self.assertAlmostEqual(a, b, delta=2e-5 * max(1.0, abs(b)))

    @parameterized.parameters(*MODELS)
    def test_scores_and_loss_of_a_batch_equal_those_of_its_pairs_alone(self, name):
        reading = reading_of(model_of(name))
        with torch.no_grad():
            scores = reading.candidate_scores(CANDIDATES)
            self.assert_scores_close(scores, read_for_each(reading))
            alone = [reading.answerer.answer_nll([pair])[0] for pair in zip(PROMPTS, LABELS, strict=True)]
            self.assert_scores_close([reading.nll], [alone])
        self.assertEqual(reading.tokens, [len(labels) for labels in LABELS])

    @parameterized.parameters("lora", "prompt_tuning", "prefix")
    def test_adapters_change_no_score(self, kind):
        virtual_tokens = {} if kind == "lora" else {"num_virtual_tokens": 3}
        tuner = tiny_tuner(
            copy.deepcopy(model_of("gpt2")),
            "mini/entailment",
            tokenizer=tiny_tokenizer(),
            adapter=kind,
            **virtual_tokens,
        )
        reading = reading_of(tuner.model)
        with torch.no_grad():
            self.assert_scores_close(reading.candidate_scores(CANDIDATES), read_for_each(reading))

    def test_text_without_a_prompt_is_read_whole_and_its_first_token_counts_for_nothing(self):
        model = model_of("gpt2")
        reading = answerer_for(model, tiny_tokenizer()).read([{"input_ids": [], "labels": [5, 6, 7]}])
        with torch.no_grad():
            log_p = model(torch.tensor([[5, 6, 7]])).logits.log_softmax(-1)[0]
            self.assertAlmostEqual(reading.nll[0], -float(log_p[0, 6] + log_p[1, 7]), places=4)
        self.assertEqual(reading.tokens, [2])
