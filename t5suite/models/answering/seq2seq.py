"""Encoder-decoders: the encoder reads once, the decoder writes or scores candidates over its states.

A T5's decoder is called part by part (`t5.decoder`, `t5.candidate_tree`, `t5.greedy`): it reads all of a row's
candidates as a tree, and generates greedy answers without transformers' `generate`; targets among these candidates or
answers need no extra pass for their loss.
Shapes: B examples, P pairs of example and candidate, S source and T target tokens, D model width, V vocabulary.
"""

from functools import cached_property, partial

import torch

# Has `router_logits` (None), which mixture-of-experts models read; other models use it like their encoder's output.
from transformers.modeling_outputs import MoeModelOutputWithPast as EncoderOutput

from t5suite.data.batches.collators import IGNORED, shift_right
from t5suite.models.answering.answerer import Answerer, score_pairs, split_answers, summed_nll, this_rank
from t5suite.models.answering.greedy import decodes_greedily
from t5suite.models.attention_setting import attention_of
from t5suite.models.caches import cache_of_decoder
from t5suite.models.classes import bare_model
from t5suite.models.t5.candidate_tree import MOST_NODES, candidate_log_probs, make_tree
from t5suite.models.t5.decoder import has_stock_decoder
from t5suite.models.t5.greedy import write_greedily

# What runs faster if encoder and decoder are called separately, by the method that it answers with.
FAST_PATHS = {"score": "candidate_trees", "generate": "quick_decoding"}


class Seq2SeqAnswerer(Answerer):
    """The encoder reads, the decoder writes."""

    @cached_property
    def calls_parts(self) -> bool:
        """Whether encoder and decoder are called separately."""
        all_disabled = self.settings.disabled_paths.issuperset(FAST_PATHS.values())
        return not all_disabled and has_stock_decoder(self.model)

    def has_fast_path(self, method: str) -> bool:
        """Whether candidates are read as trees (`score`), or greedy answers written without `generate`."""
        path = FAST_PATHS.get(method)
        return path is not None and path not in self.settings.disabled_paths and self.calls_parts

    def read(self, features) -> "Seq2SeqReading":
        """Encoder and decoder over a batch."""
        return Seq2SeqReading(self, features)


class Seq2SeqReading:
    """The encoder's states of a batch, and the loss of its targets, each computed on first access.

    If weights may be sharded, the encoder runs within the whole model: FSDP gathers some weights only when the whole
    model is called, not when a part of it is.
    """

    def __init__(self, answerer: Seq2SeqAnswerer, features):
        batch = answerer.collator(features)
        self.answerer = answerer
        self.targets = [[token for token in row if token != IGNORED] for row in batch["labels"].tolist()]
        has_padding = not batch["attention_mask"].all()
        self.ids_BS = batch["input_ids"].to(answerer.device)
        self.mask_BS = batch["attention_mask"].to(answerer.device)
        self.decoder_ids_BT = batch["decoder_input_ids"].to(answerer.device)
        self.labels_BT = batch["labels"].to(answerer.device)
        self.padding_mask_BS = self.mask_BS if has_padding else None
        self._nll_by_row: dict[int, float] = {}  # of targets that were among the answers

    @cached_property
    def nll(self) -> list[float]:
        """By example, in nats."""
        unknown_rows = [row for row in range(len(self.targets)) if row not in self._nll_by_row]
        nll_by_row = dict(self._nll_by_row)
        if unknown_rows:
            nll_by_row.update(zip(unknown_rows, self._nll_of(unknown_rows), strict=True))
        return [nll_by_row[row] for row in range(len(self.targets))]

    @property
    def tokens(self) -> list[int]:
        """By example, how many of its tokens count."""
        return [len(target) for target in self.targets]

    @cached_property
    def hidden_BSD(self) -> torch.Tensor:
        """The encoder's states."""
        if not self.answerer.calls_parts:
            return self._outputs.encoder_last_hidden_state
        encoder = bare_model(self.answerer.model).encoder
        mask = self.padding_mask_BS
        if mask is not None and attention_of(encoder.config) == "sdpa":
            mask = mask[:, None, None, :].bool()  # used unchanged: the stack then reads no values from the device
        return encoder(input_ids=self.ids_BS, attention_mask=mask).last_hidden_state

    @cached_property
    def _outputs(self):
        """Of encoder and decoder, in one call."""
        return self.answerer.model(
            input_ids=self.ids_BS,
            attention_mask=self.mask_BS,
            decoder_input_ids=self.decoder_ids_BT,
            return_dict=True,
        )

    def _decode(self, rows, decoder_ids_PT) -> torch.Tensor:
        """Logits [P, T, V] of the decoder over the encoder's states of these rows."""
        outputs = self.answerer.model(
            encoder_outputs=EncoderOutput(last_hidden_state=self.hidden_BSD[rows]),
            attention_mask=self.mask_BS[rows],
            decoder_input_ids=decoder_ids_PT,
        )
        return outputs.logits

    def _nll_of(self, rows: list[int]) -> list[float]:
        if self.answerer.calls_parts:
            logits_BTV = self._decode(rows, self.decoder_ids_BT[rows])
        else:
            logits_BTV = self._outputs.logits[rows]
        return summed_nll(logits_BTV, self.labels_BT[rows]).tolist()

    def generate(self, generation_config, synced: bool = False, **options):
        """As `Answerer.generate`; `options` go to transformers' `generate` (`logits_processor`, ...)."""
        num_first_tokens = 1 + self.answerer.settings.num_fixed_tokens
        if num_first_tokens > 1:
            options["decoder_input_ids"] = self.decoder_ids_BT[:, :num_first_tokens]
        if not synced and not options and self._is_written_greedily(generation_config):
            return self._write_greedily(generation_config.max_new_tokens)
        if not getattr(self.answerer.model, "has_prefixes", False):  # prefixes are in a cache of their own
            options |= cache_of_decoder(self.answerer.model, generation_config)
        # The ids are for the model's own settings of repetition, such as encoder_no_repeat_ngram_size.
        generated = self.answerer.model.generate(
            input_ids=self.ids_BS,
            encoder_outputs=EncoderOutput(last_hidden_state=self.hidden_BSD),
            attention_mask=self.mask_BS,
            generation_config=generation_config,
            synced_gpus=synced,
            **options,
        )
        # The first token is the decoder's start token, which some families also use as their end token.
        return split_answers(self.answerer, generated, num_first_tokens, len(self.mask_BS))

    def _is_written_greedily(self, generation_config) -> bool:
        """Whether answers are written without transformers' `generate`."""
        answerer = self.answerer
        if not answerer.has_fast_path("generate"):
            return False
        start = answerer.collator.decoder_start_token_id
        return decodes_greedily(answerer.model, generation_config, answerer.eos, start)

    def _write_greedily(self, max_new_tokens: int):
        """Greedy answers by `t5.greedy`; notes the loss of the targets that they equal."""
        answerer = self.answerer
        answers, nll = write_greedily(
            answerer.model,
            self.hidden_BSD,
            self.padding_mask_BS,
            answerer.collator.decoder_start_token_id,
            answerer.eos,
            max_new_tokens,
            answerer.settings.needs_nll,
        )
        for row, answer_nll in enumerate(nll or ()):
            if answers[row] == self.targets[row]:
                self._nll_by_row[row] = answer_nll
        return [[(ids, None)] for ids in answers]

    def candidate_scores(self, candidates, max_over_ranks=this_rank) -> list[list[float]]:
        """Log-probabilities of each example's candidates.

        The decoder reads them as a tree, or (other models, very many candidates) pair by pair; `max_over_ranks` as in
        `score_pairs`.
        """
        if self.answerer.has_fast_path("score"):
            candidates = [tuple(tuple(map(int, ids)) for ids in of_example) for of_example in candidates]
            trees = [make_tree(of_example) for of_example in candidates]
            if all(len(tree.paths) and len(tree.tokens) <= MOST_NODES for tree in trees):
                return self._scores_by_tree(candidates, trees)
        score = partial(self._score_chunk, candidates)
        return score_pairs(candidates, score, self.mask_BS.shape[1], max_over_ranks)

    def _scores_by_tree(self, candidates: list[tuple], trees) -> list[list[float]]:
        """Scores of trees of candidates; notes the loss of the targets that are among them."""
        collator = self.answerer.collator
        scores = candidate_log_probs(
            self.answerer.model,
            trees,
            self.hidden_BSD,
            self.padding_mask_BS,
            collator.decoder_start_token_id,
            collator.pad_token_id,
        )
        for row, target in enumerate(map(tuple, self.targets)):
            if target in candidates[row]:
                self._nll_by_row[row] = -scores[row][candidates[row].index(target)]
        return scores

    def _score_chunk(self, candidates, chunk: list[tuple[int, int]]) -> list[float]:
        """Scores of pairs of example and candidate, in one pass of the decoder."""
        collator = self.answerer.collator
        device = self.mask_BS.device
        labels_PT = collator.pad([candidates[example][place] for example, place in chunk], IGNORED).to(device)
        rows_P = torch.tensor([example for example, _ in chunk], device=device)
        decoder_ids_PT = shift_right(labels_PT, collator.pad_token_id, collator.decoder_start_token_id)
        return (-summed_nll(self._decode(rows_P, decoder_ids_PT), labels_PT)).tolist()
