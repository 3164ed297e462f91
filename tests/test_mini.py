"""Laws of the bundled benchmark `mini`: written by its grammar, blind to single words, covered by its tokenizer."""

import doctest
import gzip
import json
import random
import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from absl.testing import absltest, parameterized
from scipy.sparse import hstack
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from transformers import AutoConfig, AutoTokenizer

from t5suite.data.mini import (
    FOLDER,
    MODEL_FOLDER,
    articles,
    documents,
    drawing,
    entailment_rows,
    grammar,
    sentiment_rows,
    similarity_rows,
    stories,
    vocabulary,
    words,
)
from t5suite.data.text.documents import bundled_text, read_documents

COLUMNS = {
    "sentiment": ["sentence"],
    "entailment": ["premise", "hypothesis"],
    "similarity": ["sentence1", "sentence2"],
}
TASKS = parameterized.named_parameters(*[(task, task) for task in COLUMNS])
CLASSIFIED = parameterized.named_parameters(("sentiment", "sentiment"), ("entailment", "entailment"))


def load(task, split):
    """load("sentiment", "test") -> [{'sentence': ..., 'label': -1, 'idx': 0}, ...], as bundled"""
    with gzip.open(FOLDER / task / f"{split}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def texts(task, split):
    """texts("entailment", "test") -> [('At noon, ...', 'The cook ...'), ...]"""
    return [tuple(row[column] for column in COLUMNS[task]) for row in load(task, split)]


def labels(task, split):
    return np.array([row["label"] for row in load(task, split)])


def bags(task, separate):
    """Word counts of the training and validation rows: one bag a row, or one for each field."""
    columns = list(zip(*texts(task, "train"))), list(zip(*texts(task, "validation")))
    if not separate:
        columns = [[[" ".join(fields) for fields in zip(*split)]] for split in columns]
    counters = [CountVectorizer(token_pattern=r"\w+").fit(texts) for texts in columns[0]]
    return [hstack([c.transform(texts) for c, texts in zip(counters, split)]).tocsr() for split in columns]


def accuracy_of_best_word(task):
    """Accuracy on validation of the best rule 'this word: that label, else the other', learnt from train."""
    train, validation = [bag.toarray() > 0 for bag in bags(task, separate=True)]
    gold, gold_validation = labels(task, "train"), labels(task, "validation")
    best = 0.0
    for word in range(train.shape[1]):
        present, absent = Counter(gold[train[:, word]]), Counter(gold[~train[:, word]])
        if present and absent:
            guesses = np.where(validation[:, word], present.most_common(1)[0][0], absent.most_common(1)[0][0])
            best = max(best, np.mean(guesses == gold_validation))
    return 100 * best


class MiniTest(parameterized.TestCase):
    def test_bundled_files_equal_what_the_grammar_writes(self):
        self.assertEmpty(grammar.stale_files(FOLDER))

    def test_check_names_the_stale_file(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
            (Path(folder) / "sentiment" / "test.jsonl.gz").write_bytes(gzip.compress(b"{}"))
            self.assertEqual(grammar.stale_files(Path(folder)), ["sentiment/test.jsonl.gz"])

    def test_compressed_files_carry_no_clock(self):
        for path in FOLDER.glob("*/*.gz"):
            self.assertEqual(path.read_bytes()[4:8], bytes(4), path.name)

    @CLASSIFIED
    def test_labels_are_balanced(self, task):
        for split in ("train", "validation"):
            counts = Counter(labels(task, split))
            self.assertLen(counts, len(grammar.TASKS[task][1]))
            self.assertLessEqual(max(counts.values()) - min(counts.values()), 1)

    def test_scores_spread_over_the_scale_in_fifths(self):
        for split in ("train", "validation"):
            scores = labels("similarity", split)
            self.assertTrue(np.array_equal(np.round(scores * 5) / 5, scores))
            shares = np.histogram(scores, bins=6, range=(-0.5, 5.5))[0] / len(scores)
            self.assertBetween(min(shares), 0.08, 0.25)
            self.assertBetween(max(shares), 0.08, 0.25)

    @TASKS
    def test_rows_are_numbered_and_test_is_unlabelled(self, task):
        self.assertEqual(set(labels(task, "test")), {-1})
        for split, num_rows in grammar.NUM_ROWS.items():
            self.assertEqual([row["idx"] for row in load(task, split)], list(range(num_rows)))

    @TASKS
    def test_no_text_occurs_twice(self, task):
        everything = [text for split in grammar.NUM_ROWS for text in texts(task, split)]
        self.assertLen(set(everything), len(everything))

    @TASKS
    def test_sentences_have_at_most_twenty_words(self, task):
        lengths = [len(field.split()) for fields in texts(task, "train") for field in fields]
        self.assertBetween(np.mean(lengths), 6, 20)
        self.assertLessEqual(max(lengths), 22)

    @parameterized.named_parameters(
        ("sentiment_joined", "sentiment", False, 65),
        ("entailment_joined", "entailment", False, 50),
        ("entailment_separate", "entailment", True, 50),
    )
    def test_bag_of_words_stays_near_the_majority(self, task, separate, most_points):
        train, validation = bags(task, separate)
        model = LogisticRegression(max_iter=2000).fit(train, labels(task, "train"))
        self.assertLessEqual(100 * model.score(validation, labels(task, "validation")), most_points)

    @parameterized.named_parameters(
        ("counts", CountVectorizer()), ("presence", CountVectorizer(binary=True)), ("tfidf", TfidfVectorizer())
    )
    def test_bag_of_words_does_not_measure_similarity(self, vectorizer):
        train = vectorizer.fit_transform([" ".join(fields) for fields in texts("similarity", "train")])
        validation = vectorizer.transform([" ".join(fields) for fields in texts("similarity", "validation")])
        guesses = Ridge(alpha=1.0).fit(train, labels("similarity", "train")).predict(validation)
        self.assertLessEqual(100 * np.corrcoef(guesses, labels("similarity", "validation"))[0, 1], 15)

    def test_how_many_words_two_sentences_share_does_not_measure_similarity(self):
        shared = [len(set(a.split()) & set(b.split())) for a, b in texts("similarity", "train")]
        self.assertLessEqual(abs(100 * np.corrcoef(shared, labels("similarity", "train"))[0, 1]), 5)

    @CLASSIFIED
    def test_no_single_word_decides(self, task):
        majority = 100 * max(Counter(labels(task, "validation")).values()) / grammar.NUM_ROWS["validation"]
        self.assertLessEqual(accuracy_of_best_word(task), majority + 10)


class TextTest(parameterized.TestCase):
    """The bundled text: large enough, whole in its pieces, and with something in a document to learn the rest from."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.text = {split: list(read_documents(bundled_text(split))) for split in documents.NUM_CHARACTERS}

    def test_it_is_a_megabyte_and_validation_is_a_twentieth(self):
        sizes = {split: sum(map(len, text)) for split, text in self.text.items()}
        self.assertGreater(sizes["train"], 1_000_000)
        self.assertBetween(sizes["validation"] / sizes["train"], 0.04, 0.06)

    def test_no_document_occurs_twice_in_one_split_or_both(self):
        everything = [text.strip() for split in self.text.values() for text in split]
        self.assertLen(set(everything), len(everything))

    def test_documents_have_two_to_forty_sentences(self):
        lengths = [len(re.findall(r"[.?](?= |$)", text)) for text in self.text["train"]]
        self.assertEqual(min(lengths), 2)
        self.assertBetween(max(lengths), 20, 40)
        self.assertGreater(np.std(lengths), 4)

    def test_every_kind_of_text_is_frequent_in_both_splits(self):
        for split in self.text.values():
            first = Counter(text.split()[0] for text in split)
            self.assertGreaterEqual(len(first), 8)
        self.assertLen({write.__name__ for write in documents.KINDS_OF_TEXT}, len(documents.KINDS_OF_TEXT))

    def test_words_are_pieces(self):
        """Plurals are two, numbers two or three."""
        tokenizer = AutoTokenizer.from_pretrained(MODEL_FOLDER)
        ids = tokenizer(self.text["validation"], add_special_tokens=False)["input_ids"]
        self.assertNotIn(tokenizer.unk_token_id, {i for row in ids for i in row})
        units = [unit for text in self.text["validation"] for unit in re.findall(r"\w+|[^\w\s]", text)]
        self.assertLess(sum(map(len, ids)) / len(units), 1.05)
        spelt = {unit for unit in units if unit.isalpha() and len(tokenizer.tokenize(unit)) > 1} - {"You"}
        self.assertEmpty([word for word in spelt if not word.endswith("s")])

    def test_words_of_a_document_come_back_in_it(self):
        """Content words of a document's second half stand in its first half, not in another document's."""
        content = {word for pair in words.PEOPLE for word in pair} | set(words.TRAITS) | set(words.GOOD + words.BAD)
        content |= {thing for things in words.KINDS.values() for thing in things}
        of_text = [re.findall(r"\w+", text) for text in self.text["validation"]]
        halves = [(set(w[: len(w) // 2]), [x for x in w[len(w) // 2 :] if x in content]) for w in of_text]
        own = np.mean([word in first for first, second in halves for word in second])
        others = np.mean([word in halves[i - 1][0] for i, (_, second) in enumerate(halves) for word in second])
        self.assertGreater(own, 0.6)
        self.assertLess(others, 0.25)

    def test_numbers_add_up(self):
        numbers = {"no": 0, "one": 1, "two": 2, **{str(n): n for n in range(60)}}
        steps = 0
        for seed in range(200):
            had = None
            for line in articles.ledger(random.Random(seed)):
                number = numbers[re.search(r"(?:had|bought|found|sold|lost) (\w+) ", line)[1]]
                if "had" in line:
                    self.assertIn(had, (None, number), line)
                    had = number
                else:
                    had += -number if re.search("sold|lost", line) else number
                    steps += 1
        self.assertGreater(steps, 500)

    def test_who_has_what_in_the_end_follows_from_what_happened(self):
        for seed in range(200):
            lines = stories.story(random.Random(seed))
            people = [line for line in lines if line.startswith("And after it all")]
            things = [thing for line in people for thing in re.findall(r"an? (\w+)", line)]
            begun = [
                thing for line in lines if re.match(r"S?[Hh]e had", line) for thing in re.findall(r"an? (\w+)", line)
            ]
            self.assertEqual(sorted(things), sorted(begun))

    def test_somebody_keeps_their_pronoun(self):
        their = {"He": "his", "She": "her"}
        told = 0
        for seed in range(200):
            lines = stories.story(random.Random(seed))
            first = [re.match(r"There was an? \w+ (\w+)", line) for line in lines]
            pronouns = {m[1]: their[lines[i + 1].split()[0]] for i, m in enumerate(first) if m}
            for line in lines:
                for role, pronoun in re.findall(r"the (\w+) (?:sold|lost) (his|her)", line):
                    self.assertEqual(pronoun, pronouns[role], line)
                    told += 1
            self.assertEqual(pronouns.get("king", "his"), "his")
        self.assertGreater(told, 200)

    def test_questions_are_answered_by_what_was_said(self):
        for seed in range(100):
            lines = stories.dialogue(random.Random(seed))
            facts = [line for line in lines if ":" not in line]
            self.assertLen(lines, 3 * len(facts))
            for fact in facts:
                thing, where = re.match(r"The (\w+) was (.*)\.", fact).groups()
                answers = [line for line in lines if line.endswith(".") and ": " in line and where in line]
                self.assertLen(answers, 1, thing)

    def test_any_split_is_written_alone(self):
        self.assertEqual(documents.documents("train"), self.text["train"])
        self.assertEqual(documents.documents("validation"), self.text["validation"])


class DoctestTest(parameterized.TestCase):
    @parameterized.parameters(
        drawing, documents, stories, articles, sentiment_rows, entailment_rows, similarity_rows, words
    )
    def test_examples_in_docstrings_hold(self, module):
        results = doctest.testmod(module, extraglobs={"random": random})
        self.assertGreater(results.attempted, 0)
        self.assertEqual(results.failed, 0)


class TinyModelTest(parameterized.TestCase):
    @TASKS
    def test_tokenizer_covers_every_row(self, task):
        tokenizer = AutoTokenizer.from_pretrained(MODEL_FOLDER)
        fields = [field for split in grammar.NUM_ROWS for text in texts(task, split) for field in text]
        ids = tokenizer(fields + vocabulary.PREFIXES).input_ids
        self.assertNotIn(tokenizer.unk_token_id, {i for row in ids for i in row})
        self.assertEqual(tokenizer.batch_decode(ids, skip_special_tokens=True), fields + vocabulary.PREFIXES)

    def test_every_word_of_the_benchmark_is_one_piece(self):
        tokenizer = AutoTokenizer.from_pretrained(MODEL_FOLDER)
        words = {word for task in COLUMNS for text in texts(task, "train") for field in text for word in field.split()}
        words = {word.strip(".,") for word in words} | set(vocabulary.LABELS)
        self.assertEmpty([word for word in sorted(words) if len(tokenizer.tokenize(word)) > 1])

    def test_printable_characters_and_scores_have_pieces(self):
        tokenizer = AutoTokenizer.from_pretrained(MODEL_FOLDER)
        for text in ["Hello, (zebra) {quick} 12,500 #!?", *vocabulary.SCORES, *vocabulary.LABELS]:
            ids = tokenizer(text).input_ids
            self.assertNotIn(tokenizer.unk_token_id, ids)
            self.assertEqual(tokenizer.decode(ids, skip_special_tokens=True), text)

    def test_sentencepiece_gives_the_same_ids(self):
        import sentencepiece

        pieces = sentencepiece.SentencePieceProcessor(model_file=str(MODEL_FOLDER / "spiece.model"))
        tokenizer = AutoTokenizer.from_pretrained(MODEL_FOLDER)
        for text, _ in texts("entailment", "test"):
            self.assertEqual(tokenizer(text).input_ids, pieces.encode(text) + [1])

    def test_sentinels_count_down_from_the_last_id(self):
        tokenizer = AutoTokenizer.from_pretrained(MODEL_FOLDER)
        ids = tokenizer.convert_tokens_to_ids([f"<extra_id_{i}>" for i in range(100)])
        self.assertEqual(ids, [len(tokenizer) - 1 - i for i in range(100)])

    def test_config_describes_a_t5_for_this_tokenizer(self):
        config = AutoConfig.from_pretrained(MODEL_FOLDER)
        self.assertGreaterEqual(config.vocab_size, len(AutoTokenizer.from_pretrained(MODEL_FOLDER)))
        self.assertEqual(config.architectures, ["T5ForConditionalGeneration"])
        self.assertEqual((config.pad_token_id, config.eos_token_id, config.decoder_start_token_id), (0, 1, 0))


if __name__ == "__main__":
    absltest.main()
