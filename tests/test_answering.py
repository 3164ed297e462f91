"""Answers: rows of many lengths together are answered and scored as each alone, by the quick ways as by the plain ones."""

import copy
import dataclasses
import functools
import itertools
import typing
from types import SimpleNamespace
from unittest import mock

import datasets
import family_worker
import numpy as np
import pytest
import torch
import transformers
from absl.testing import parameterized
from transformers import GenerationConfig, MistralConfig, MistralForCausalLM

from t5suite import load_task
from t5suite.data.batches.collators import UNKNOWN_LABEL, SegmentCollator
from t5suite.data.batches.encodings import TextEncoding
from t5suite.models.answering import answerer
from t5suite.models.answering.answerer import AnswerSettings, split_answers
from t5suite.models.answering.causal import CausalAnswerer
from t5suite.models.answering.greedy import decodes_greedily
from t5suite.models.answering.heads import HeadAnswerer
from t5suite.models.families import FAMILIES, recognize_family
from t5suite.models.t5 import candidate_tree
from t5suite.tasks.task_card import HEADED, make_task_card
from t5suite.tasks.tokenization import Lengths
from t5suite.testing import exits_with, make_task, tiny_tokenizer, tiny_tuner
from t5suite.training.eval_sets import make_eval_set, widen_for_trained_answers, widen_for_training_targets
from t5suite.training.flags.model import ModelArguments

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


def answerer_of(model, settings=None):
    return recognize_family(model).make_answerer(model, tiny_tokenizer(), settings)


class FamiliesTest(parameterized.TestCase):
    def test_the_flag_and_task_cards_know_every_family(self):
        (flag,) = (field for field in dataclasses.fields(ModelArguments) if field.name == "model_family")
        self.assertEqual(typing.get_args(flag.type), ("auto", *FAMILIES))
        self.assertEqual(HEADED, tuple(name for name, family in FAMILIES.items() if family.has_head))


class AnswerLengthTest(parameterized.TestCase):
    """How many tokens an answer may have: cut short, a wrong one may become a right one."""

    QUESTION = {"question": "Who won?", "context": "Ann won."}
    RECORD = {
        "query": "@placeholder won.",
        "passage": "Ann won.\n@highlight\nShe won.",
        "idx": {"passage": 0, "query": 0},
    }
    TEXTS = {"labels": None, "metric_names": ["bleu"], "metric_to_optimize": "bleu"}

    def set_of(self, task, rows, role="validation"):
        encoding = TextEncoding(tiny_tokenizer(), Lengths(64, 64))
        return make_eval_set(task.name, task, role, datasets.Dataset.from_list(rows), encoding)

    def tokens(self, *texts) -> int:
        return max(len(tiny_tokenizer()(text)["input_ids"]) for text in texts)

    def test_it_is_that_of_the_longest_label_reference_or_candidate_of_any_row(self):
        rte, squad, record = load_task("glue", "rte"), load_task("squad", "squad"), load_task("super_glue", "record")
        pair = {"sentence1": "It rains.", "sentence2": "It is wet.", "label": 0, "idx": 0}
        self.assertEqual(self.set_of(rte, [pair]).max_target_tokens, self.tokens("entailment", "not_entailment"))
        answers = [["Ann"], ["Ann", "Ann, her mother and her father"], ["She"]]
        rows = [{**self.QUESTION, "answers": {"text": texts, "answer_start": [0] * len(texts)}} for texts in answers]
        self.assertEqual(self.set_of(squad, rows).max_target_tokens, self.tokens(answers[1][1]))
        long_text = "a rather long text of many words"
        rows = [{"text": "Write.", "label": text} for text in ("a word", long_text, "it")]
        self.assertEqual(self.set_of(make_task(**self.TEXTS), rows).max_target_tokens, self.tokens(long_text))
        entities = (["Ann", "The old man of the village"], ["Bob"])
        hidden = [{**self.RECORD, "entities": names, "answers": []} for names in entities]
        self.assertEqual(self.set_of(record, hidden, "test").max_target_tokens, self.tokens(entities[0][1]))
        rows = [{"text": "Write.", "label": None}]
        self.assertEqual(self.set_of(make_task(**self.TEXTS), rows, "test").max_target_tokens, 64)

    def test_a_row_without_anything_to_choose_is_named(self):
        rows = [{**self.RECORD, "entities": names, "answers": []} for names in (["Ann"], [])]
        encoding = TextEncoding(tiny_tokenizer(), Lengths(64, 64))
        with exits_with(65, "super_glue/record: row 1: column 'entities' holds no candidate"):
            make_eval_set(
                "record",
                load_task("super_glue", "record"),
                "validation",
                datasets.Dataset.from_list(rows),
                encoding,
                "score",
            )

    def test_free_text_may_be_as_long_as_what_the_model_has_learned_and_a_label_as_long_as_a_label(self):
        free, closed, others = make_task("free", **self.TEXTS), make_task("closed"), make_task("others", **self.TEXTS)
        sets = [SimpleNamespace(task=task, max_target_tokens=5) for task in (free, closed, others)]
        learned = [
            SimpleNamespace(labels=SimpleNamespace(lengths=np.array(lengths))) for lengths in ([3, 9, 4], [8], [2])
        ]
        widen_for_training_targets(sets, [SimpleNamespace(task=part.task) for part in sets], learned)
        self.assertEqual([part.max_target_tokens for part in sets], [9, 5, 5])
        card = make_task_card([free, closed], Lengths(64, 64), {"free": 12, "closed": 20})
        widen_for_trained_answers(sets, card)
        self.assertEqual([part.max_target_tokens for part in sets], [12, 5, 5])
        # One set of the user's own rows may have another file's name now.
        widen_for_trained_answers(sets, make_task_card([free], Lengths(64, 64), {"reviews": 30}))
        self.assertEqual([part.max_target_tokens for part in sets], [30, 5, 30])
        widen_for_trained_answers(sets, None)
        self.assertEqual([part.max_target_tokens for part in sets], [30, 5, 30])


class CausalAnswersTest(parameterized.TestCase):
    @parameterized.parameters(*CAUSAL)
    @pytest.mark.quick_cases(1)
    def test_prompts_of_many_lengths_together_are_answered_as_alone(self, name):
        """Left padding, and positions that follow it: the same tokens, and the same log-probabilities."""
        model = model_of(name)
        answerer = answerer_of(model)
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
    @pytest.mark.quick_cases(1)
    def test_candidates_are_scored_as_by_one_forward_each(self, name):
        model = model_of(name)
        candidates = [[[9, 1], [30, 31, 32, 1], [7, 1]][: 2 + i % 2] for i in range(len(PROMPTS))]
        with torch.no_grad():
            all_scores = answerer_of(model).candidate_scores(PROMPTS, candidates)
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
    return answerer_of(model.eval()).read(features)


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
    @pytest.mark.quick_cases(1)
    def test_scores_and_loss_of_a_batch_equal_those_of_its_pairs_alone(self, name):
        reading = reading_of(model_of(name))
        with torch.no_grad():
            scores = reading.candidate_scores(CANDIDATES)
            self.assert_scores_close(scores, read_for_each(reading))
            alone = [reading.answerer.answer_nll([pair])[0] for pair in zip(PROMPTS, LABELS, strict=True)]
            self.assert_scores_close([reading.nll], [alone])
        self.assertEqual(reading.tokens, [len(labels) for labels in LABELS])

    @parameterized.parameters("lora", "prompt_tuning", "prefix")
    @pytest.mark.quick_cases(2)
    def test_adapters_change_no_score(self, kind):
        virtual_tokens = {} if kind == "lora" else {"adapter_args": "num_virtual_tokens=3"}
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
        reading = answerer_of(model).read([{"input_ids": [], "labels": [5, 6, 7]}])
        with torch.no_grad():
            log_p = model(torch.tensor([[5, 6, 7]])).logits.log_softmax(-1)[0]
            self.assertAlmostEqual(reading.nll[0], -float(log_p[0, 6] + log_p[1, 7]), places=4)
        self.assertEqual(reading.tokens, [2])


# One begins another, two are equal, one has no tokens in common with the rest, one is longer than all.
CANDIDATES_OF_T5 = [[3, 7, 8, 1], [3, 9, 1], [4, 1], [3, 7, 1], [3, 9, 1], [5, 5, 5, 5, 5, 5, 5, 5, 1]]
LENGTHS_OF_ROWS = (30, 17, 29, 4, 1)
# How large the end of sequence is written, so that rows end at different lengths.
END_WEIGHTS = {"t5": 6.0, "mt5": 12.0, "umt5": 2.0}
T5_TYPES = tuple(itertools.product(("t5", "mt5", "umt5"), (True, False)))


@functools.cache
def tiny_t5(model_type="t5", tied=True, dtype=torch.float64):
    """A T5 whose attention is far from uniform, so that a wrong distance or mask shows."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        model_type, vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=3, num_heads=4, decoder_start_token_id=0
    )
    model = transformers.AutoModelForSeq2SeqLM.from_config(config).eval().to(dtype)
    model.config.tie_word_embeddings = tied
    if model_type == "t5":
        model.config.scale_decoder_outputs = tied
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(2.0 if ".q." in name or "relative" in name else 1.0)
        model.lm_head.weight[1] *= END_WEIGHTS[model_type]
    return model


def reading_of_t5(model, quick=True, trees=True, labels=None):
    """Rows of differing lengths, one a single token."""
    rng = np.random.default_rng(0)
    disabled = frozenset(name for name, is_on in (("quick_decoding", quick), ("candidate_trees", trees)) if not is_on)
    answerer = answerer_of(model, AnswerSettings(disabled_paths=disabled))
    labels = labels or [[3, 9, 1]] * len(LENGTHS_OF_ROWS)
    return answerer.read(
        [
            {"input_ids": rng.integers(2, 60, length), "labels": label}
            for length, label in zip(LENGTHS_OF_ROWS, labels, strict=True)
        ]
    )


def greedy(most=12, **settings):
    return transformers.GenerationConfig(
        max_new_tokens=most, num_beams=1, do_sample=False, eos_token_id=1, pad_token_id=0, decoder_start_token_id=0,
        **settings,
    )  # fmt: skip


def written(answers):
    """Ids up to the first end of sequence."""
    ids = [of_row[0][0] for of_row in answers]
    return [row[: row.index(1) + 1] if 1 in row else row for row in ids]


def generates(model):
    return mock.patch.object(type(model), "generate", autospec=True, side_effect=type(model).generate)


class TreeScoresTest(parameterized.TestCase):
    @parameterized.parameters(*T5_TYPES)
    @torch.no_grad()
    @pytest.mark.quick_cases(1)
    def test_scores_equal_those_of_candidates_one_by_one(self, model_type, tied):
        model = tiny_t5(model_type, tied)
        scores = reading_of_t5(model).candidate_scores([CANDIDATES_OF_T5] * 5)
        expected = reading_of_t5(model, trees=False).candidate_scores([CANDIDATES_OF_T5] * 5)
        np.testing.assert_allclose(scores, expected, rtol=1e-6)  # logits are taken to float32
        self.assertGreater(np.ptp(np.array(scores), axis=0).min(), 1e-3)  # rows differ, so that they cannot be mixed up

    @torch.no_grad()
    def test_rows_with_candidates_of_their_own_are_scored_as_one_by_one_however_many_are_read_at_once(self):
        """A bias in every layer, and trees of differing sizes."""
        model = tiny_t5("umt5", False)
        candidates = [CANDIDATES_OF_T5[: 1 + row] for row in range(len(LENGTHS_OF_ROWS))]
        expected = reading_of_t5(model, trees=False).candidate_scores(candidates)
        for attended_at_once in (candidate_tree.ATTENDED_AT_ONCE, 2 * 30 * 5):
            with mock.patch.object(candidate_tree, "ATTENDED_AT_ONCE", attended_at_once):
                scores = reading_of_t5(model).candidate_scores(candidates)
            for row, expected_row in zip(scores, expected, strict=True):
                np.testing.assert_allclose(row, expected_row, rtol=1e-6)

    def test_pairs_are_scored_in_chunks_and_a_rank_that_has_fewer_scores_its_first_again(self):
        chunks = []

        def score(chunk):
            chunks.append(chunk)
            return [10 * example + place for example, place in chunk]

        with mock.patch.object(answerer, "SCORED_TOKENS_AT_ONCE", 7):
            scores = answerer.score_pairs([["a", "b"], [], ["c", "d", "e"]], score, 3, lambda count: count + 1)
        self.assertEqual(scores, [[0, 1], [], [20, 21, 22]])
        self.assertEqual(chunks, [[(0, 0), (0, 1)], [(2, 0), (2, 1)], [(2, 2)], [(0, 0)]])


class GreedyTest(parameterized.TestCase):
    @torch.no_grad()
    def test_the_loss_of_what_it_has_written_is_that_of_the_plain_way(self):
        """Answers end at different lengths, and some rows have another target."""
        model = tiny_t5("umt5", False)
        answers = reading_of_t5(model, quick=False).generate(greedy(6))
        targets = written(answers)
        self.assertGreater(len(set(map(len, targets))), 1)
        targets[1] = [3, 9, 1]
        reading = reading_of_t5(model, labels=targets)
        self.assertEqual(written(reading.generate(greedy(6))), written(answers))
        np.testing.assert_allclose(reading.nll, reading_of_t5(model, labels=targets).nll, rtol=1e-6)
        self.assertEqual(reading.tokens, list(map(len, targets)))

    @torch.no_grad()
    @pytest.mark.slow
    def test_log_probabilities_of_beams_are_those_of_the_answers_up_to_their_ends(self):
        model, beams = tiny_t5(), greedy(6, return_dict_in_generate=True, output_scores=True)
        beams.num_beams, beams.num_return_sequences = 3, 2
        answers = reading_of_t5(model).generate(beams)
        ids = [[written([[answer]])[0] for answer in of_row] for of_row in answers]
        self.assertGreater(len({len(row) for of_row in ids for row in of_row}), 1)
        expected = reading_of_t5(model, trees=False).candidate_scores(ids)
        np.testing.assert_allclose([[total for _, total in of_row] for of_row in answers], expected, rtol=1e-5)

    @parameterized.parameters(*zip(T5_TYPES, itertools.cycle((40, 4, 1))))
    @pytest.mark.slow
    def test_it_writes_what_generate_writes(self, kind, most):
        self.check(kind, most)

    @parameterized.product(kind=T5_TYPES, most=(1, 4, 40))
    @pytest.mark.slow
    def test_so_it_does_however_long_answers_are(self, kind, most):
        self.check(kind, most)

    @torch.no_grad()
    def check(self, kind, most):
        model = tiny_t5(*kind)
        with generates(model) as generate:
            answers = reading_of_t5(model).generate(greedy(most))
            self.assertFalse(generate.called)
            expected = reading_of_t5(model, quick=False).generate(greedy(most))
            self.assertTrue(generate.called)
        self.assertEqual(written(answers), written(expected))
        self.assertEqual([ids for [(ids, _)] in answers], written(answers))  # nothing behind the end

    @parameterized.parameters(
        {"num_beams": 2}, {"repetition_penalty": 1.3}, {"min_length": 3}, {"no_repeat_ngram_size": 2},
        {"forced_eos_token_id": 1}, {"suppress_tokens": [5]}, {"eos_token_id": 2}, {"num_return_sequences": 2},
        {"bad_words_ids": [[5]]}, {"max_new_tokens": None}, {"output_scores": True},
    )  # fmt: skip
    def test_what_is_not_plainly_greedy_is_left_to_generate(self, **settings):
        model = tiny_t5()
        self.assertTrue(decodes_greedily(model, greedy(), 1, 0))
        config = greedy()
        for name, value in settings.items():
            setattr(config, name, value)
        self.assertFalse(decodes_greedily(model, config, 1, 0))
        config_of_model = transformers.GenerationConfig(eos_token_id=1)
        for name, value in settings.items():
            setattr(config_of_model, name, value)
        with mock.patch.object(model, "generation_config", config_of_model):
            idle = {"num_beams", "eos_token_id", "max_new_tokens"}  # the call says these
            self.assertEqual(decodes_greedily(model, greedy(), 1, 0), settings.keys() <= idle)

    @parameterized.parameters({"encoder_no_repeat_ngram_size": 1}, {"encoder_repetition_penalty": 0.5})
    @torch.no_grad()
    def test_the_model_s_own_settings_for_repeating_the_input_act(self, **settings):
        """As where transformers encodes the input itself."""
        model = tiny_t5()
        reading = reading_of_t5(model)
        plain = written(reading.generate(greedy(6)))
        config_of_model = transformers.GenerationConfig(eos_token_id=1, decoder_start_token_id=0, **settings)
        with mock.patch.object(model, "generation_config", config_of_model):
            answers = reading.generate(greedy(6))
            expected = model.generate(
                input_ids=reading.ids_BS, attention_mask=reading.mask_BS, generation_config=greedy(6)
            )
        self.assertEqual(written(answers), written([[(ids[1:], None)] for ids in expected.tolist()]))
        self.assertNotEqual(written(answers), plain)


class TakenApartTest(parameterized.TestCase):
    def test_other_models_keep_to_their_own_forward(self):
        bart = transformers.BartForConditionalGeneration(
            transformers.BartConfig(
                vocab_size=20, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                decoder_attention_heads=2,
            )
        )  # fmt: skip
        self.assertFalse(answerer_of(bart).calls_parts)
        self.assertTrue(answerer_of(tiny_t5()).calls_parts)
        self.assertFalse(answerer_of(tiny_t5(dtype=torch.float16)).calls_parts)


class EndTest(parameterized.TestCase):
    def test_what_stands_behind_any_of_several_end_tokens_has_no_probability(self):
        model = SimpleNamespace(
            generation_config=SimpleNamespace(eos_token_id=[1, 5]),
            compute_transition_scores=lambda *generated, **settings: torch.tensor([[-1.0, -2.0, -4.0]] * 2),
        )
        causal = CausalAnswerer(model, tiny_tokenizer(), None, None, AnswerSettings())
        generated = SimpleNamespace(sequences=torch.tensor([[0, 7, 5, 0], [0, 7, 6, 6]]), scores=None)
        self.assertEqual(split_answers(causal, generated, 1, 2), [[([7, 5, 0], -3.0)], [([7, 6, 6], -7.0)]])


class HeadTest(parameterized.TestCase):
    def read(self, logits, labels, problem_type="single_label_classification"):
        """A reading of rows of three tokens by a head with these outputs."""
        model = mock.Mock(return_value=SimpleNamespace(logits=torch.tensor(logits)))
        model.config.problem_type = problem_type
        head = HeadAnswerer(model, tiny_tokenizer(), SegmentCollator(0), "cpu", AnswerSettings())
        rows = [{"input_ids": [7, 8, 9], "labels": row} if row else {"input_ids": [7, 8, 9]} for row in labels]
        return head.read(rows)

    def test_a_number_s_loss_is_its_squared_difference_and_without_a_label_none(self):
        reading = self.read([[2.0], [5.0], [-1.5]], [[1.5], [5.0], [-100.0]], "regression")
        self.assertEqual((reading.nll, reading.tokens), ([0.25, 0.0, 0.0], [1, 1, 0]))
        self.assertEqual(reading.scores, [[2.0], [5.0], [-1.5]])

    def test_a_class_s_loss_is_in_nats_and_without_a_label_none(self):
        logits = np.log([[0.5, 0.25, 0.25], [0.125, 0.25, 0.625]]) + 3
        for labels, nll, tokens in (([[2], [1]], [np.log(4), np.log(4)], [1, 1]), ([None, None], [0, 0], [0, 0])):
            reading = self.read(logits.tolist(), labels)
            np.testing.assert_allclose(reading.nll, nll, rtol=1e-6)
            self.assertEqual(reading.tokens, tokens)
            np.testing.assert_allclose(reading.scores, logits - 3, rtol=1e-5)

    def test_words_are_scored_at_their_first_tokens_and_those_with_an_unknown_label_count_for_nothing(self):
        shares = np.array([[[0.5, 0.5], [0.25, 0.75], [0.875, 0.125]], [[0.125, 0.875], [0.5, 0.5], [0.25, 0.75]]])
        reading = self.read(np.log(shares).tolist(), [[0, -100, 1], [1, UNKNOWN_LABEL, -100]])
        np.testing.assert_allclose(reading.nll, [np.log(2) + np.log(8), -np.log(0.875)], rtol=1e-6)
        self.assertEqual(reading.tokens, [2, 1])
        for scores, words in zip(reading.scores, (shares[0, [0, 2]], shares[1, [0, 1]]), strict=True):
            np.testing.assert_allclose(np.exp(scores), words, rtol=1e-6)
