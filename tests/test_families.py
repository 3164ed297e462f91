"""Laws of every family: what a batch weighs, how answers are written and scored, what is saved and loaded again."""

import copy
import functools
import tempfile

import family_worker
import law_worker
import pytest
import torch
from absl.testing import parameterized
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForMaskedLM,
    GenerationConfig,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
)

from t5suite import load_task
from t5suite.data.batches.collators import COLLATORS, CausalCollator, SegmentCollator, joined
from t5suite.data.batches.encodings import DEFAULT_SEPARATOR, PromptEncoding, SegmentEncoding, leading_ids, segments
from t5suite.models.adapters import adapted
from t5suite.models.answering import ANSWERERS, answerer_for
from t5suite.models.families import FAMILIES, Head, head_for
from t5suite.models.loading import ENCODINGS, encoding_for, load_model
from t5suite.tasks.registry import Lengths
from t5suite.testing import exits_with, tiny_tokenizer
from t5suite.training.fine_tuning import encoding_by_flags
from t5suite.training.flags.fine_tuning import DataArguments
from t5suite.training.losses import SquaredLoss, TokenLoss

RELATIVE = 5e-6
PROMPTS = [[40 + i, *range(50, 51 + 3 * i), 9 + i] for i in range(16)]  # 3 to 48 tokens
EVERY = [(name, name) for name in family_worker.MODELS]
CAUSAL = [name for name, (family, _) in family_worker.MODELS.items() if family == "causal"]


@functools.cache
def byte_tokenizer():
    """A tokenizer in GPT-2's manner: bytes, an end token, no padding token, nothing around a text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator(["answer: positive negative", "It was good and bad."] * 9, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<|endoftext|>", eos_token="<|endoftext|>")


@functools.cache
def word_tokenizer():
    """A tokenizer in BERT's manner: [CLS] and [SEP] around a text, segments numbered."""
    made = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made.train_from_iterator(["it rains . it is wet ."] * 3, trainers.WordLevelTrainer(special_tokens=special))
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **{f"{name}_token": token for name, token in names.items()},
    )


class TablesTest(parameterized.TestCase):
    def test_every_family_has_a_collator_an_encoding_and_an_answerer(self):
        for table in (COLLATORS, ENCODINGS, ANSWERERS):
            self.assertEqual(list(table), list(FAMILIES))


class EveryModelTest(parameterized.TestCase):
    @parameterized.named_parameters(*EVERY)
    @pytest.mark.slow
    def test_it_learns_answers_and_comes_back(self, name):
        whole, cut = family_worker.train_history(name, 8, 1), family_worker.train_history(name, 4, 2)
        for key in ("loss", "grad_norm"):
            self.assertLen(whole[key], 3)
            for a, b in zip(cut[key], whole[key], strict=True):
                self.assertLess(abs(a - b) / abs(b), RELATIVE, key)
        for method in ("generate", "score"):
            few, many = (family_worker.evaluation(name, method, batch_size=size) for size in (1, 16))
            self.assertEqual(few["predictions"], many["predictions"])
            self.assertLess(abs(few["loss"] - many["loss"]) / many["loss"], RELATIVE)
            self.assertLen(many["predictions"], family_worker.EVALUATED_ROWS)


class CausalLossTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.collator = CausalCollator(pad_token_id=0)
        self.features = [{"input_ids": [5, 6, 7, 8], "labels": [9, 3]}, {"input_ids": [11], "labels": [12, 13, 3]}]

    def test_labels_stand_below_the_token_that_predicts_them(self):
        batch = self.collator(self.features)
        self.assertEqual(batch["input_ids"].tolist(), [[5, 6, 7, 8, 9], [11, 12, 13, 0, 0]])
        self.assertEqual(batch["labels"].tolist(), [[-100, -100, -100, 9, 3], [12, 13, 3, -100, -100]])
        self.assertEqual(batch["attention_mask"].tolist(), [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])

    def test_the_loss_is_that_of_the_answers_tokens_one_row_at_a_time(self):
        tokenizer, model = family_worker.tokenizer_and_model("gpt2", load_task("mini", "entailment"))
        batch = self.collator(self.features)
        with torch.no_grad():
            outputs = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
            found = float(TokenLoss()(outputs, batch["labels"]))
            total, tokens = 0.0, 0
            for feature in self.features:
                whole = torch.tensor([[*feature["input_ids"], *feature["labels"]]])
                log_p = model(input_ids=whole).logits.log_softmax(-1)[0]
                first = len(feature["input_ids"])
                total -= sum(float(log_p[t - 1, whole[0, t]]) for t in range(first, whole.shape[1]))
                tokens += len(feature["labels"])
        self.assertAlmostEqual(found, total / tokens, places=4)

    def test_text_without_a_prompt_is_learnt_whole(self):
        encoding = PromptEncoding(byte_tokenizer(), Lengths(64, 64))
        prompt, answer = encoding.prompts([""])[0], encoding.answers(["It was good."])[0]
        self.assertEqual(prompt, [byte_tokenizer().bos_token_id])
        inputs, labels = joined(prompt, answer)
        self.assertEqual(labels.tolist(), answer)
        self.assertEqual(inputs.tolist(), [*prompt, *answer[:-1]])


class _Outputs(dict):
    def __init__(self, logits):
        super().__init__(logits=logits)
        self.logits = logits


class PromptsTest(parameterized.TestCase):
    def test_a_prompt_that_is_too_long_loses_its_end_and_neither_separator_nor_answer(self):
        tokenizer = byte_tokenizer()
        encoding = PromptEncoding(tokenizer, Lengths(12, 4), "\nA: ")
        prompt = encoding.prompts(["It was good and bad. " * 9])[0]
        self.assertLen(prompt, 12)
        text = tokenizer.decode(prompt)
        self.assertTrue(text.endswith("\nA:"), text)
        self.assertTrue(text.startswith("It was"), text)
        self.assertEqual(encoding.answers(["positive" * 9])[0][-1], tokenizer.eos_token_id)
        self.assertLen(encoding.answers(["positive" * 9])[0], 4)

    @parameterized.parameters("\nanswer: ", "\n", " = ", "", "\n\n  ")
    def test_answers_are_read_as_they_were_written(self, separator):
        for tokenizer in (byte_tokenizer(), tiny_tokenizer()):
            encoding = PromptEncoding(tokenizer, Lengths(64, 32), separator)
            words = ["positive", "not_entailment", "3.8"]
            self.assertEqual(encoding.texts([[*ids, 7, 7] for ids in encoding.answers(words)]), words)

    def test_a_separator_that_fills_the_prompt_is_refused(self):
        with exits_with(78, "--max_source_length 4 leaves no room"):
            PromptEncoding(byte_tokenizer(), Lengths(4, 4), "a long separator")

    def test_what_begins_a_text_is_kept_and_what_ends_it_is_not(self):
        self.assertEqual(leading_ids(byte_tokenizer()), [])
        self.assertEqual(leading_ids(tiny_tokenizer()), [])  # T5 ends texts, and begins them with nothing
        self.assertEqual(leading_ids(word_tokenizer()), [word_tokenizer().cls_token_id])

    def test_another_separator_than_the_model_was_trained_with_is_told(self):
        tokenizer, model = family_worker.tokenizer_and_model("gpt2", load_task("mini", "entailment"))
        self.assertEqual(encoding_for(model, tokenizer, Lengths(64, 8)).separator, DEFAULT_SEPARATOR)
        with self.assertLogs("t5suite.models.loading", "WARNING") as log:
            encoding_for(model, tokenizer, Lengths(64, 8), " => ")
        self.assertIn("was trained with '\\nanswer: '", log.output[0])

    def test_a_separator_is_read_as_a_shell_passes_it(self):
        tokenizer, model = family_worker.tokenizer_and_model("gpt2", load_task("mini", "entailment"))
        flags = DataArguments(max_source_length=64, answer_separator=r"\n\t\\n" + "\n")
        self.assertEqual(encoding_by_flags(model, tokenizer, flags).separator, "\n\t\\n\n")


class CausalAnswersTest(parameterized.TestCase):
    @parameterized.parameters(*CAUSAL)
    def test_prompts_of_many_lengths_together_are_answered_as_alone(self, name):
        """Left padding, and positions that follow it: the same tokens, and the same log-probabilities."""
        tokenizer, model = family_worker.tokenizer_and_model(name, load_task("mini", "entailment"))
        answerer = answerer_for(model, tokenizer)
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
        tokenizer, model = family_worker.tokenizer_and_model(name, load_task("mini", "entailment"))
        candidates = [[[9, 1], [30, 31, 32, 1], [7, 1]][: 2 + i % 2] for i in range(len(PROMPTS))]
        with torch.no_grad():
            found = answerer_for(model, tokenizer).candidate_scores(PROMPTS, candidates)
            for prompt, ids, scores in zip(PROMPTS, candidates, found, strict=True):
                for candidate, score in zip(ids, scores, strict=True):
                    log_p = model(torch.tensor([prompt + candidate])).logits.log_softmax(-1)[0]
                    places = range(len(prompt) - 1, len(prompt) + len(candidate) - 1)
                    expected = sum(float(log_p[t, token]) for t, token in zip(places, candidate, strict=True))
                    self.assertAlmostEqual(score, expected, delta=2e-4 * abs(expected))


class EncoderTest(parameterized.TestCase):
    def encoding(self, *words):
        return SegmentEncoding(word_tokenizer(), Lengths(16, 1), words or None, has_types=True)

    def test_a_pair_of_columns_is_a_pair_of_segments(self):
        rows = {"sentence1": ["it rains ."], "sentence2": ["it is wet ."], "label": [1]}
        found = self.encoding("entailment", "not_entailment").rows(rows, load_task("glue", "rte"), "train")
        tokens = word_tokenizer().convert_ids_to_tokens(found["input_ids"][0])
        self.assertEqual(tokens, "[CLS] it rains . [SEP] it is wet . [SEP]".split())
        self.assertEqual(found["token_type_ids"], [[0] * 5 + [1] * 5])
        self.assertEqual(found["labels"], [[1]])

    def test_other_rows_are_read_as_t5_reads_them(self):
        task = load_task("super_glue", "wic")
        row = {"sentence1": "a cup", "sentence2": "my cup", "word": "cup", "label": 1}
        self.assertEqual(segments(row, task, "train"), (task.examples(row, "train")[0].inputs,))

    def test_the_head_s_own_order_of_words_counts(self):
        rows = {"sentence1": ["it rains ."] * 3, "sentence2": ["it is wet ."] * 3, "label": [0, 1, -1]}
        found = self.encoding("not_entailment", "entailment").rows(rows, load_task("glue", "rte"), "validation")
        self.assertEqual(found["labels"], [[1], [0], [-100]])

    def test_numbers_stay_numbers(self):
        task = load_task("glue", "stsb")
        rows = {"sentence1": ["it rains ."] * 2, "sentence2": ["it is wet ."] * 2, "label": [3.75, -1.0]}
        found = self.encoding().rows(rows, task, "validation")
        self.assertEqual(found["labels"], [[3.75], [-100.0]])
        batch = SegmentCollator(0)(
            [{"input_ids": ids, "labels": labels} for ids, labels in zip(found["input_ids"], found["labels"])]
        )
        self.assertTrue(batch["labels"].is_floating_point())
        self.assertEqual(
            [self.encoding().word([value], 0.0, 5.0) for value in (5.25, -0.5, 3.25)], ["5.0", "0.0", "3.25"]
        )

    def test_squared_differences_are_summed_over_labelled_rows(self):
        outputs = _Outputs(torch.tensor([[3.5], [1.0], [2.0]]))
        labels = torch.tensor([3.0, -100.0, 4.0])
        self.assertAlmostEqual(float(SquaredLoss()(outputs, labels)), (0.25 + 4.0) / 2)
        self.assertAlmostEqual(float(SquaredLoss()(outputs, labels, 8)), (0.25 + 4.0) / 8)

    @parameterized.parameters(("super_glue", "record"), ("super_glue", "wsc"), ("glue", "wnli_simple"))
    def test_free_text_is_refused_by_name(self, benchmark, name):
        with exits_with(78, f"{benchmark}/{name} is answered in free text"):
            head_for([load_task(benchmark, name)])

    def test_one_head_for_tasks_of_one_label_set(self):
        tasks = [load_task("glue", name) for name in ("rte", "qnli")]
        self.assertEqual(head_for(tasks), Head(("entailment", "not_entailment")))
        with exits_with(78, "glue/rte is one of entailment, not_entailment, glue/mnli is one of"):
            head_for([*tasks, load_task("glue", "mnli")])
        with exits_with(78, "glue/stsb is a number"):
            head_for([*tasks, load_task("glue", "stsb")])

    def test_a_masked_model_gets_a_new_seeded_head_and_the_log_says_so(self):
        tokenizer, _ = family_worker.tokenizer_and_model("bert", load_task("mini", "sentiment"))
        folder = tempfile.mkdtemp()
        AutoModelForMaskedLM.from_config(family_worker.config_of("bert")).save_pretrained(folder)
        found = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            with self.assertLogs("t5suite.models.families", "INFO") as log:
                found.append(load_model(folder, tokenizer=tokenizer, tasks=[load_task("mini", "sentiment")]))
            self.assertIn("the head for one of negative, positive is new", log.output[0])
        self.assertTrue(torch.equal(found[0].classifier.weight, found[1].classifier.weight))
        self.assertFalse(torch.equal(found[0].classifier.weight, found[2].classifier.weight))
        kept = [AutoModelForMaskedLM.from_pretrained(folder), *found]
        for model in kept[1:]:
            self.assertTrue(
                torch.equal(
                    model.bert.embeddings.word_embeddings.weight, kept[0].bert.embeddings.word_embeddings.weight
                )
            )

    def test_a_head_for_other_words_is_not_taken_over(self):
        tokenizer, model = family_worker.tokenizer_and_model("bert", load_task("mini", "sentiment"))
        folder = tempfile.mkdtemp()
        model.save_pretrained(folder)
        with self.assertLogs("t5suite.models.families", "INFO") as log:
            other = load_model(folder, tokenizer=tokenizer, tasks=[load_task("glue", "rte")])
        self.assertIn("gives one of negative, positive; the task is one of entailment", log.output[0])
        self.assertFalse(torch.equal(other.classifier.weight, model.classifier.weight))
        with self.assertNoLogs("t5suite.models.families", "WARNING"):
            same = load_model(folder, tokenizer=tokenizer, tasks=[load_task("mini", "sentiment")])
        self.assertTrue(torch.equal(same.classifier.weight, model.classifier.weight))

    def test_classes_without_names_are_the_task_s_in_its_order(self):
        tokenizer, model = family_worker.tokenizer_and_model("bert", load_task("mini", "sentiment"))
        model.config.id2label = {0: "LABEL_0", 1: "LABEL_1"}
        model.config.problem_type = None
        folder = tempfile.mkdtemp()
        model.save_pretrained(folder)
        again = load_model(folder, tokenizer=tokenizer, tasks=[load_task("mini", "sentiment")])
        self.assertEqual(again.config.id2label, {0: "negative", 1: "positive"})
        self.assertTrue(torch.equal(again.classifier.weight, model.classifier.weight))


@functools.cache
def two_ranks() -> dict:
    """The worker's report from two gloo processes."""
    return law_worker.reported_by_two_ranks(family_worker.__file__, timeout=600)


class RanksTest(parameterized.TestCase):
    @parameterized.parameters(*family_worker.LEARNERS)
    @pytest.mark.slow
    @pytest.mark.ranks
    def test_two_ranks_train_and_score_as_one(self, name, task_name):
        found, expected = two_ranks()[f"{name} {task_name}"], family_worker.train_history(name, 8, 1, task_name)
        for key in ("loss", "grad_norm"):
            for a, b in zip(found["train"][key], expected[key], strict=True):
                self.assertLess(abs(a - b) / abs(b), RELATIVE, key)
        for method, there in found["evaluations"].items():
            here = family_worker.evaluation(name, method, task_name)
            self.assertEqual((here["predictions"], here["rows"]), (there["predictions"], there["rows"]))
            self.assertLess(abs(here["loss"] - there["loss"]) / here["loss"], RELATIVE)


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


class CausalScoresTest(parameterized.TestCase):
    def assert_scores_close(self, found, expected):
        for mine, other in zip(found, expected, strict=True):
            for a, b in zip(mine, other, strict=True):
                self.assertAlmostEqual(a, b, delta=2e-5 * max(1.0, abs(b)))

    @parameterized.parameters(*MODELS)
    def test_scores_and_loss_of_a_batch_equal_those_of_its_pairs_alone(self, name):
        reading = reading_of(name)
        with torch.no_grad():
            found = reading.candidate_scores(CANDIDATES)
            self.assert_scores_close(found, read_for_each(reading))
            alone = [reading.answerer.answer_nll([pair])[0] for pair in zip(PROMPTS, LABELS, strict=True)]
            self.assert_scores_close([reading.nll], [alone])
        self.assertEqual(reading.tokens, [len(labels) for labels in LABELS])

    @parameterized.parameters("lora", "prompt_tuning", "prefix")
    def test_adapters_change_no_score(self, kind):
        tokenizer, plain = model_of("gpt2")
        given = {} if kind == "lora" else {"num_virtual_tokens": 3}
        model = adapted(copy.deepcopy(plain), tokenizer, kind, given)
        reading = reading_of("gpt2", model)
        with torch.no_grad():
            self.assert_scores_close(reading.candidate_scores(CANDIDATES), read_for_each(reading))

    def test_text_without_a_prompt_is_read_whole_and_its_first_token_counts_for_nothing(self):
        tokenizer, model = model_of("gpt2")
        reading = answerer_for(model, tokenizer).read([{"input_ids": [], "labels": [5, 6, 7]}])
        with torch.no_grad():
            log_p = model(torch.tensor([[5, 6, 7]])).logits.log_softmax(-1)[0]
            self.assertAlmostEqual(reading.nll[0], -float(log_p[0, 6] + log_p[1, 7]), places=4)
        self.assertEqual(reading.tokens, [2])
