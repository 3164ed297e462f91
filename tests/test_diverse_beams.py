"""Diverse beam search equals plain search where it should, and a search written down word for word elsewhere."""

import collections
import functools
from unittest import mock

import pytest
import torch
from absl.testing import parameterized
from tiny_predictor import mini_rows, random_model
from transformers import GenerationConfig

from t5suite import load_task
from t5suite.inference.decoding import generation_options
from t5suite.inference.decoding_settings import DecodingSettings
from t5suite.inference.diverse_beams import GroupSearch, diverse_beam_search
from t5suite.testing import tiny_tokenizer

STEPS = 5
TOKENIZER = tiny_tokenizer()


@functools.cache
def model():
    return random_model().eval()


def prompts(count=3):
    task = load_task("mini", "sentiment")
    return TOKENIZER([task.examples(row)[0].inputs for row in mini_rows(count=count)]).input_ids


@functools.cache
def answers_of_four_beams():
    inputs = TOKENIZER.pad({"input_ids": prompts()}, return_tensors="pt")
    return model().generate(**inputs, generation_config=config(4))


def common_token():
    """One that answers often hold early, so that as the end token it ends many of them."""
    return collections.Counter(answers_of_four_beams()[:, 2].tolist()).most_common(1)[0][0]


def plain_search(settings):
    inputs = TOKENIZER.pad({"input_ids": prompts()}, return_tensors="pt")
    written = model().generate(inputs["input_ids"], attention_mask=inputs["attention_mask"], generation_config=settings)
    return trimmed(written, settings.eos_token_id)


def config(num_beams, num_return_sequences=None, **settings):
    settings = {"eos_token_id": model().config.eos_token_id, **settings}
    return GenerationConfig(
        num_beams=num_beams, num_return_sequences=num_return_sequences or num_beams, max_new_tokens=STEPS,
        do_sample=False, pad_token_id=model().config.pad_token_id,
        decoder_start_token_id=model().config.decoder_start_token_id, **settings,
    )  # fmt: skip


def trimmed(sequences, eos):
    pad = model().config.pad_token_id
    rows = []
    for ids in sequences.tolist():
        ids = ids[1:]
        rows.append(ids[: ids.index(eos) + 1] if eos in ids else [token for token in ids if token != pad])
    return rows


def until_an_end(sequences, ends) -> list[list[int]]:
    """Each answer to its first end token; what follows is padding."""
    answers = []
    for ids in sequences.tolist():
        places = [place for place, token in enumerate(ids) if token in ends]
        answers.append(ids[1 : places[0] + 1] if places else ids[1:])
    return answers


def searched(groups, penalty, settings, padded=True):
    """The answers of our search; a batch of all rows, or one by one."""
    collected = []
    rows = prompts()
    for batch in [rows] if padded else [[row] for row in rows]:
        inputs = TOKENIZER.pad({"input_ids": batch}, return_tensors="pt")
        written = model().generate(
            inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            generation_config=settings,
            custom_generate=diverse_beam_search(groups, penalty),
        )
        collected.extend(trimmed(written, settings.eos_token_id))
    return collected


def next_log_probs(prompt, ids):
    with torch.no_grad():
        logits = model()(torch.tensor([prompt]), decoder_input_ids=torch.tensor([ids])).logits
    return logits[0, -1].log_softmax(-1)


def searched_word_for_word(prompt, groups, penalty, eos):
    """Groups of one beam each, without batches, caches or tensors of state; the best first."""
    beams = [([model().config.decoder_start_token_id], 0.0) for _ in range(groups)]
    answers = [None] * groups
    for step in range(1, STEPS + 1):
        chosen = []
        for group, (ids, total) in enumerate(beams):
            if answers[group] is not None:
                continue
            scores = next_log_probs(prompt, ids) + total
            for token in chosen:
                scores[token] -= penalty
            order = scores.argsort(descending=True)[:2].tolist()
            if order[0] == eos:
                chosen.append(eos)
                answers[group] = (float(scores[eos]) / step, [*ids, eos])
                order = order[1:]
            token = next(token for token in order if token != eos)
            if answers[group] is None:
                chosen.append(token)
            beams[group] = ([*ids, token], float(scores[token]))
    for group, (ids, total) in enumerate(beams):
        answers[group] = answers[group] or (total / STEPS, ids)
    return [ids[1:] for _, ids in sorted(answers, key=lambda answer: -answer[0])]


class OptionsTest(parameterized.TestCase):
    @parameterized.parameters((None, True, None), (None, False, 5), (3, True, 3), (3, False, 3), (0, False, 0))
    def test_the_shortest_answer_is_the_flag_s_and_else_the_model_s_own_in_free_text_alone(self, flag, plain, expected):
        decoding = DecodingSettings(min_new_tokens=flag)
        with mock.patch.object(model().generation_config, "min_new_tokens", 5):
            options = generation_options(decoding, model(), 9, [(0, 0)], plain=plain)
        self.assertEqual(options["generation_config"].min_new_tokens, expected)

    def test_a_shortest_length_that_would_count_the_prompt_and_its_padding_is_not_heeded(self):
        for family, expected in (("seq2seq", 5), ("causal", None)):
            writer = random_model(family)
            with mock.patch.object(writer.generation_config, "min_length", 5):
                options = generation_options(DecodingSettings(), writer, 9, [(0, 0)])
            self.assertEqual(options["generation_config"].min_length, expected)


class DiverseBeamSearchTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        model()

    @parameterized.parameters((1, 0, {1}, 0), ([7, 9], None, {7, 9}, 7), (1, None, {1}, 1), (None, None, set(), 0))
    def test_end_tokens_and_padding_are_those_of_the_settings(self, eos, pad, ends, padding):
        settings = GenerationConfig(num_beams=2, max_length=4, eos_token_id=eos, pad_token_id=pad)
        search = GroupSearch(torch.zeros(2, 1, dtype=torch.long), 1, 0.0, settings)
        self.assertEqual((search.eos, search.pad), (ends, padding))

    @parameterized.product(num_beams=[1, 2, 4], ends_early=[False, True])
    def test_one_group_is_plain_beam_search(self, num_beams, ends_early):
        settings = config(num_beams, **({"eos_token_id": common_token()} if ends_early else {}))
        self.assertEqual(searched(1, 0.0, settings), plain_search(settings))

    @parameterized.parameters(True, False)
    def test_one_group_ends_when_plain_beam_search_does_whatever_token_ends_an_answer(self, early_stopping):
        """Where length does not count, a long answer can still overtake the last of a group that has all its ends."""
        tokens = collections.Counter(answers_of_four_beams()[:, 1:].flatten().tolist())
        for token, _ in tokens.most_common(12):
            settings = config(2, eos_token_id=token, length_penalty=0.0, early_stopping=early_stopping)
            self.assertEqual(searched(1, 0.0, settings), plain_search(settings), token)

    @parameterized.product(num_beams=[2, 3, 4], length_penalty=[0.0, -1.0])
    @pytest.mark.quick_cases(1)
    def test_an_end_that_ranks_below_the_beams_is_no_answer_as_in_plain_beam_search(self, num_beams, length_penalty):
        """The best token ends an answer, and so would the first one below the beams, which a short answer lets win."""
        start = [model().config.decoder_start_token_id]
        for prompt in prompts(2):
            ranked = next_log_probs(prompt, start).argsort(descending=True).tolist()
            best, below = ranked[0], ranked[num_beams]
            settings = config(num_beams, eos_token_id=[best, below], length_penalty=length_penalty)
            inputs = torch.tensor([prompt])
            expected = model().generate(inputs, generation_config=settings)
            search = diverse_beam_search(1, 0.0)
            answers = model().generate(inputs, generation_config=settings, custom_generate=search)
            self.assertEqual(until_an_end(answers, (best, below)), until_an_end(expected, (best, below)))
            first_tokens = answers[:, 1].tolist()
            self.assertIn(best, first_tokens)
            self.assertNotIn(below, first_tokens)

    @parameterized.product(groups_and_penalty=[(4, 1.0), (2, 0.5), (8, 0.5)], ends_early=[False, True])
    @pytest.mark.quick_cases(1)
    def test_groups_of_one_equal_a_search_written_word_for_word(self, groups_and_penalty, ends_early):
        groups, penalty = groups_and_penalty
        settings = config(groups, **({"eos_token_id": common_token()} if ends_early else {}))
        eos = settings.eos_token_id
        expected = [ids for prompt in prompts() for ids in searched_word_for_word(prompt, groups, penalty, eos)]
        answers = searched(groups, penalty, settings)
        self.assertEqual(answers, expected)
        if ends_early:
            self.assertIn(eos, [ids[-1] for ids in answers])

    def test_a_token_that_two_beams_of_a_group_have_chosen_costs_later_groups_twice(self):
        """Equation 5 of arXiv:1610.02424 counts how often earlier groups chose it."""
        settings = GenerationConfig(num_beams=4, max_length=9, pad_token_id=0)
        search = GroupSearch(torch.zeros(4, 1, dtype=torch.long), 2, 1.0, settings)
        search.advance(torch.tensor([[-10.0, -1.0, -1.2, -9.0, -9.0]]).repeat(4, 1))
        search.advance(torch.tensor([[-10.0, -10.0, -10.0, -0.1, -1.6]]).repeat(4, 1))
        self.assertEqual(search.ids[:, 1:].tolist(), [[1, 3], [2, 3], [1, 4], [2, 4]])

    def test_the_settings_of_a_command_are_those_of_the_search(self):
        settings = DecodingSettings(num_beams=2, num_beam_groups=2, diversity_penalty=2.5, num_return_sequences=2)
        inputs = TOKENIZER.pad({"input_ids": prompts()}, return_tensors="pt")
        answers = model().generate(**inputs, **generation_options(settings, model(), STEPS, draws=[]))
        self.assertEqual(trimmed(answers, 1), searched(2, 2.5, config(2)))
        self.assertNotEqual(trimmed(answers, 1), searched(2, 0.0, config(2)))

    def test_answers_do_not_depend_on_the_batch(self):
        self.assertEqual(searched(2, 0.5, config(4)), searched(2, 0.5, config(4), padded=False))
