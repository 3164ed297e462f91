"""A model and its tokenizer -> answers to texts, in batches of similar length, shared among the ranks.

    >>> predictor = Predictor(model, encoding, batch_size=16)
    >>> prompts = prompts_of(encoding, ["rte sentence1: It rains. sentence2: It is wet."])
    >>> predictor.answers(prompts, DecodingSettings(), max_new_tokens=5)
    [[WrittenAnswer(text='entailment', score=None, truncated=False, num_tokens=2)]]
    >>> predictor.choices(prompts_of(encoding, ["sst2 sentence: Good."]), [["negative", "positive"]])
    [Choice(text='positive', shares={'negative': 0.02, 'positive': 0.98})]

Batches are made of all the texts given, longest first, and distributed over the ranks: which texts share a batch does
not depend on the number of ranks.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from t5suite.base.errors import ConfigError
from t5suite.base.libraries import unproved_paths
from t5suite.data.batches.encodings import LabelsEncoding, PromptEncoding, SegmentEncoding, answer_text
from t5suite.inference.decoding import generation_options
from t5suite.inference.decoding_settings import DecodingSettings
from t5suite.inference.pieces import PieceStreamer
from t5suite.models.adapters import num_virtual_tokens
from t5suite.models.answering.answerer import AnswerSettings, before_end
from t5suite.models.answering.call_settings import generating_by
from t5suite.models.config_limits import check_length
from t5suite.models.families import FAMILIES, recognize_family
from t5suite.training.evaluation import batches_by_length
from t5suite.training.label_checks import labels_with_same_ids, with_room_for_labels
from t5suite.training.processes.ranks import Ranks

logger = logging.getLogger(__name__)

ANY_NUMBER = (-math.inf, math.inf)
# The virtual tokens before the input of each stack.
NO_VIRTUAL_TOKENS = {"encoder": 0, "decoder": 0}


class Answer(NamedTuple):
    """One answer: its text, its log-probability in nats (if requested), whether it was cut off at the longest.

    `invalid`: it is no label, or no number, where the task has them.
    """

    text: str
    score: float | None
    truncated: bool
    invalid: bool = False


class WrittenAnswer(NamedTuple):
    """An `Answer`, and how many tokens were written for it, end-of-sequence included."""

    text: str
    score: float | None
    truncated: bool
    num_tokens: int


class Choice(NamedTuple):
    """The chosen text, and the probability of each candidate (None for a number)."""

    text: str
    shares: dict[str, float] | None


class Predictor:
    """Answers texts with one model.

    Args:
      encoding: texts to ids and back, for the model's family (`t5suite.data.batches.encodings`).
      family: seq2seq, causal, masked or encoder, if not what the model's class says.
      ranks: the processes that share the texts.
    """

    def __init__(self, model, encoding, batch_size: int = 16, family=None, ranks=None, device=None):
        self.model = model
        self.encoding = encoding
        self.batch_size = batch_size
        self.ranks = ranks or Ranks()
        model_family = recognize_family(model) if family is None else FAMILIES[family]
        settings = AnswerSettings(
            disabled_paths=frozenset(unproved_paths()), num_fixed_tokens=encoding.num_fixed_tokens
        )
        self.answerer = model_family.make_answerer(model, encoding.tokenizer, settings, device=device)
        self.writes = not isinstance(encoding, SegmentEncoding)

    def answers(
        self,
        prompts: Sequence[list[int]],
        decoding: DecodingSettings,
        max_new_tokens: int,
        indices: Sequence[int] | None = None,
        scores: bool = False,
        plain: bool = False,
        languages: Sequence[tuple] | None = None,
    ) -> list[list[WrittenAnswer]]:
        """Per prompt, its answers: one, or `num_return_sequences` of them, the best (or first drawn) first.

        Args:
          prompts: texts as ids (`prompts_of`).
          indices: the rows' numbers, which key the random numbers; default: 0, 1, ...
          scores: also each answer's sum of token log-probabilities, end-of-sequence included if it was written:
            the model's own, before temperature, penalties, top-k and top-p.
          plain: answers are label words (`generation_options`).
          languages: of each text and its answer, if not the same for all.
        """
        indices = range(len(prompts)) if indices is None else indices
        num_draws = decoding.num_return_sequences if decoding.do_sample else 1
        check_lengths_of_writing(self.model.config, self.encoding, prompts, max_new_tokens, self._virtual_tokens)
        # The first tokens of a language's answers are its code.
        labels = self.encoding.answers([""] * len(prompts), languages) if self.encoding.num_fixed_tokens else None

        def answer_batch(places):
            repeated_places = [place for place in places for _ in range(num_draws)]
            draws = [(indices[place], number) for place in places for number in range(num_draws)]
            written_ids = self._write(
                [prompts[place] for place in repeated_places],
                [labels[place] for place in repeated_places] if labels else labels,
                generation_options(decoding, self.model, max_new_tokens, draws, plain=plain),
            )
            answers_per_text = len(written_ids) // len(places)
            answer_scores = [None] * len(written_ids)
            if scores:
                sums = self._scores_of_written(
                    [prompts[place] for place in places],
                    [labels[place] for place in places] if labels else labels,
                    in_chunks(written_ids, answers_per_text),
                )
                answer_scores = [total for sums_of_text in sums for total in sums_of_text]
            return in_chunks(self._as_answers(written_ids, answer_scores), answers_per_text)

        return self._over_ranks([len(prompt) for prompt in prompts], answer_batch)

    def write_in_pieces(
        self,
        prompt: list[int],
        decoding: DecodingSettings,
        max_new_tokens: int,
        on_text: Callable[[str], None],
        index: int = 0,
        plain: bool = False,
        languages: tuple | None = None,
    ) -> WrittenAnswer:
        """The one answer to a prompt, greedy or drawn, in one process; `on_text` gets each piece once it is written.

        >>> (prompt,) = prompts_of(encoding, ["translate English to German: Good."])
        >>> predictor.write_in_pieces(prompt, DecodingSettings(), 20, print)
        Gut
        .
        WrittenAnswer(text='Gut.', score=None, truncated=False, num_tokens=3)

        Args:
          index, plain, languages: as in `answers`, of this prompt.
        """
        languages_of_texts = None if languages is None else [languages]
        check_lengths_of_writing(self.model.config, self.encoding, [prompt], max_new_tokens, self._virtual_tokens)
        labels = self.encoding.answers([""], languages_of_texts) if self.encoding.num_fixed_tokens else None
        options = generation_options(decoding, self.model, max_new_tokens, [(index, 0)], plain=plain)
        streamer = PieceStreamer(on_text, lambda ids: self._texts([ids])[0])
        with torch.no_grad():
            (ids,) = self._write([prompt], labels, {**options, "streamer": streamer})
        (answer,) = self._as_answers([ids], [None])
        streamer.send_rest(answer.text)
        return answer

    @property
    def _virtual_tokens(self) -> dict[str, int]:
        """By stack, how many virtual tokens of an adapter have positions before its input."""
        return {stack: num_virtual_tokens(self.model, stack) for stack in ("encoder", "decoder")}

    def _write(self, prompts, labels, options: dict) -> list[list[int]]:
        """Token ids of all answers to the prompts, one prompt after the other."""
        with generating_by(self.model, options["generation_config"]):
            written = self.answerer.generate(prompts, labels=labels, **options)
        return [self._ended(ids) for answers_of_prompt in written for ids, _ in answers_of_prompt]

    def _as_answers(self, written_ids: list[list[int]], scores: list) -> list[WrittenAnswer]:
        ends = self.answerer.ends
        return [
            WrittenAnswer(text, score, truncated=ids[-1] not in ends, num_tokens=len(ids))
            for text, score, ids in zip(self._texts(written_ids), scores, written_ids, strict=True)
        ]

    def _texts(self, written_ids: list[list[int]]) -> list[str]:
        """The texts of answers, without the tokens that end them."""
        ends = self.answerer.ends
        return self.encoding.texts([before_end(ids, ends) for ids in written_ids])

    def choices(self, prompts: Sequence[list[int]], candidates: Sequence[Sequence[str]]) -> list["Choice"]:
        """Per prompt, the likeliest candidate (the first on a tie) and all shares.

        Shares are the softmax over the candidates' sums of token log-probabilities, end-of-sequence included.
        """
        candidate_ids = encoded_candidates(self.encoding, candidates)
        check_lengths_of_choice(self.model.config, self.encoding, prompts, candidate_ids, self._virtual_tokens)

        def score_batch(places):
            ids_of_batch = [[candidate_ids[word] for word in candidates[place]] for place in places]
            return self._log_probabilities([prompts[place] for place in places], ids_of_batch)

        scores = self._over_ranks([len(prompt) for prompt in prompts], score_batch)
        return [choice_of(words, scores_of_text) for words, scores_of_text in zip(candidates, scores, strict=True)]

    def classes(self, features: Sequence[dict], limits: tuple[float, float] = ANY_NUMBER) -> list["Choice"]:
        """Per text (a segment, a pair or words), an encoder's prediction: a word and all shares, a number, labels.

        Args:
          features: of each text (`segment_features`).
          limits: the smallest and the largest number that an answer can be.
        """
        lengths = [len(feature["input_ids"]) for feature in features]
        longest = max(lengths, default=0)
        num_before = self._virtual_tokens["encoder"]
        check_length(self.model.config, longest, "--max_source_length", num_virtual_tokens=num_before)

        def score_batch(places):
            return self.answerer.class_scores([features[place] for place in places])

        scores = self._over_ranks(lengths, score_batch)
        if self.encoding.words is None:
            return [Choice(answer_text(number, *limits), None) for (number,) in scores]
        if isinstance(self.encoding, LabelsEncoding):
            return [Choice(self.encoding.word(scores_of_words), None) for scores_of_words in scores]
        return [choice_of(self.encoding.words, scores_of_text) for scores_of_text in scores]

    def _log_probabilities(self, prompts, candidates) -> list[list[float]]:
        """Of each prompt's candidates, the sums over their tokens."""
        return self.answerer.read_prompts(prompts).candidate_scores(candidates)

    def _scores_of_written(self, prompts, labels, written) -> list[list[float]]:
        """Of each prompt's written answers, the sums over their tokens, after the fixed ones that `labels` begin with.

        log P(answer | code) = log P(code, answer) - log P(code)
        """
        num_fixed = self.encoding.num_fixed_tokens
        if not num_fixed:
            return self._log_probabilities(prompts, written)
        candidates = []
        for row_labels, answers in zip(labels, written, strict=True):
            lead = row_labels[:num_fixed]
            candidates.append([*([*lead, *ids] for ids in answers), lead])
        scores = []
        for *sums, lead_sum in self._log_probabilities(prompts, candidates):
            scores.append([total - lead_sum for total in sums])
        return scores

    def _ended(self, ids: list[int]) -> list[int]:
        """Up to and including the first token that ends an answer; without one, up to the padding."""
        length = len(before_end(ids, self.answerer.ends))
        if length < len(ids):
            return ids[: length + 1]
        pad = self.answerer.collator.pad_token_id
        while ids and ids[-1] == pad:
            ids = ids[:-1]
        return ids or [self.answerer.eos]

    def _over_ranks(self, lengths: list[int], answer_batch: Callable) -> list:
        """`answer_batch(places)` of every batch, each computed by one rank; in the texts' order."""
        batches = batches_by_length(lengths, self.batch_size)

        def answer_batches_of_rank() -> dict:
            answers = {}
            for places in batches[self.ranks.rank :: self.ranks.world_size]:
                answers.update(zip(places, answer_batch(places), strict=True))
            return answers

        was_training = self.model.training
        self.model.eval()
        with torch.no_grad():
            answers_of_rank = self.ranks.all_succeed(answer_batches_of_rank)
        self.model.train(was_training)
        answers_by_place = {}
        for answers in self.ranks.gather(answers_of_rank):
            answers_by_place.update(answers)
        return [answers_by_place[place] for place in range(len(lengths))]


def check_lengths_of_writing(
    config,
    encoding,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    virtual_tokens: Mapping[str, int] = NO_VIRTUAL_TOKENS,
) -> None:
    """Refuses prompts, and written answers, that are longer than the model's positions.

    Args:
      config: the model's configuration.
      virtual_tokens: of an adapter before the input of encoder and decoder.

    Raises:
      ConfigError: with the model's limit, and the flags of both lengths.
    """
    if not prompts:
        return
    longest = max(map(len, prompts))
    num_before = virtual_tokens["encoder"]
    if isinstance(encoding, PromptEncoding):  # a decoder-only model writes its answer into the prompt's row
        flags = "--max_source_length or --max_new_tokens"
        check_length(config, longest + max_new_tokens, flags, num_virtual_tokens=num_before)
        return
    check_length(config, longest, "--max_source_length", num_virtual_tokens=num_before)
    # The decoder reads its start token, the fixed ones, and all of the answer but its last token.
    answer_tokens = encoding.num_fixed_tokens + max_new_tokens
    check_length(config, answer_tokens, "--max_new_tokens", "decoder", virtual_tokens["decoder"])


def check_lengths_of_choice(
    config,
    encoding,
    prompts: Sequence[list[int]],
    candidate_ids: dict[str, list[int]],
    virtual_tokens: Mapping[str, int] = NO_VIRTUAL_TOKENS,
) -> None:
    """Refuses prompts that are longer than the model's positions, of a decoder-only model with their candidates.

    Args:
      config: the model's configuration.
      candidate_ids: of `encoded_candidates`.
      virtual_tokens: as in `check_lengths_of_writing`.

    Raises:
      ConfigError: with the model's limit.
    """
    longest = max(map(len, prompts), default=0)
    if isinstance(encoding, PromptEncoding):  # prompt and candidate are one row
        longest += max(map(len, candidate_ids.values()), default=0)
    check_length(config, longest, "--max_source_length", num_virtual_tokens=virtual_tokens["encoder"])


def in_chunks(items: list, size: int) -> list[list]:
    """A list in lists of `size`.

    >>> in_chunks([1, 2, 3, 4], 2)
    [[1, 2], [3, 4]]
    """
    return [items[start : start + size] for start in range(0, len(items), size)]


def encoded_candidates(encoding, candidates: Sequence[Sequence[str]]) -> dict[str, list[int]]:
    """`{text: token ids}` of all candidates."""
    words = sorted({word for words_of_text in candidates for word in words_of_text})
    return dict(zip(words, encoding.choices(words), strict=True))


def check_labels_differ(encoding, words: Sequence[str]) -> None:
    """Refuses labels that have the same tokens, between which the model cannot choose.

    Raises:
      ConfigError: two of them.
    """
    pair = labels_with_same_ids(encoding, words)
    if pair is None:
        return
    cut = ""
    if cut_labels(encoding, pair):
        cut = f": an answer has at most {encoding.lengths.target} tokens, as in the model's training"
    raise ConfigError(f"--labels: {pair[0]!r} and {pair[1]!r} have the same tokens{cut}; give others")


def cut_labels(encoding, words: Sequence[str]) -> list[str]:
    """The labels that have more tokens than an answer may have, so that their ends are not read."""
    whole_ids = encoded_candidates(with_room_for_labels(encoding), [words])
    ids = encoded_candidates(encoding, [words])
    return [word for word in words if len(whole_ids[word]) > len(ids[word])]


def warn_of_cut_labels(encoding, labels) -> None:
    """Logs labels of the user's own that are cut."""
    words = cut_labels(encoding, labels) if isinstance(labels, list) else []
    if words:
        logger.warning(
            "--labels: %s cut after %d tokens, the most that an answer has, as in the model's training",
            ", ".join(map(repr, words)) + (" is" if len(words) == 1 else " are"),
            encoding.lengths.target,
        )


def prompts_of(encoding, texts: Sequence[str], languages: Sequence[tuple] | None = None) -> list[list[int]]:
    """The ids that a model reads of each text.

    Args:
      languages: of each text and its answer, if not the same for all.
    """
    return encoding.prompts(texts) if languages is None else encoding.prompts(texts, languages)


def segment_features(encoding: SegmentEncoding, segments: Sequence[tuple[str, ...]]) -> list[dict]:
    """The features of each text alone: `{"input_ids": [...], ...}`."""
    return [
        {name: rows[0] for name, rows in encoding.inputs([segments_of_text]).items()} for segments_of_text in segments
    ]


def choice_of(words: Sequence[str], scores: Sequence[float]) -> Choice:
    """The likeliest word (the first on a tie), and all shares by softmax.

    >>> choice_of(["no", "yes"], [0.0, 0.0])
    Choice(text='no', shares={'no': 0.5, 'yes': 0.5})
    """
    highest = max(scores)
    weights = [math.exp(score - highest) for score in scores]
    total = sum(weights)
    shares = {word: weight / total for word, weight in zip(words, weights, strict=True)}
    return Choice(max(shares, key=shares.get), shares)
