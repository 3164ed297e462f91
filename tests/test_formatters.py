"""Row -> (inputs, targets): every task's text, character by character.

Expected strings are written out by hand from the description of the original T5 and were compared with the released
`t5` 0.9.4 preprocessors; none is computed.
"""

import copy

import numpy as np
from absl.testing import absltest, parameterized

from t5suite import DATASET_VALS, load_task
from t5suite.base.errors import DataError

IDX = {"paragraph": 3, "question": 5, "answer": 8}
QUERY_IDX = {"passage": 1, "query": 2}


def texts(benchmark, name, row, split="validation"):
    return [tuple(example) for example in load_task(benchmark, name).examples(row, split)]


# (benchmark, task, row, inputs, targets)
PLAIN = [
    ("glue", "cola", {"sentence": "Bill sang.", "label": 1, "idx": 0}, "cola sentence: Bill sang.", "acceptable"),
    ("glue", "cola", {"sentence": "Sang the.", "label": 0, "idx": 0}, "cola sentence: Sang the.", "unacceptable"),
    ("glue", "sst2", {"sentence": "a gem ", "label": 1, "idx": 0}, "sst2 sentence: a gem ", "positive"),
    ("glue", "sst2", {"sentence": "dull", "label": 0, "idx": 0}, "sst2 sentence: dull", "negative"),
    (
        "glue", "mrpc", {"sentence1": "A b.", "sentence2": "B a.", "label": 1, "idx": 0},
        "mrpc sentence1: A b. sentence2: B a.", "equivalent",
    ),
    (
        "glue", "mrpc", {"sentence1": "A b.", "sentence2": "C d.", "label": 0, "idx": 0},
        "mrpc sentence1: A b. sentence2: C d.", "not_equivalent",
    ),
    (
        "glue", "qqp", {"question1": "Why?", "question2": "How?", "label": 0, "idx": 0},
        "qqp question1: Why? question2: How?", "not_duplicate",
    ),
    (
        "glue", "qqp", {"question1": "Why?", "question2": "Why so?", "label": 1, "idx": 0},
        "qqp question1: Why? question2: Why so?", "duplicate",
    ),
    (
        "glue", "stsb", {"sentence1": "A dog.", "sentence2": "A cat.", "label": 1.25, "idx": 0},
        "stsb sentence1: A dog. sentence2: A cat.", "1.2",
    ),
    *[
        (
            "glue", "mnli", {"premise": "It rains.", "hypothesis": "It is wet.", "label": label, "idx": 0},
            "mnli hypothesis: It is wet. premise: It rains.", word,
        )
        for label, word in enumerate(["entailment", "neutral", "contradiction"])
    ],
    *[
        (
            "glue", "ax", {"premise": "It rains.", "hypothesis": "It is wet.", "label": label, "idx": 0},
            "mnli hypothesis: It is wet. premise: It rains.", word,
        )
        for label, word in [(-1, "<unk>"), (0, "entailment"), (1, "neutral"), (2, "contradiction")]
    ],
    (
        "glue", "qnli", {"question": "Who?", "sentence": "Ann did.", "label": 0, "idx": 0},
        "qnli question: Who? sentence: Ann did.", "entailment",
    ),
    (
        "glue", "qnli", {"question": "Who?", "sentence": "It rains.", "label": 1, "idx": 0},
        "qnli question: Who? sentence: It rains.", "not_entailment",
    ),
    (
        "glue", "rte", {"sentence1": "It rains.", "sentence2": "It is wet.", "label": 0, "idx": 0},
        "rte sentence1: It rains. sentence2: It is wet.", "entailment",
    ),
    (
        "glue", "rte", {"sentence1": "It rains.", "sentence2": "It is dry.", "label": 1, "idx": 0},
        "rte sentence1: It rains. sentence2: It is dry.", "not_entailment",
    ),
    (
        "glue", "wnli", {"sentence1": "The cup fell.", "sentence2": "It fell.", "label": 0, "idx": 0},
        "wnli sentence1: The cup fell. sentence2: It fell.", "not_entailment",
    ),
    (
        "glue", "wnli", {"sentence1": "The cup fell.", "sentence2": "It fell.", "label": 1, "idx": 0},
        "wnli sentence1: The cup fell. sentence2: It fell.", "entailment",
    ),
    (
        "super_glue", "boolq", {"question": "is it so", "passage": "It -- It is so.", "label": 1, "idx": 0},
        "boolq passage: It -- It is so. question: is it so", "True",
    ),
    (
        "super_glue", "boolq", {"question": "is it so", "passage": "No.", "label": 0, "idx": 0},
        "boolq passage: No. question: is it so", "False",
    ),
    *[
        (
            "super_glue", "cb", {"premise": "A: Yeah.", "hypothesis": "it is", "label": label, "idx": 0},
            "cb hypothesis: it is premise: A: Yeah.", word,
        )
        for label, word in enumerate(["entailment", "contradiction", "neutral"])
    ],
    *[
        (
            "super_glue",
            "copa",
            {"premise": "It rained.", "choice1": "Wet.", "choice2": "Dry.", "question": "effect", "label": i, "idx": 0},
            "copa choice1: Wet. choice2: Dry. premise: It rained. question: effect",
            f"choice{i + 1}",
        )
        for i in (0, 1)
    ],
    (
        "super_glue", "multirc", {"paragraph": "P.", "question": "Q?", "answer": "A", "idx": IDX, "label": 1},
        "multirc question: Q? answer: A paragraph: P.", "True",
    ),
    (
        "super_glue", "rte", {"premise": "It rains.", "hypothesis": "It is wet.", "label": 0, "idx": 0},
        "rte hypothesis: It is wet. premise: It rains.", "entailment",
    ),
    (
        "super_glue", "rte", {"premise": "It rains.", "hypothesis": "It is dry.", "label": 1, "idx": 0},
        "rte hypothesis: It is dry. premise: It rains.", "not_entailment",
    ),
    (
        "super_glue",
        "wic",
        {
            "word": "bed", "sentence1": "A bed.", "sentence2": "River bed.", "start1": 2, "start2": 6, "end1": 5,
            "end2": 9, "idx": 0, "label": 0,
        },
        "wic sentence1: A bed. sentence2: River bed. word: bed",
        "False",
    ),
    (
        "super_glue", "wic", {"word": "go", "sentence1": "Go!", "sentence2": "I go.", "idx": 0, "label": 1},
        "wic sentence1: Go! sentence2: I go. word: go", "True",
    ),
    *[
        (
            "super_glue", "axb", {"sentence1": "The cat sat.", "sentence2": "It did not.", "idx": 0, "label": label},
            "rte hypothesis: It did not. premise: The cat sat.", word,
        )
        for label, word in [(0, "entailment"), (1, "not_entailment"), (-1, "<unk>")]
    ],
    *[
        (
            "super_glue", "axg", {"premise": "She ran.", "hypothesis": "A nurse ran.", "idx": 0, "label": label},
            "rte hypothesis: A nurse ran. premise: She ran.", word,
        )
        for label, word in [(0, "entailment"), (1, "not_entailment"), (-1, "<unk>")]
    ],
]  # fmt: skip

# Values that a careless template would change: (value, why)
ODD_VALUES = [
    ("", "empty"),
    (" ", "a space"),
    ("  two  spaces  ", "spaces inside and around"),
    ("line\nbreak\r\nand\ttab", "line breaks and tabs"),
    ("UPPER Case", "case"),
    ("it 's `` tokenised ''", "quotes"),
    ("na\u00efve \u201cquoted\u201d caf\u00e9 \u6f22 \U0001f389", "beyond ASCII"),
    ("a\u00a0b\u2028c", "unusual white space"),
    (r"back\1slash \g<0> %s {0} $1", "what a template or pattern would expand"),
    ("<br><b>bold</b> &amp;", "markup outside MultiRC"),
    ("question: x sentence: y", "what looks like a field"),
    ("</s> <pad> <extra_id_0>", "what looks like a special token"),
]

# task -> (columns in the order of the text, text with one %s a column)
TEMPLATES = {
    ("glue", "cola"): (["sentence"], "cola sentence: %s"),
    ("glue", "sst2"): (["sentence"], "sst2 sentence: %s"),
    ("glue", "mrpc"): (["sentence1", "sentence2"], "mrpc sentence1: %s sentence2: %s"),
    ("glue", "qqp"): (["question1", "question2"], "qqp question1: %s question2: %s"),
    ("glue", "stsb"): (["sentence1", "sentence2"], "stsb sentence1: %s sentence2: %s"),
    ("glue", "mnli"): (["hypothesis", "premise"], "mnli hypothesis: %s premise: %s"),
    ("glue", "qnli"): (["question", "sentence"], "qnli question: %s sentence: %s"),
    ("glue", "rte"): (["sentence1", "sentence2"], "rte sentence1: %s sentence2: %s"),
    ("glue", "wnli"): (["sentence1", "sentence2"], "wnli sentence1: %s sentence2: %s"),
    ("glue", "ax"): (["hypothesis", "premise"], "mnli hypothesis: %s premise: %s"),
    ("super_glue", "boolq"): (["passage", "question"], "boolq passage: %s question: %s"),
    ("super_glue", "cb"): (["hypothesis", "premise"], "cb hypothesis: %s premise: %s"),
    ("super_glue", "copa"): (
        ["choice1", "choice2", "premise", "question"],
        "copa choice1: %s choice2: %s premise: %s question: %s",
    ),
    ("super_glue", "rte"): (["hypothesis", "premise"], "rte hypothesis: %s premise: %s"),
    ("super_glue", "wic"): (["sentence1", "sentence2", "word"], "wic sentence1: %s sentence2: %s word: %s"),
    ("super_glue", "axb"): (["sentence2", "sentence1"], "rte hypothesis: %s premise: %s"),
    ("super_glue", "axg"): (["hypothesis", "premise"], "rte hypothesis: %s premise: %s"),
    ("mini", "sentiment"): (["sentence"], "sentiment sentence: %s"),
    ("mini", "entailment"): (["premise", "hypothesis"], "entailment premise: %s hypothesis: %s"),
    ("mini", "similarity"): (["sentence1", "sentence2"], "similarity sentence1: %s sentence2: %s"),
}

LABEL_WORDS = {
    ("glue", "cola"): ["unacceptable", "acceptable"],
    ("glue", "sst2"): ["negative", "positive"],
    ("glue", "mrpc"): ["not_equivalent", "equivalent"],
    ("glue", "qqp"): ["not_duplicate", "duplicate"],
    ("glue", "mnli"): ["entailment", "neutral", "contradiction"],
    ("glue", "qnli"): ["entailment", "not_entailment"],
    ("glue", "rte"): ["entailment", "not_entailment"],
    ("glue", "wnli"): ["not_entailment", "entailment"],
    ("glue", "ax"): ["entailment", "neutral", "contradiction"],
    ("super_glue", "boolq"): ["False", "True"],
    ("super_glue", "cb"): ["entailment", "contradiction", "neutral"],
    ("super_glue", "copa"): ["choice1", "choice2"],
    ("super_glue", "multirc"): ["False", "True"],
    ("super_glue", "rte"): ["entailment", "not_entailment"],
    ("super_glue", "wic"): ["False", "True"],
    ("super_glue", "axb"): ["entailment", "not_entailment"],
    ("super_glue", "axg"): ["entailment", "not_entailment"],
}


def plain_row(key, value="x", label=0):
    columns = TEMPLATES[key][0] if key in TEMPLATES else ["question", "answer", "paragraph"]
    return {**dict.fromkeys(columns, value), "label": label, "idx": IDX if key[1] == "multirc" else 0}


class PlainTasksTest(parameterized.TestCase):
    @parameterized.parameters(*PLAIN)
    def test_a_row_becomes_exactly_this_pair(self, benchmark, name, row, inputs, targets):
        self.assertEqual(texts(benchmark, name, row), [(inputs, targets)])

    @parameterized.product(key=list(TEMPLATES), odd=[value for value, _ in ODD_VALUES])
    def test_values_are_inserted_untouched(self, key, odd):
        columns, template = TEMPLATES[key]
        for column in columns:
            row = {**plain_row(key), column: odd}
            ((inputs, _),) = texts(*key, row)
            self.assertEqual(inputs, template % tuple(row[c] for c in columns))

    @parameterized.parameters(*TEMPLATES)
    def test_empty_values_leave_their_field_and_its_space(self, *key):
        columns, template = TEMPLATES[key]
        ((inputs, _),) = texts(*key, plain_row(key, ""))
        self.assertEqual(inputs, template.replace("%s", ""))
        self.assertEndsWith(inputs, ": ")

    @parameterized.parameters(*TEMPLATES)
    def test_extra_columns_and_their_order_change_nothing(self, *key):
        columns, template = TEMPLATES[key]
        row = {"aaa": "first", **dict(reversed(plain_row(key).items())), "zzz": 7, "start1": 1, "extra": ["a"]}
        ((inputs, _),) = texts(*key, row)
        self.assertEqual(inputs, template % tuple(["x"] * len(columns)))

    @parameterized.parameters(*TEMPLATES)
    def test_a_row_is_left_as_it_was(self, *key):
        row = plain_row(key)
        before = copy.deepcopy(row)
        texts(*key, row)
        self.assertEqual(row, before)

    @parameterized.product(key=list(LABEL_WORDS), split=["train", "validation", "test"])
    def test_label_words_stand_in_the_order_of_their_ids(self, key, split):
        for label, word in enumerate(LABEL_WORDS[key]):
            for same in (label, np.int64(label)):
                self.assertEqual(texts(*key, plain_row(key, label=same), split)[0][1], word)
        self.assertEqual(texts(*key, plain_row(key, label=-1), split)[0][1], "<unk>")

    @parameterized.parameters(*LABEL_WORDS)
    def test_a_row_without_its_label_column_is_unlabelled(self, *key):
        row = plain_row(key)
        del row["label"]
        self.assertEqual(texts(*key, row)[0][1], "<unk>")

    @parameterized.product(key=list(LABEL_WORDS), label=[3, 7, -2, 0.5, "other"])
    def test_a_label_outside_the_list_is_refused_by_name(self, key, label):
        with self.assertRaisesRegex(DataError, "label"):
            texts(*key, plain_row(key, label=label))

    @parameterized.parameters(*LABEL_WORDS)
    def test_parse_reads_a_label_word_exactly_and_nothing_else(self, *key):
        task, words = load_task(*key), LABEL_WORDS[key]
        for label, word in enumerate(words):
            self.assertEqual(task.parse(word), label)
            for wrong in (word.swapcase(), f" {word}", f"{word} ", f"{word}.", f"{word}\n", word[:-1], word + word):
                self.assertEqual(task.parse(wrong), -1, wrong)
        for wrong in ("", "other", "<unk>", "0", "1", "-1"):
            self.assertEqual(task.parse(wrong), -1, wrong)

    def test_the_two_rtes_differ_in_their_text(self):
        row = {"premise": "P", "hypothesis": "H", "sentence1": "P", "sentence2": "H", "label": 0}
        self.assertEqual(texts("glue", "rte", row)[0][0], "rte sentence1: P sentence2: H")
        self.assertEqual(texts("super_glue", "rte", row)[0][0], "rte hypothesis: H premise: P")

    def test_mnli_and_cb_order_their_labels_differently(self):
        row = {"premise": "P", "hypothesis": "H", "label": 1}
        self.assertEqual(texts("glue", "mnli", row)[0][1], "neutral")
        self.assertEqual(texts("super_glue", "cb", row)[0][1], "contradiction")

    @parameterized.parameters("label", "answers")
    def test_a_missing_text_column_is_named(self, column):
        with self.assertRaisesRegex(DataError, "sentence2"):
            texts("glue", "rte", {"sentence1": "A", column: 0})


# 0.00, 0.05, ... 5.00 -> nearest 0.2, float32, halves to even; written out.
STSB_GRID = """
0.0 0.0 0.0 0.2 0.2 0.2 0.4 0.4 0.4 0.4
0.4 0.6 0.6 0.6 0.8 0.8 0.8 0.8 0.8 1.0
1.0 1.0 1.2 1.2 1.2 1.2 1.2 1.4 1.4 1.4
1.6 1.6 1.6 1.6 1.6 1.8 1.8 1.8 2.0 2.0
2.0 2.0 2.0 2.2 2.2 2.2 2.4 2.4 2.4 2.4
2.4 2.6 2.6 2.6 2.8 2.8 2.8 2.8 2.8 3.0
3.0 3.0 3.2 3.2 3.2 3.2 3.2 3.4 3.4 3.4
3.6 3.6 3.6 3.6 3.6 3.8 3.8 3.8 4.0 4.0
4.0 4.0 4.0 4.2 4.2 4.2 4.4 4.4 4.4 4.4
4.4 4.6 4.6 4.6 4.8 4.8 4.8 4.8 4.8 5.0
5.0
""".split()


class StsbTest(parameterized.TestCase):
    def target(self, label):
        return texts("glue", "stsb", {"sentence1": "a", "sentence2": "b", "label": label, "idx": 0})[0][1]

    @parameterized.parameters(*enumerate(STSB_GRID))
    def test_every_twentieth_rounds_to_a_fifth_halves_to_even(self, step, expected):
        for label in (step / 20, round(step * 0.05, 2), np.float32(step / 20), float(np.float32(step / 20))):
            self.assertEqual(self.target(label), expected)

    @parameterized.parameters(
        (2.333, "2.4"), (2.3, "2.4"), (2.299, "2.2"), (3.25, "3.2"), (3.75, "3.8"), (0.5, "0.4"), (0.1, "0.0"),
        (0.9, "0.8"), (1.3, "1.2"), (2.5, "2.4"), (4.99, "5.0"), (5, "5.0"), (0, "0.0"), (3, "3.0"), (1.66, "1.6"),
        (2.8, "2.8"), (3.799999952316284, "3.8"), (4.9, "4.8"), (4.91, "5.0"), (-1.0, "-1.0"), (-1, "-1.0"),
        (0.0999, "0.0"), (0.101, "0.2"), ("3.8", "3.8"),
    )  # fmt: skip
    def test_a_score_rounds_to(self, label, expected):
        self.assertEqual(self.target(label), expected)

    def test_a_row_without_label_is_unlabelled(self):
        self.assertEqual(texts("glue", "stsb", {"sentence1": "a", "sentence2": "b"})[0][1], "-1.0")

    @parameterized.parameters("high", float("nan"), float("inf"))
    def test_what_is_no_finite_number_is_refused(self, label):
        with self.assertRaisesRegex(DataError, "label"):
            self.target(label)

    @parameterized.parameters(
        ("2.6", 2.6), (" 2.6 ", 2.6), ("2.6\n", 2.6), ("1e1", 10.0), ("-3", -3.0), ("7.5", 7.5), (".5", 0.5), ("5.", 5.0),
        ("3,4", -1.0), ("", -1.0), ("2.6 points", -1.0), ("two", -1.0), ("<unk>", -1.0), ("2 .6", -1.0), ("--1", -1.0),
    )  # fmt: skip
    def test_a_prediction_is_read_as_python_reads_numbers(self, text, expected):
        self.assertEqual(load_task("glue", "stsb").parse(text), expected)

    def test_nan_is_read_as_nan(self):
        self.assertTrue(np.isnan(load_task("glue", "stsb").parse("nan")))


class MultircTest(parameterized.TestCase):
    @parameterized.parameters(
        ("<b>Sent 1: </b>Hi.<br><b>Sent 2: </b>Bye.<br>", "Sent 1: Hi. Sent 2: Bye. "),
        ("a<br><br>b", "a  b"),
        ("a <br> b", "a   b"),
        ("a<br/>b<BR>c<i>d</i><B>e</B>", "a<br/>b<BR>c<i>d</i><B>e</B>"),
        ("<b></b>", ""),
        ("<b", "<b"),
        ("</br>", "</br>"),
        ("<b >", "<b >"),
        ("<b/>< b><br >", "<b/>< b><br >"),
        ("<<b>/b>", "</b>"),
        ("<b<b>>", "<b>"),
        ("<b<br>>", "<b >"),
        ("line\nbreak", "line\nbreak"),
        ("", ""),
    )
    def test_markup_is_removed_in_one_pass_from(self, paragraph, expected):
        row = {"paragraph": paragraph, "question": "Q?", "answer": "A", "idx": IDX, "label": 0}
        self.assertEqual(
            texts("super_glue", "multirc", row), [(f"multirc question: Q? answer: A paragraph: {expected}", "False")]
        )

    def test_markup_leaves_question_and_answer_too(self):
        row = {"paragraph": "P", "question": "<b>Q</b>?<br>", "answer": "<br>A", "idx": IDX, "label": 1}
        self.assertEqual(texts("super_glue", "multirc", row)[0][0], "multirc question: Q?  answer:  A paragraph: P")


class RecordTest(parameterized.TestCase):
    def row(self, passage="P.", query="@placeholder won.", entities=("A", "B"), answers=("A",)):
        return {
            "passage": passage, "query": query, "entities": list(entities), "answers": list(answers), "idx": QUERY_IDX,
            "entity_spans": {"text": ["A"], "start": [0], "end": [1]},
        }  # fmt: skip

    @parameterized.parameters(
        # a mark that ends a sentence stays and gets a space
        *[(f"x{mark}\n@highlight\ny", f"x{mark} y") for mark in ".?!\"'"],
        # anything else gets a full stop
        *[(f"x{mark}\n@highlight\ny", f"x{mark}. y") for mark in [",", ")", ";", ":", "-", "”", "’", "…", "]", " ", "x", "7", "é"]],
        ("One.\n@highlight\nTwo\n@highlight\nThree", "One. Two. Three"),
        ("One\n@highlight\nTwo.\n@highlight\nThree\n", "One. Two. Three\n"),
        ("\n@highlight\nTwo", ". Two"),
        ("One\n@highlight", "One\n@highlight"),
        ("One\n@highlight ", "One\n@highlight "),
        ("One\n @highlight\nTwo", "One\n @highlight\nTwo"),
        ("One\n@highlight \nTwo", "One\n@highlight \nTwo"),
        ("One\n@Highlight\nTwo", "One\n@Highlight\nTwo"),
        ("One @highlight Two", "One @highlight Two"),
        ("One\r\n@highlight\r\nTwo", "One\r\n@highlight\r\nTwo"),
        ("One.\r\n@highlight\nTwo", "One.\r. Two"),
        ("One.\n\n@highlight\nTwo", "One.\n. Two"),
        ("One.\n@highlight\n\nTwo", "One. \nTwo"),
        # matches do not share a line break
        ("One\n@highlight\n@highlight\nTwo", "One. @highlight\nTwo"),
        ("One.\n@highlight\n@highlight\nTwo", "One. @highlight\nTwo"),
        ("One.\n@highlight\n\n@highlight\nTwo", "One. . Two"),
        ("No highlights.\nBut a line.", "No highlights.\nBut a line."),
        ("", ""),
    )  # fmt: skip
    def test_highlights_become_sentences(self, passage, cleaned):
        expected = f"record query: @placeholder won. entities: A, B passage: {cleaned}"
        self.assertEqual(texts("super_glue", "record", self.row(passage)), [(expected, "A")])

    @parameterized.product(split=["train", "validation"])
    def test_every_answer_makes_an_example_duplicates_too(self, split):
        inputs = "record query: @placeholder won. entities: A, B passage: P."
        found = texts("super_glue", "record", self.row(answers=["B", "A", "B"]), split)
        self.assertEqual(found, [(inputs, "B"), (inputs, "A"), (inputs, "B")])

    @parameterized.product(split=["train", "validation", "test"])
    def test_no_answers_make_one_example_with_an_unknown_target(self, split):
        inputs = "record query: @placeholder won. entities: A, B passage: P."
        self.assertEqual(texts("super_glue", "record", self.row(answers=[]), split), [(inputs, "<unk>")])

    @parameterized.parameters(
        ([], "entities:  passage:"),
        (["B"], "entities: B passage:"),
        (["B", "A", "B"], "entities: B, A, B passage:"),
        (["b, c", "O'Neil", ""], "entities: b, c, O'Neil,  passage:"),
    )
    def test_entities_are_joined_in_the_order_given(self, entities, expected):
        self.assertIn(expected, texts("super_glue", "record", self.row(entities=entities))[0][0])

    def test_the_query_stays_as_it_is(self):
        query = "a  @placeholder\n@highlight\nb"
        self.assertEqual(
            texts("super_glue", "record", self.row(query=query))[0][0],
            f"record query: {query} entities: A, B passage: P.",
        )


PONY = (
    "The boy continued to whip the pony , and eventually the pony threw him over. "
    'John laughed out quite loud. "Good for him," he said. '
)
FARLEY = (
    "When they had eventually calmed down a bit , and had gotten home, Mr. Farley put the magic pebble in an iron safe . "
    "Some day they might want to use it , but really for now, what more could they wish for?"
)


class WscTest(parameterized.TestCase):
    def row(self, text, index, pronoun, label=1, referent="Tom"):
        return {
            "text": text, "span1_index": 0, "span2_index": index, "span1_text": referent, "span2_text": pronoun,
            "idx": 0, "label": label,
        }  # fmt: skip

    @parameterized.product(
        task=["wsc", "wsc.fixed"],
        case=[
            ("Mark told Pete that he won .", 4, "he", "Mark told Pete that *he* won ."),
            ("Mark told Pete that he won.", 4, "he", "Mark told Pete that *he* won."),
            ("Mark saw him. He ran .", 3, "He", "Mark saw him. *He* ran ."),
            # the word at the index, whatever stands elsewhere
            ("he saw he and he .", 2, "he", "he saw *he* and he ."),
            # an empty word stands between two spaces and counts
            ("Mark  told he ran", 3, "he", "Mark  told *he* ran"),
            (" Mark told he ran", 3, "he", " Mark told *he* ran"),
            ("Mark told he  ran ", 2, "he", "Mark told *he*  ran "),
            # only spaces separate words
            ("Mark\ttold he ran", 1, "he", "Mark\ttold *he* ran"),
            ("Mark\nX he ran", 1, "he", "Mark\nX *he* ran"),
            # a pronoun with its mark
            ("Ann saw him, then left", 2, "him,", "Ann saw *him,* then left"),
            # a pronoun at the end leaves a space
            ("Ann saw him", 2, "him", "Ann saw *him* "),
            ("Ann saw him ", 2, "him", "Ann saw *him* "),
            # stand-alone X are starred too; the first of two neighbours only
            ("Mr. X said he ran", 3, "he", "Mr. *he* said *he* ran"),
            ("Mr. X X said he ran", 4, "he", "Mr. *he* X said *he* ran"),
            ("Mr. X he ran", 2, "he", "Mr. *he* X ran"),
            ("Ann X", 1, "X", "Ann *X* "),
            ("X said he ran X", 2, "he", "X said *he* ran X"),
            ("Mr. X, (X) x said he ran", 5, "he", "Mr. X, (X) x said *he* ran"),
            # the second word of two
            ("a he", 1, "he", "a *he* "),
            # starred words and back references are text
            (r"a *b* \1 he c", 3, "he", r"a *b* \1 *he* c"),
        ],
    )
    def test_the_pronoun_is_starred(self, task, case):
        text, index, pronoun, expected = case
        found = texts("super_glue", task, self.row(text, index, pronoun, referent="the Tom "))
        self.assertEqual(found, [(f"wsc: {expected}", "the Tom ")])

    @parameterized.parameters(
        (PONY, 24, "him", 'wsc: The boy continued to whip the pony , and eventually the pony threw him over. John laughed out quite loud. "Good for *him* ," he said.'),
        (FARLEY, 26, "it", "wsc: When they had eventually calmed down a bit , and had gotten home, Mr. Farley put the magic pebble in an iron safe . Some day they might want to use *it* , but really for now, what more could they wish for?"),
    )  # fmt: skip
    def test_two_sentences_are_corrected(self, text, index, pronoun, expected):
        self.assertEqual(texts("super_glue", "wsc.fixed", self.row(text, index, pronoun)), [(expected, "Tom")])

    def test_a_sentence_that_only_resembles_the_two_is_not_corrected(self):
        with self.assertRaises(DataError):
            texts("super_glue", "wsc", self.row(PONY.rstrip(), 24, "him"))

    @parameterized.parameters(
        ("he saw Ann", 0, "he"),
        ("Ann saw he", 1, "he"),
        ("Ann saw he", 3, "he"),
        ("Ann saw he", -1, "he"),
        ("Ann saw He", 2, "he"),
        ("Ann saw he,", 2, "he"),
        ("", 0, ""),
    )
    def test_a_wrong_position_is_refused(self, text, index, pronoun):
        with self.assertRaisesRegex(DataError, "span2_"):
            texts("super_glue", "wsc", self.row(text, index, pronoun))

    @parameterized.product(task=["wsc", "wsc.fixed"], label=[0, -1])
    def test_training_keeps_true_labels_only(self, task, label):
        row = self.row("Ann saw he ran", 2, "he", label)
        self.assertEqual(texts("super_glue", task, row, "train"), [])
        for split in ("validation", "test"):
            self.assertEqual(texts("super_glue", task, row, split), [("wsc: Ann saw *he* ran", "Tom")])

    @parameterized.product(task=["wsc", "wsc.fixed"], label=[1, True, np.int64(1)])
    def test_training_keeps_a_true_label(self, task, label):
        row = self.row("Ann saw he ran", 2, "he", label)
        self.assertEqual(texts("super_glue", task, row, "train"), [("wsc: Ann saw *he* ran", "Tom")])

    @parameterized.parameters("the cup", "", "Tom's")
    def test_parse_gives_the_text_itself(self, text):
        for task in ("wsc", "wsc.fixed"):
            self.assertEqual(load_task("super_glue", task).parse(text), text)


# (premise, hypothesis, starred premise, referent)
WNLI_SIMPLE = [
    ("The fish ate the worm. It was tasty.", "The worm was tasty.", "The fish ate the worm. *It* was tasty.", "The worm"),
    ("The fish ate the worm. It was hungry.", "The fish was hungry.", "The fish ate the worm. *It* was hungry.", "The fish"),
    # the candidate ends the hypothesis, and the mark behind the pronoun is set off
    ("Ann lost the cup, so Bob looked for it.", "Bob looked for the cup.", "Ann lost the cup, so Bob looked for *it* .", "the cup"),
    ("Do you see it?", "Do you see the cup?", "Do you see *it* ?", "the cup"),
    ("Do not lose it! Please.", "Do not lose the cup.", "Do not lose *it* ! Please.", "the cup"),
    ("He saw it, then left.", "He saw the cup.", "He saw *it* , then left.", "the cup"),
    # the candidate stands between two contexts
    ("Lily spoke to Donna breaking her silence.", "Lily spoke to Donna breaking Donna's silence.", "Lily spoke to Donna breaking *her* silence.", "Donna"),
    # possessives are undone
    ("The dogs barked at their food.", "The dogs barked at the cats' food.", "The dogs barked at *their* food.", "the cats"),
    ("Ann took Bob's hat because it was his.", "Ann took Bob's hat because it was Bob's.", "Ann took Bob's hat because it was *his* .", "Bob"),
    # the pronoun whose surroundings are found best is starred, the first of equals
    ("He said that they ran.", "He said that the dogs ran.", "He said that *they* ran.", "the dogs"),
    ("He ran and he ran", "Bob ran", "*He* ran and he ran", "Bob"),
    # the original's spelling
    ("She saw it there", "She saw the OLD Cup there", "She saw *it* there", "the OLD Cup"),
    # cut from the article that starts furthest right ...
    ("Bob thinks it is red", "When a man saw the cup is red", "Bob thinks *it* is red", "the cup"),
    ("Bob thinks it is red", "So we say an apple is red", "Bob thinks *it* is red", "an apple"),
    # ... where of equal articles only the first is seen
    ("Bob thinks it is red", "Now the man saw the cup is red", "Bob thinks *it* is red", "the man saw the cup"),
    # no context in common
    ("It works.", "Nothing else.", "*It* works.", ""),
    ("it", "Nothing else.", "*it*", ""),
    # the context is found as characters, not as words
    ("See it run", "Bob running", "See *it* run", "Bob"),
    # marks inside the candidate
    ("They met and it fell down", "They met and the old, red cup fell down", "They met and *it* fell down", "the old, red cup"),
    # a closing mark of the candidate goes before the possessive ending
    ("I saw it fall", "I saw the cup, fall", "I saw *it* fall", "the cup"),
    # white space around the texts counts for nothing when searching; the starred premise keeps its own
    ("I saw it fall ", " I saw the cup fall\n", "I saw *it* fall ", "the cup"),
    # the context's words are patterns, brackets around several words and all
    ("The $5 said it fell", "$5 said Bob fell", "The $5 said *it* fell", "$5 said Bob"),
    ("A man (so old) said it fell", "A man (so old) said Bob fell", "A man (so old) said *it* fell", "A man (so old) said Bob"),
    # words that make no pattern are taken literally
    ("A man (so said it fell", "A man (so said Bob fell", "A man (so said *it* fell", "Bob"),
]  # fmt: skip


class WnliSimpleTest(parameterized.TestCase):
    @parameterized.parameters(*WNLI_SIMPLE)
    def test_the_premise_and_referent_become(self, premise, hypothesis, starred, referent):
        for label in (0, 1, -1):
            row = {"sentence1": premise, "sentence2": hypothesis, "label": label, "idx": 0}
            self.assertEqual(texts("glue", "wnli_simple", row), [(f"wsc: {starred}", referent)])

    @parameterized.parameters("he", "she", "they", "it", "her", "his", "their", "them", "him")
    def test_every_pronoun_is_seen_in_any_case(self, pronoun):
        for written in (pronoun, pronoun.capitalize(), pronoun.upper()):
            row = {"sentence1": f"Then {written} broke.", "sentence2": "Then Bob broke.", "label": 1}
            self.assertEqual(texts("glue", "wnli_simple", row), [(f"wsc: Then *{written}* broke.", "Bob")])

    @parameterized.parameters("We saw Bob.", "I, you, us, hers, its, theirs, who.", "")
    def test_a_premise_without_pronoun_is_refused(self, premise):
        with self.assertRaisesRegex(DataError, "pronoun"):
            texts("glue", "wnli_simple", {"sentence1": premise, "sentence2": "Bob.", "label": 1})


class DprTest(parameterized.TestCase):
    def row(self, sentence, pronoun, label=0):
        return {"sentence": sentence, "pronoun": pronoun, "candidates": ["The bees", "flowers"], "label": label}

    @parameterized.parameters(
        ("Bees sting as they fly.", "they", "Bees sting as *they* fly."),
        ("Bob saw him.", "him", "Bob saw *him*."),
        ("Bob saw him, then left.", "him", "Bob saw *him*, then left."),
        # the first occurrence only
        ("Bob said he knew he won.", "he", "Bob said *he* knew he won."),
        # not inside a word
        ("The theme is that he won.", "he", "The theme is that *he* won."),
        # at the beginning, before another mark, at the end: as it is
        ("He won.", "He", "He won."),
        ("Bob saw him?", "him", "Bob saw him?"),
        ("Bob saw him!", "him", "Bob saw him!"),
        ("Bob saw him", "him", "Bob saw him"),
        ("Bob saw him; he ran.", "him", "Bob saw him; he ran."),
        ("Bob\nhe ran.", "he", "Bob\nhe ran."),
        # a later one that fits
        ("He said that He won.", "He", "He said that *He* won."),
        ("Was it him? Bob saw him.", "him", "Was it him? Bob saw *him*."),
        # case counts
        ("Bob saw that HE won.", "he", "Bob saw that HE won."),
        # several words
        ("Tom lost because that newbie had luck.", "that newbie", "Tom lost because *that newbie* had luck."),
        ("Bob  he  ran.", "he", "Bob  *he*  ran."),
        # the pronoun is a pattern
        ("Bob saw her .", "he.", "Bob saw *her* ."),
        ("Bob saw that he. ran", "he", "Bob saw that *he*. ran"),
        ("Bob saw it+ there", "it+", "Bob saw it+ there"),
        ("Bob said he or she won.", "she|he", "Bob said *he* or she won."),
        ("", "he", ""),
    )
    def test_the_first_pronoun_is_starred(self, sentence, pronoun, expected):
        self.assertEqual(texts("super_glue", "dpr", self.row(sentence, pronoun)), [(f"wsc: {expected}", "The bees")])

    @parameterized.parameters("(", "he)", "*", "[")
    def test_a_pronoun_that_is_no_pattern_is_taken_literally(self, pronoun):
        found = texts("super_glue", "dpr", self.row(f"Bob saw {pronoun} there", pronoun))
        self.assertEqual(found[0][0], f"wsc: Bob saw *{pronoun}* there")

    @parameterized.parameters((0, "The bees"), (1, "flowers"), (-1, "<unk>"))
    def test_the_target_is_the_right_candidate(self, label, expected):
        self.assertEqual(texts("super_glue", "dpr", self.row("So they fly.", "they", label))[0][1], expected)

    @parameterized.parameters(2, -2)
    def test_a_label_that_is_no_candidate_is_refused(self, label):
        with self.assertRaisesRegex(DataError, "candidates"):
            texts("super_glue", "dpr", self.row("So they fly.", "they", label))


class CellsTest(parameterized.TestCase):
    WSC = {"text": "Ann saw he ran", "span1_text": "Tom", "span2_text": "he", "span2_index": 2, "label": 1}
    DPR = {"sentence": "So they fly.", "pronoun": "they", "candidates": ["The bees", "flowers"], "label": 1}
    RECORD = {"query": "@placeholder", "passage": "P.", "entities": ["A", "B"], "answers": ["A", "B"]}

    @parameterized.parameters(tuple, np.array)
    def test_cells_may_come_as_numpy_and_arrow_deliver_them(self, as_sequence):
        wsc = {**self.WSC, "span2_index": np.int64(2), "label": np.int64(1), "text": np.str_(self.WSC["text"])}
        self.assertEqual(texts("super_glue", "wsc", wsc, "train"), texts("super_glue", "wsc", self.WSC, "train"))
        dpr = {**self.DPR, "candidates": as_sequence(self.DPR["candidates"]), "label": np.int32(1)}
        self.assertEqual(texts("super_glue", "dpr", dpr), texts("super_glue", "dpr", self.DPR))
        record = {k: as_sequence(v) if isinstance(v, list) else v for k, v in self.RECORD.items()}
        self.assertEqual(texts("super_glue", "record", record), texts("super_glue", "record", self.RECORD))
        self.assertEqual(load_task("super_glue", "record").score([record], ["b", "a"])["f1"], 100.0)
        record["answers"] = as_sequence([])
        self.assertEqual(load_task("super_glue", "record").score([record], ["b"]), {})
        self.assertEqual(texts("super_glue", "record", record)[0][1], "<unk>")

    @parameterized.parameters(
        ("wsc", "text", None), ("wsc", "span2_index", "2"), ("wsc", "span2_index", True), ("wsc", "span1_text", 3),
        ("dpr", "pronoun", None), ("dpr", "sentence", 1), ("dpr", "candidates", "The bees"), ("record", "entities", "A, B"),
        ("record", "passage", None), ("record", "query", ["q"]), ("multirc", "paragraph", {"text": "p"}), ("rte", "premise", None),
    )  # fmt: skip
    def test_a_cell_of_the_wrong_kind_is_told_by_its_column(self, name, column, value):
        rows = {"wsc": self.WSC, "dpr": self.DPR, "record": self.RECORD, "rte": {"premise": "p", "hypothesis": "h"}}
        row = rows.get(name) or {"paragraph": "p", "question": "q", "answer": "a"}
        with self.assertRaisesRegex(DataError, f"{column}.* not a "):
            texts("super_glue", name, {**row, column: value})


class ContractTest(parameterized.TestCase):
    def test_an_example_is_named_and_a_pair(self):
        (example,) = load_task("glue", "sst2").examples({"sentence": "x", "label": 1})
        self.assertEqual((example.inputs, example.targets), ("sst2 sentence: x", "positive"))
        inputs, targets = example
        self.assertEqual((inputs, targets), tuple(example))

    def test_every_plain_task_stands_in_the_tables_above(self):
        special = {("super_glue", name) for name in ("multirc", "record", "wsc", "wsc.fixed", "dpr")}
        listed = set(TEMPLATES) | special | {("glue", "wnli_simple")}
        of_t5 = {b: DATASET_VALS[b] for b in ("glue", "super_glue", "mini")}  # test_benchmark_entries has the others'
        self.assertEqual({(b, name) for b, tasks in of_t5.items() for name in tasks}, listed)


if __name__ == "__main__":
    absltest.main()
