"""Row -> (inputs, targets): every task's text, character by character.

Expected strings are written out by hand from the description of the original T5 and were compared with the released
`t5` 0.9.4 preprocessors; none is computed.
"""

import copy
import hashlib
import json

import numpy as np
import pytest
from absl.testing import parameterized
from shared_data import MISSING, has, read_rows

from t5suite import DATASET_VALS, load_task
from t5suite.testing import exits_with

IDX = {"paragraph": 3, "question": 5, "answer": 8}
QUERY_IDX = {"passage": 1, "query": 2}


def texts(benchmark, name, row, split="validation"):
    return [tuple(example) for example in load_task(benchmark, name).examples(row, split)]


# Values that a careless template would change.
ODD_VALUES = [
    "", " ", "  two  spaces  ", "line\nbreak\r\nand\ttab", "UPPER Case", "it 's `` tokenised ''",
    "na\u00efve \u201cquoted\u201d caf\u00e9 \u6f22 \U0001f389", "a\u00a0b\u2028c", r"back\1slash \g<0> %s {0} $1", "<br><b>bold</b> &amp;",
    "question: x sentence: y", "</s> <pad> <extra_id_0>",
]  # fmt: skip

# task -> (columns in the order of the text, text with one %s a column)
TEMPLATES = {
    ("glue", "cola"): (["sentence"], "cola sentence: %s"), ("glue", "sst2"): (["sentence"], "sst2 sentence: %s"),
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
    ("super_glue", "copa"): (["choice1", "choice2", "premise", "question"], "copa choice1: %s choice2: %s premise: %s question: %s"),
    ("super_glue", "rte"): (["hypothesis", "premise"], "rte hypothesis: %s premise: %s"),
    ("super_glue", "wic"): (["sentence1", "sentence2", "word"], "wic sentence1: %s sentence2: %s word: %s"),
    ("super_glue", "axb"): (["sentence2", "sentence1"], "rte hypothesis: %s premise: %s"),
    ("super_glue", "axg"): (["hypothesis", "premise"], "rte hypothesis: %s premise: %s"),
    ("mini", "sentiment"): (["sentence"], "sentiment sentence: %s"),
    ("mini", "entailment"): (["premise", "hypothesis"], "entailment premise: %s hypothesis: %s"),
    ("mini", "similarity"): (["sentence1", "sentence2"], "similarity sentence1: %s sentence2: %s"),
}  # fmt: skip

LABEL_WORDS = {
    ("glue", "cola"): ["unacceptable", "acceptable"], ("glue", "sst2"): ["negative", "positive"], ("glue", "mrpc"): ["not_equivalent", "equivalent"],
    ("glue", "qqp"): ["not_duplicate", "duplicate"], ("glue", "mnli"): ["entailment", "neutral", "contradiction"],
    ("glue", "qnli"): ["entailment", "not_entailment"], ("glue", "rte"): ["entailment", "not_entailment"],
    ("glue", "wnli"): ["not_entailment", "entailment"], ("glue", "ax"): ["entailment", "neutral", "contradiction"],
    ("super_glue", "boolq"): ["False", "True"], ("super_glue", "cb"): ["entailment", "contradiction", "neutral"],
    ("super_glue", "copa"): ["choice1", "choice2"], ("super_glue", "multirc"): ["False", "True"],
    ("super_glue", "rte"): ["entailment", "not_entailment"], ("super_glue", "wic"): ["False", "True"],
    ("super_glue", "axb"): ["entailment", "not_entailment"], ("super_glue", "axg"): ["entailment", "not_entailment"],
}  # fmt: skip


def plain_row(key, value="x", label=0):
    columns = TEMPLATES[key][0] if key in TEMPLATES else ["question", "answer", "paragraph"]
    return {**dict.fromkeys(columns, value), "label": label, "idx": IDX if key[1] == "multirc" else 0}


class PlainTasksTest(parameterized.TestCase):
    @parameterized.parameters(*TEMPLATES)
    def test_values_are_inserted_untouched_whatever_else_the_row_has(self, *key):
        columns, template = TEMPLATES[key]
        for odd in ODD_VALUES:
            for column in columns:
                row = {"aaa": "first", **dict(reversed(plain_row(key).items())), "zzz": 7, "extra": ["a"], column: odd}
                before = copy.deepcopy(row)
                ((inputs, _),) = texts(*key, row)
                self.assertEqual(inputs, template % tuple(row[c] for c in columns))
                self.assertEqual(row, before)

    @parameterized.parameters(*LABEL_WORDS)
    def test_label_words_stand_in_the_order_of_their_ids(self, *key):
        for split in ("train", "validation", "test"):
            for label, word in enumerate(LABEL_WORDS[key]):
                for same in (label, np.int64(label)):
                    self.assertEqual(texts(*key, plain_row(key, label=same), split)[0][1], word)
            self.assertEqual(texts(*key, plain_row(key, label=-1), split)[0][1], "<unk>")
        row = plain_row(key)
        del row["label"]
        self.assertEqual(texts(*key, row)[0][1], "<unk>")
        for label in (3, 7, -2, 0.5, "other"):
            with exits_with(65, "label"):
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

    def test_every_plain_task_stands_in_the_tables_above(self):
        special = {("super_glue", name) for name in ("multirc", "record", "wsc", "wsc.fixed", "dpr")}
        of_t5 = {b: DATASET_VALS[b] for b in ("glue", "super_glue", "mini")}  # test_benchmark_entries has the others'
        listed = set(TEMPLATES) | special | {("glue", "wnli_simple")}
        self.assertEqual({(b, name) for b, tasks in of_t5.items() for name in tasks}, listed)

    def test_a_missing_text_column_is_named(self):
        for column in ("label", "answers"):
            with exits_with(65, "sentence2"):
                texts("glue", "rte", {"sentence1": "A", column: 0})


# 0.00, 0.05, ... 5.00 -> nearest 0.2, float32, halves to even; written out.
STSB_GRID = """
0.0 0.0 0.0 0.2 0.2 0.2 0.4 0.4 0.4 0.4 0.4 0.6 0.6 0.6 0.8 0.8 0.8 0.8 0.8 1.0 1.0 1.0 1.2 1.2 1.2
1.2 1.2 1.4 1.4 1.4 1.6 1.6 1.6 1.6 1.6 1.8 1.8 1.8 2.0 2.0 2.0 2.0 2.0 2.2 2.2 2.2 2.4 2.4 2.4 2.4
2.4 2.6 2.6 2.6 2.8 2.8 2.8 2.8 2.8 3.0 3.0 3.0 3.2 3.2 3.2 3.2 3.2 3.4 3.4 3.4 3.6 3.6 3.6 3.6 3.6
3.8 3.8 3.8 4.0 4.0 4.0 4.0 4.0 4.2 4.2 4.2 4.4 4.4 4.4 4.4 4.4 4.6 4.6 4.6 4.8 4.8 4.8 4.8 4.8 5.0
5.0
""".split()


class StsbTest(parameterized.TestCase):
    def target(self, label):
        return texts("glue", "stsb", {"sentence1": "a", "sentence2": "b", "label": label, "idx": 0})[0][1]

    def test_every_twentieth_rounds_to_a_fifth_halves_to_even(self):
        for step, expected in enumerate(STSB_GRID):
            for label in (step / 20, round(step * 0.05, 2), np.float32(step / 20), float(np.float32(step / 20))):
                self.assertEqual(self.target(label), expected)

    def test_a_score_rounds_to(self):
        cases = {2.333: "2.4", 2.3: "2.4", 2.299: "2.2", 0.1: "0.0", 1.3: "1.2", 2.5: "2.4", 4.99: "5.0", 5: "5.0",
                 3.799999952316284: "3.8", 4.91: "5.0", -1.0: "-1.0", 0.0999: "0.0", 0.101: "0.2", "3.8": "3.8"}  # fmt: skip
        for label, expected in cases.items():
            self.assertEqual(self.target(label), expected)
        self.assertEqual(texts("glue", "stsb", {"sentence1": "a", "sentence2": "b"})[0][1], "-1.0")
        for label in ("high", float("nan"), float("inf")):
            with exits_with(65, "label"):
                self.target(label)

    def test_a_prediction_is_read_as_python_reads_numbers(self):
        read = {"2.6": 2.6, " 2.6 ": 2.6, "2.6\n": 2.6, "1e1": 10.0, "-3": -3.0, ".5": 0.5, "5.": 5.0, "3,4": -1.0,
                "": -1.0, "2.6 points": -1.0, "two": -1.0, "<unk>": -1.0, "2 .6": -1.0, "--1": -1.0}  # fmt: skip
        task = load_task("glue", "stsb")
        for text, expected in read.items():
            self.assertEqual(task.parse(text), expected)
        self.assertTrue(np.isnan(task.parse("nan")))


class MultircTest(parameterized.TestCase):
    @parameterized.parameters(
        ("<b>Sent 1: </b>Hi.<br><b>Sent 2: </b>Bye.<br>", "Sent 1: Hi. Sent 2: Bye. "), ("a<br><br>b", "a  b"),
        ("a <br> b", "a   b"), ("a<br/>b<BR>c<i>d</i><B>e</B>", "a<br/>b<BR>c<i>d</i><B>e</B>"), ("<b></b>", ""),
        ("<b", "<b"), ("</br>", "</br>"), ("<b >", "<b >"), ("<b/>< b><br >", "<b/>< b><br >"), ("<<b>/b>", "</b>"),
        ("<b<b>>", "<b>"), ("<b<br>>", "<b >"), ("line\nbreak", "line\nbreak"), ("", ""),
    )  # fmt: skip
    def test_markup_is_removed_in_one_pass_from(self, paragraph, expected):
        row = {"paragraph": paragraph, "question": "Q?", "answer": "A", "idx": IDX, "label": 0}
        self.assertEqual(
            texts("super_glue", "multirc", row), [(f"multirc question: Q? answer: A paragraph: {expected}", "False")]
        )


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
        ("One\n@highlight\nTwo.\n@highlight\nThree\n", "One. Two. Three\n"), ("\n@highlight\nTwo", ". Two"),
        *[(same, same) for same in (
            "One\n@highlight", "One\n@highlight ", "One\n @highlight\nTwo", "One\n@highlight \nTwo", "One\n@Highlight\nTwo",
            "One @highlight Two", "One\r\n@highlight\r\nTwo", "No highlights.\nBut a line.", "",
        )],
        ("One.\r\n@highlight\nTwo", "One.\r. Two"), ("One.\n\n@highlight\nTwo", "One.\n. Two"),
        ("One.\n@highlight\n\nTwo", "One. \nTwo"),
        # matches do not share a line break
        ("One\n@highlight\n@highlight\nTwo", "One. @highlight\nTwo"),
        ("One.\n@highlight\n@highlight\nTwo", "One. @highlight\nTwo"),
        ("One.\n@highlight\n\n@highlight\nTwo", "One. . Two"),
    )  # fmt: skip
    def test_highlights_become_sentences(self, passage, cleaned):
        expected = f"record query: @placeholder won. entities: A, B passage: {cleaned}"
        self.assertEqual(texts("super_glue", "record", self.row(passage)), [(expected, "A")])

    def test_every_answer_makes_an_example_duplicates_too_and_none_an_unknown_target(self):
        inputs = "record query: @placeholder won. entities: A, B passage: P."
        for split in ("train", "validation", "test"):
            found = texts("super_glue", "record", self.row(answers=["B", "A", "B"]), split)
            self.assertEqual(found, [(inputs, "B"), (inputs, "A"), (inputs, "B")])
            self.assertEqual(texts("super_glue", "record", self.row(answers=[]), split), [(inputs, "<unk>")])

    def test_entities_are_joined_in_the_order_given_and_the_query_stays(self):
        query = "a  @placeholder\n@highlight\nb"
        for entities, expected in (
            ([], ""), (["B"], "B"), (["B", "A", "B"], "B, A, B"), (["b, c", "O'Neil", ""], "b, c, O'Neil, "),
        ):  # fmt: skip
            found = texts("super_glue", "record", self.row(query=query, entities=entities))[0][0]
            self.assertEqual(found, f"record query: {query} entities: {expected} passage: P.")


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
        (PONY, 24, "him", 'wsc: The boy continued to whip the pony , and eventually the pony threw him over. '
         'John laughed out quite loud. "Good for *him* ," he said.'),
        (FARLEY, 26, "it", "wsc: When they had eventually calmed down a bit , and had gotten home, Mr. Farley put the magic pebble in an iron "
         "safe . Some day they might want to use *it* , but really for now, what more could they wish for?"),
    )  # fmt: skip
    def test_two_sentences_are_corrected(self, text, index, pronoun, expected):
        self.assertEqual(texts("super_glue", "wsc.fixed", self.row(text, index, pronoun)), [(expected, "Tom")])

    @parameterized.parameters(
        ("he saw Ann", 0, "he"), ("Ann saw he", 1, "he"), ("Ann saw he", 3, "he"), ("Ann saw he", -1, "he"),
        ("Ann saw He", 2, "he"), ("Ann saw he,", 2, "he"), ("", 0, ""),
    )  # fmt: skip
    def test_a_wrong_position_is_refused(self, text, index, pronoun):
        with exits_with(65, "span2_"):
            texts("super_glue", "wsc", self.row(text, index, pronoun))

    @parameterized.parameters("wsc", "wsc.fixed")
    def test_training_keeps_true_labels_only(self, task):
        expected = [("wsc: Ann saw *he* ran", "Tom")]
        for label in (0, -1, 1, True, np.int64(1)):
            row = self.row("Ann saw he ran", 2, "he", label)
            self.assertEqual(texts("super_glue", task, row, "train"), expected if label == 1 else [])
            for split in ("validation", "test"):
                self.assertEqual(texts("super_glue", task, row, split), expected)
        self.assertEqual(load_task("super_glue", task).parse("Tom's"), "Tom's")


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

    def test_every_pronoun_is_seen_in_any_case(self):
        pronouns = "he she they it her his their them him".split()
        for written in [form for word in pronouns for form in (word, word.capitalize(), word.upper())]:
            row = {"sentence1": f"Then {written} broke.", "sentence2": "Then Bob broke.", "label": 1}
            self.assertEqual(texts("glue", "wnli_simple", row), [(f"wsc: Then *{written}* broke.", "Bob")])

    @parameterized.parameters("We saw Bob.", "I, you, us, hers, its, theirs, who.", "")
    def test_a_premise_without_pronoun_is_refused(self, premise):
        with exits_with(65, "pronoun"):
            texts("glue", "wnli_simple", {"sentence1": premise, "sentence2": "Bob.", "label": 1})


class DprTest(parameterized.TestCase):
    def row(self, sentence, pronoun, label=0):
        return {"sentence": sentence, "pronoun": pronoun, "candidates": ["The bees", "flowers"], "label": label}

    @parameterized.parameters(
        ("Bees sting as they fly.", "they", "Bees sting as *they* fly."), ("Bob saw him.", "him", "Bob saw *him*."),
        ("Bob saw him, then left.", "him", "Bob saw *him*, then left."), ("", "he", ""),
        # the first occurrence only, and not inside a word
        ("Bob said he knew he won.", "he", "Bob said *he* knew he won."),
        ("The theme is that he won.", "he", "The theme is that *he* won."),
        # at the beginning, before another mark, at the end: as it is
        ("He won.", "He", "He won."), ("Bob saw him?", "him", "Bob saw him?"), ("Bob saw him!", "him", "Bob saw him!"),
        ("Bob saw him", "him", "Bob saw him"), ("Bob saw him; he ran.", "him", "Bob saw him; he ran."),
        ("Bob\nhe ran.", "he", "Bob\nhe ran."),
        # a later one that fits; case counts
        ("He said that He won.", "He", "He said that *He* won."),
        ("Was it him? Bob saw him.", "him", "Was it him? Bob saw *him*."),
        ("Bob saw that HE won.", "he", "Bob saw that HE won."),
        # several words
        ("Tom lost because that newbie had luck.", "that newbie", "Tom lost because *that newbie* had luck."),
        ("Bob  he  ran.", "he", "Bob  *he*  ran."),
        # the pronoun is a pattern
        ("Bob saw her .", "he.", "Bob saw *her* ."), ("Bob saw that he. ran", "he", "Bob saw that *he*. ran"),
        ("Bob saw it+ there", "it+", "Bob saw it+ there"), ("Bob said he or she won.", "she|he", "Bob said *he* or she won."),
    )  # fmt: skip
    def test_the_first_pronoun_is_starred(self, sentence, pronoun, expected):
        self.assertEqual(texts("super_glue", "dpr", self.row(sentence, pronoun)), [(f"wsc: {expected}", "The bees")])

    def test_a_pronoun_that_is_no_pattern_is_taken_literally(self):
        for pronoun in ("(", "he)", "*", "["):
            for after in ("there", f"and {pronoun} there"):  # the first one alone, as of a pattern
                ((text, _),) = texts("super_glue", "dpr", self.row(f"Bob saw {pronoun} {after}", pronoun))
                self.assertEqual(text, f"wsc: Bob saw *{pronoun}* {after}")

    def test_the_target_is_the_right_candidate_and_another_label_is_refused(self):
        for label, expected in ((0, "The bees"), (1, "flowers"), (-1, "<unk>"), (None, "<unk>")):
            self.assertEqual(texts("super_glue", "dpr", self.row("So they fly.", "they", label))[0][1], expected)
        numbers = {**self.row("So they fly.", "they", 1), "candidates": [7, 8]}
        self.assertEqual(texts("super_glue", "dpr", numbers)[0][1], "8")
        self.assertEqual(load_task("super_glue", "dpr").candidates(numbers), ["7", "8"])
        for label in (2, -2):
            with exits_with(65, "candidates"):
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
        with exits_with(65, f'{column}.* (not a |is null; write "" for an empty text)'):
            texts("super_glue", name, {**row, column: value})


# benchmark/task/file -> rows, examples, SHA-256 (its beginning) of all the original's (inputs, targets), and the
# original's scores where every row is labelled and each example's prediction is the NEXT example's target. wnli_simple
# reads wnli's files.
ORIGINAL = {
    "glue/ax/test.jsonl": (1104, 1104, "fee15f23baf1edb0", {}),
    "glue/cola/test.jsonl": (1063, 1063, "e6fd3c6fb1a2f329", {}),
    "glue/cola/train.jsonl": (8551, 8551, "11a93eeb93717ba1", {"matthews_correlation": 20.42130299}),
    "glue/cola/validation.jsonl": (1043, 1043, "7c10e6d7562d9e87", {"matthews_correlation": 6.554905626}),
    "glue/mnli/train.9999.jsonl.gz": (9999, 9999, "b38fc14aee83b6e5", {"accuracy": 33.783378338}),
    "glue/mnli/train.jsonl": (4000, 4000, "1fe379408e7a4e60", {"accuracy": 34.5}),
    "glue/mnli/validation_matched.full.jsonl.gz": (9815, 9815, "43bed1851cb02bca", {"accuracy": 33.611818645}),
    "glue/mnli/validation_matched.jsonl": (1000, 1000, "e8d1d63f30c07ff3", {"accuracy": 34.6}),
    "glue/mnli/validation_mismatched.jsonl": (997, 997, "97d71f7c9c641b54", {"accuracy": 33.901705115}),
    "glue/mrpc/test.jsonl": (1725, 1725, "6fa746e4ca815cea", {"f1": 66.695727986, "accuracy": 55.710144928}),
    "glue/mrpc/train.jsonl": (3668, 3668, "700302a4b13639c2", {"f1": 67.219078416, "accuracy": 55.779716467}),
    "glue/mrpc/validation.jsonl": (408, 408, "dfbf6b2f9e98d6d2", {"f1": 65.591397849, "accuracy": 52.941176471}),
    "glue/qnli/test.jsonl": (1000, 1000, "0478efb813d885da", {}),
    "glue/qnli/train.9999.jsonl.gz": (9999, 9999, "5931b93d087e95fa", {"accuracy": 49.494949495}),
    "glue/qnli/train.jsonl": (4000, 4000, "8effb0cffc1b1d01", {"accuracy": 48.7}),
    "glue/qnli/validation.full.jsonl.gz": (5463, 5463, "3d31cbfc2f4aca7b", {"accuracy": 50.759655867}),
    "glue/qnli/validation.jsonl": (1000, 1000, "cff158eea827d295", {"accuracy": 51.2}),
    "glue/qqp/train.9999.jsonl.gz": (9999, 9999, "de7ef3ac43dbd0ee", {"f1": 36.786993662, "accuracy": 54.115411541}),
    "glue/qqp/train.jsonl": (4000, 4000, "71bd9bf446a73e23", {"f1": 34.137686302, "accuracy": 53.6}),
    "glue/qqp/validation.7600.jsonl.gz": (7600, 7600, "9b640e9bfff9d6e0", {"f1": 36.130450715, "accuracy": 54.131578947}),
    "glue/qqp/validation.jsonl": (1000, 1000, "34615e7b130f9034", {"f1": 40.273972603, "accuracy": 56.4}),
    "glue/rte/test.jsonl": (3000, 3000, "d562b75060c29a13", {}),
    "glue/rte/train.jsonl": (2490, 2490, "e4db421caa19c64a", {"accuracy": 48.353413655}),
    "glue/rte/validation.jsonl": (277, 277, "d297d509e1e622b3", {"accuracy": 48.014440433}),
    "glue/sst2/test.jsonl": (1821, 1821, "8e6aa35aba476e56", {}),
    "glue/sst2/train.full.jsonl.gz": (67349, 67349, "da9c9d776cecdfeb", {"accuracy": 50.953985954}),
    "glue/sst2/train.jsonl": (4000, 4000, "8a8692ce3b71c2f8", {"accuracy": 50.5}),
    "glue/sst2/validation.jsonl": (872, 872, "42b1a963d97670d0", {"accuracy": 49.541284404}),
    "glue/stsb/test.jsonl": (1379, 1379, "35b1412842f66836", {}),
    "glue/stsb/train.jsonl": (5749, 5749, "6d834f87cd40495d", {"pearson": 12.748740902, "spearman": 10.943949171}),
    "glue/stsb/validation.jsonl": (1500, 1500, "8b3c02d292093c21", {"pearson": 21.454128118, "spearman": 21.353827908}),
    "glue/wnli/test.jsonl": (146, 146, "0b8ae4a44df9167d", {}),
    "glue/wnli_simple/test.jsonl": (146, 146, "bf7a208a8b8d4b4c", {}),
    "glue/wnli/train.jsonl": (635, 635, "c280bd107ddc1b24", {"accuracy": 53.070866142}),
    "glue/wnli_simple/train.jsonl": (635, 635, "ed613501e56bb6d8", {"accuracy": 50.078740157}),
    "glue/wnli/validation.jsonl": (71, 71, "6f35c4e26dc4acbd", {"accuracy": 40.845070423}),
    "glue/wnli_simple/validation.jsonl": (71, 71, "a16d4f609c01fc08", {"accuracy": 57.746478873}),
    "super_glue/axb/test.jsonl": (1104, 1104, "4916eb8d139ab29a", {"matthews_correlation": 15.776397516}),
    "super_glue/axg/test.jsonl": (356, 356, "fd98d11a035c2cff", {"accuracy": 65.730337079}),
    "super_glue/boolq/test.jsonl": (500, 500, "28b05f89a8cb1483", {}),
    "super_glue/boolq/train.jsonl": (2045, 2045, "2694ea21dcbe00f9", {"accuracy": 52.958435208}),
    "super_glue/boolq/validation.full.jsonl.gz": (3270, 3270, "f78246e87969a92b", {"accuracy": 53.70030581}),
    "super_glue/boolq/validation.jsonl": (1000, 1000, "e7c78ab174ffbc11", {"accuracy": 55.2}),
    "super_glue/cb/test.jsonl": (250, 250, "ee32e5eec149143c", {}),
    "super_glue/cb/train.jsonl": (250, 250, "74cf66f82fcc9256", {"mean_3class_f1": 60.14188284, "accuracy": 74.4}),
    "super_glue/cb/validation.jsonl": (56, 56, "be67031e8c6dfa43", {"mean_3class_f1": 27.329192547, "accuracy": 37.5}),
    "super_glue/copa/test.jsonl": (500, 500, "0ab9ee98446d91f5", {}),
    "super_glue/copa/train.jsonl": (400, 400, "2a60a46b8739f793", {"accuracy": 51.0}),
    "super_glue/copa/validation.jsonl": (100, 100, "0ad3896a7915529d", {"accuracy": 54.0}),
    "super_glue/multirc/train.full.jsonl.gz": (27243, 27243, "aca9ae5b57839202", {"f1": 39.06029106, "exact_match": 0.584681349}),
    "super_glue/multirc/train.jsonl": (1530, 1530, "3d3022724da6d260", {"f1": 38.532110092, "exact_match": 1.060070671}),
    "super_glue/multirc/validation.full.jsonl.gz": (4848, 4848, "75ff7f74700ec11c", {"f1": 37.734939759, "exact_match": 0.73452256}),
    "super_glue/multirc/validation.jsonl": (1022, 1022, "1971d9210c728710", {"f1": 37.901498929, "exact_match": 0.0}),
    "super_glue/record/train.jsonl": (64, 90, "a9083d83bd145894", {"exact_match": 39.0625, "f1": 39.0625}),
    "super_glue/record/validation.jsonl": (123, 193, "1705c28c46b01301", {"exact_match": 48.780487805, "f1": 48.780487805}),
    "super_glue/rte/test.jsonl": (3000, 3000, "5a884efdd8d81a34", {}),
    "super_glue/rte/train.jsonl": (2490, 2490, "3e9c0cc57cd784af", {"accuracy": 48.353413655}),
    "super_glue/rte/validation.jsonl": (277, 277, "7df21abc6fa22671", {"accuracy": 48.014440433}),
    "super_glue/wic/test.jsonl": (1400, 1400, "57d10fba7bf513b0", {}),
    "super_glue/wic/train.jsonl": (5428, 5428, "3357748b8777eb2c", {"accuracy": 50.29476787}),
    "super_glue/wic/validation.jsonl": (638, 638, "adc8a0046c977ac9", {"accuracy": 50.78369906}),
    "super_glue/wsc/test.jsonl": (146, 146, "2475878df53b360d", {}),
    "super_glue/wsc/train.jsonl": (554, 259, "b9d87626998b1f49", {"accuracy": 1.544401544}),
    "super_glue/wsc/validation.jsonl": (104, 104, "1ee8bcac2cdf1a4f", {"accuracy": 63.461538462}),
    "super_glue/wsc.fixed/test.jsonl": (146, 146, "d2dae742afb841d5", {}),
    "super_glue/wsc.fixed/train.jsonl": (554, 259, "b693ce5e5b228fa1", {"accuracy": 1.544401544}),
    "super_glue/wsc.fixed/validation.jsonl": (104, 104, "0df2393341df30d1", {"accuracy": 63.461538462}),
}  # fmt: skip
LARGE = [path for path, (count, *_) in ORIGINAL.items() if count > 3000 or path == "glue/wnli_simple/train.jsonl"]
VERDICTS = {"wsc", "wsc.fixed", "wnli_simple"}


class RealRowsTest(parameterized.TestCase):
    """Texts and scores equal those of the released `t5` 0.9.4 on the same files."""

    @parameterized.parameters(*[path for path in ORIGINAL if path not in LARGE])
    def test_texts_and_scores_equal_the_originals(self, path):
        self.check(path)

    @parameterized.parameters(*LARGE)
    @pytest.mark.slow
    def test_texts_and_scores_of_large_files_equal_the_originals(self, path):
        self.check(path)

    def check(self, path):
        if not has("glue/cola/validation.jsonl"):
            self.skipTest(MISSING)
        benchmark, name, file = path.split("/")
        task, split = load_task(benchmark, name), file.split(".")[0]
        num_rows, num_examples, digest, expected_scores = ORIGINAL[path]
        rows = read_rows(path.replace("wnli_simple", "wnli"))
        examples = [tuple(example) for row in rows for example in task.examples(row, split)]
        self.assertEqual((len(rows), len(examples)), (num_rows, num_examples))
        found = hashlib.sha256(b"".join(json.dumps(example).encode() + b"\n" for example in examples))
        self.assertEqual(found.hexdigest()[:16], digest)
        targets = [target for _, target in examples]
        scores = task.score(rows, targets[1:] + targets[:1], split)
        for metric, expected in expected_scores.items():
            self.assertAlmostEqual(scores[metric], expected, delta=1e-6, msg=metric)
        if not expected_scores:
            self.assertEqual(scores, {})
            if name not in VERDICTS:
                self.assertEqual(set(targets), {"-1.0" if name == "stsb" else "<unk>"})
            return
        gold = task.score(rows, targets, split)
        if name in VERDICTS:
            # writing the row's own candidate is right where the label says so; an empty one never is
            kept = [row for row in rows if task.examples(row, split)]
            right = [target != "" and row["label"] == 1 for row, target in zip(kept, targets, strict=True)]
            self.assertAlmostEqual(gold["accuracy"], 100 * sum(right) / len(right))
            return
        parity = gold.pop("gender_parity", None)
        self.assertEqual(gold.pop("invalid_rate", 0.0), 0.0)
        for metric, value in gold.items():
            self.assertAlmostEqual(value, 100.0, msg=metric)
        if parity is not None:
            pairs = [{row["label"] for row in rows[i : i + 2]} for i in range(0, len(rows), 2)]
            self.assertAlmostEqual(parity, 100 * sum(len(pair) == 1 for pair in pairs) / len(pairs))
