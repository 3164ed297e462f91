"""How a plain module of the user's own is evaluated: by its loss, by its `generate`, or by the `logits` of classes.

>>> reading = ModuleAnswerer(model, tokenizer, collator, device).read(features)
>>> reading.nll, reading.tokens            # the batch's mean loss times each row's labels, and their numbers
([1.2, 2.4], [1, 2])

The loss is a mean over a batch (`module_loss`), so that a row's own is not known: the sum over the split counts.
Shapes: B rows, C classes.
"""

import inspect

import torch

from t5suite.base.errors import ConfigError
from t5suite.data.batches.collators import IGNORED
from t5suite.models.seq2seq_answering import Answerer

FLAG = "--model_class"


def module_loss(outputs) -> torch.Tensor:
    """The loss in a module's outputs: `loss` of an object or a table, the first of a tuple, or the tensor itself.

    Raises:
      ConfigError: there is none, or it is not one number.
    """
    if isinstance(outputs, dict):
        loss = outputs.get("loss")
    elif torch.is_tensor(outputs):
        loss = outputs
    else:
        loss = outputs[0] if isinstance(outputs, tuple) and outputs else getattr(outputs, "loss", None)
    if not torch.is_tensor(loss) or loss.numel() != 1:
        found = f"a tensor of shape {tuple(loss.shape)}" if torch.is_tensor(loss) else f"{type(loss).__name__}"
        raise ConfigError(
            f"{FLAG}: its forward must return a loss (an object or table with `loss`, a tuple that begins with it, or "
            f"the tensor), the mean over the labels that are not -100; it returned {found} for one"
        )
    return loss.reshape(())


class ModuleAnswerer(Answerer):
    """A module is asked for its loss, and for answers by its own `generate`."""

    def read(self, features) -> "ModuleReading":
        """The module's outputs for a batch."""
        return ModuleReading(self, features)

    def class_scores(self, features) -> list[list[float]]:
        """Of a module that classifies: log-probabilities of the classes, or its number."""
        return self.read(features).scores


class ModuleReading:
    """The loss of a batch, shared out over its rows by their labels, and what the module writes.

    Attributes:
      nll: by example: the batch's mean loss times the example's number of labels.
      tokens: by example, how many labels count; 1 where the module takes none.
      scores: [B][C], log-probabilities of classes, or numbers: only of a module that classifies (`masked`).
    """

    def __init__(self, answerer: ModuleAnswerer, features):
        model = answerer.model
        features = [{"labels": [IGNORED], **feature} for feature in features]
        self.answerer, self.features = answerer, features
        self.batch = {name: value.to(answerer.device) for name, value in answerer.collator(features).items()}
        labels = self.batch.get("labels")
        counts_B = torch.ones(len(self.batch["input_ids"]), dtype=torch.long)
        if labels is not None and model.takes_labels:
            counts_B = labels.ne(IGNORED).reshape(len(labels), -1).sum(1)
        outputs = model(**self.batch)
        loss = float(module_loss(outputs).detach())
        self.tokens = counts_B.tolist()
        self.nll = [loss * count if count else 0.0 for count in self.tokens]
        self.outputs = outputs

    @property
    def scores(self) -> list[list[float]]:
        """What the module says of classes."""
        outputs = self.outputs
        logits_BC = outputs.get("logits") if isinstance(outputs, dict) else getattr(outputs, "logits", None)
        if logits_BC is None:
            raise ConfigError(
                f"{FLAG}: as a classifier it must return `logits` [rows, classes] beside its loss; or evaluate by "
                "--eval_method loss"
            )
        logits_BC = logits_BC.float()
        is_number = self.answerer.model.config.problem_type == "regression"
        return (logits_BC if is_number else logits_BC.log_softmax(-1)).reshape(len(logits_BC), -1).tolist()

    def generate(self, generation_config, synced: bool = False, **options):
        """Per row, `[(ids, None)]` of what the module's `generate` writes; that is given what it takes of COLLATED and
        of the generation settings (`max_new_tokens`, `num_beams`).

        Raises:
          ConfigError: it has none, or does not take what is asked for.
        """
        module = self.answerer.model.module
        if not self.answerer.model.writes:
            raise ConfigError(f"{FLAG}: {type(module).__name__} has no generate, so that it can answer nothing")
        taken = inspect.signature(module.generate).parameters
        anything = any(p.kind is p.VAR_KEYWORD for p in taken.values())
        offered = self._prompts()
        offered |= {name: getattr(generation_config, name) for name in ("max_new_tokens", "num_beams")}
        beams, several = generation_config.num_beams or 1, (generation_config.num_return_sequences or 1) > 1
        if options or several or (beams > 1 and not anything and "num_beams" not in taken):
            raise ConfigError(f"{FLAG}: {type(module).__name__}.generate writes one answer, without sampling or beams")
        written = module.generate(**{name: value for name, value in offered.items() if anything or name in taken})
        rows = written.tolist() if torch.is_tensor(written) else [list(map(int, row)) for row in written]
        if len(rows) != len(self.tokens):
            raise ConfigError(f"{FLAG}: its generate wrote {len(rows)} answers for {len(self.tokens)} rows")
        return [[(row, None)] for row in rows]

    def _prompts(self) -> dict[str, torch.Tensor]:
        """What is to be answered; a decoder alone reads its prompts without answers, padded on the left."""
        if self.answerer.model.config.model_family != "causal":
            return {name: self.batch[name] for name in ("input_ids", "attention_mask")}
        prompts = [feature["input_ids"] for feature in self.features]
        rows = {"input_ids": (prompts, self.answerer.model.config.pad_token_id)}
        rows["attention_mask"] = ([[1] * len(prompt) for prompt in prompts], 0)
        pad_left = self.answerer.collator.pad_left
        return {name: pad_left(ids, fill).to(self.answerer.device) for name, (ids, fill) in rows.items()}

    def candidate_scores(self, candidates, most=None):
        """Not to be had of a module.

        Raises:
          ConfigError: always.
        """
        raise ConfigError(f"{FLAG}: a plain module cannot score candidates; --eval_method generate or loss")
