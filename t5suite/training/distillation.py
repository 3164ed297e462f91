"""Distillation: a student learns the rows' targets and, for each of their tokens, a teacher's whole distribution.

    >>> loss = DistilledLoss(TokenLoss(), teacher, alpha=0.5, temperature=2.0, pieces=32100)
    >>> loss.batch = {"input_ids": ..., "attention_mask": ..., "decoder_input_ids": ...}
    >>> loss(outputs, labels_BT, num_items_in_batch)
    tensor(3.1)

Per target token it is (1 - alpha) cross-entropy + alpha T^2 KL(teacher || student), both softmaxes at temperature T
(arXiv:1503.02531, section 2), summed over the update's target tokens and divided by their global number, like every
loss here (law 1). An evaluation's loss stays the plain cross-entropy. The teacher is not part of the model: it is not
trained, sharded or saved, and without dropout it draws no random numbers.
Shapes: N target tokens that count, V pieces.
"""

import contextlib
import logging

import torch
import torch.nn.functional as F
from transformers.integrations import is_deepspeed_zero3_enabled

from t5suite.base.errors import ConfigError
from t5suite.data.batches.collators import IGNORED
from t5suite.models.adapters import is_adapted, weights_fingerprint
from t5suite.models.classes import num_elements
from t5suite.models.families import recognize_family
from t5suite.models.loading import load_model, load_tokenizer
from t5suite.training.losses import LossWithMeans, TokenLoss, token_logits

logger = logging.getLogger(__name__)
FLAG = "--teacher"


class DistilledLoss(LossWithMeans):
    """A token loss mixed with the distance to a teacher, which is logged as `kl`, in nats per token.

    Args:
      loss: the loss of the targets themselves.
      pieces: the number of logits that belong to pieces of the shared vocabulary; padding rows follow them.

    Attributes:
      described: what the manifest says of the teacher.
      autocast: a context in which the teacher computes as the student does.
      batch: has the teacher's input.
      counts: the summed distance, and the number of its tokens.
    """

    def __init__(self, loss, teacher, alpha: float, temperature: float, pieces: int):
        super().__init__(loss)
        self.teacher = teacher
        self.alpha = alpha
        self.temperature = temperature
        self.pieces = pieces
        self.autocast = contextlib.nullcontext
        self.described: dict = {}

    def summed_counts(self, ranks) -> list[float] | None:
        """`counts` over all ranks; None, on all ranks, if none was watching."""
        return None if self.counts is None else ranks.sum(self.counts.tolist())

    def means(self, ranks) -> dict[str, float]:
        """The mean distance over the last update and all ranks, which the call clears."""
        counts = self.summed_counts(ranks)
        self.counts = None
        if counts is None:
            return {}
        total, count = counts
        return {"kl": total / max(count, 1)}

    def __call__(self, outputs, labels, num_items_in_batch=None) -> torch.Tensor:
        is_target = labels.ne(IGNORED)
        num_targets = is_target.sum()
        if num_items_in_batch is None:
            num_items_in_batch = num_targets.clamp(min=1)
        with torch.no_grad(), self.autocast():
            inputs = {name: tensor for name, tensor in self.batch.items() if name != "labels"}
            teacher_logits = token_logits(self.teacher(**inputs))
        student_NV = token_logits(outputs)[is_target][:, : self.pieces].float()
        teacher_NV = teacher_logits[is_target][:, : self.pieces].float()
        distance = distance_to(teacher_NV, student_NV, self.temperature)
        if self.watching:
            counts = torch.stack([distance.detach().double(), num_targets.double()])
            self.counts = counts if self.counts is None else self.counts + counts
        target_loss = self.loss(outputs, labels, num_items_in_batch)
        return (1 - self.alpha) * target_loss + self.alpha * self.temperature**2 * distance / num_items_in_batch


def distance_to(teacher_NV, student_NV, temperature: float) -> torch.Tensor:
    """KL(teacher || student) in nats, summed over rows, of logits divided by a temperature.

    >>> distance_to(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 2.0]]), 1.0)
    tensor(0.4338)
    """
    student_log_probs = F.log_softmax(student_NV / temperature, dim=-1)
    teacher_log_probs = F.log_softmax(teacher_NV / temperature, dim=-1)
    return F.kl_div(student_log_probs, teacher_log_probs, reduction="sum", log_target=True)


def distilled_loss(model, tokenizer, flags, args, tasks) -> DistilledLoss:
    """The loss for `--teacher`, with the teacher loaded unsharded in float32.

    Args:
      flags: `DistillationArguments`. args: the training arguments.
      tasks: the tasks of both models; if the teacher has a head, it is for these tasks.

    Raises:
      ConfigError: no such teacher, one of another family or vocabulary or without a trained head, or a student whose
        loss is not over tokens.
    """
    family = recognize_family(model)
    if is_deepspeed_zero3_enabled():
        raise ConfigError(f"{FLAG} {flags.teacher}: ZeRO-3 would shard the teacher, too; use --deepspeed zero2")
    if getattr(model.config, "problem_type", None) == "regression":
        raise ConfigError(f"{FLAG} {flags.teacher}: the student's loss is not a cross-entropy of tokens or classes")
    teacher_tokenizer = load_tokenizer(flags.teacher, flag=FLAG)
    check_vocabularies(tokenizer, teacher_tokenizer, flags.teacher)
    teacher = load_model(flags.teacher, tokenizer=teacher_tokenizer, tasks=tasks)
    teacher_family = recognize_family(teacher)
    if teacher_family is not family:
        raise ConfigError(f"{FLAG} {flags.teacher}: a {teacher_family.name} model cannot teach a {family.name} one")
    if family.has_head and not is_adapted(teacher) and getattr(teacher, "drawn_tensors", ()):
        labels = ", ".join(model.config.id2label.values())
        raise ConfigError(
            f"{FLAG} {flags.teacher}: it has no trained head for {labels}, and a new one would teach random numbers; "
            "fine-tune it on the same task first"
        )
    if family.has_head and teacher.config.id2label != model.config.id2label:
        raise ConfigError(f"{FLAG} {flags.teacher}: its head predicts other labels than the student's")
    teacher.requires_grad_(False).eval().to(args.device)
    logger.info("teacher: %s, %d parameters", flags.teacher, num_elements(teacher.parameters()))
    pieces = model.config.num_labels if family.has_head else len(tokenizer)
    target_loss = TokenLoss(args.label_smoothing_factor, args.z_loss)
    loss = DistilledLoss(target_loss, teacher, flags.distillation_alpha, flags.distillation_temperature, pieces)
    loss.described = {"name": flags.teacher, "fingerprint": weights_fingerprint(teacher)}
    return loss


def note_teacher(run, loss) -> None:
    """Writes the teacher to the manifest; a ConfigError if a run would resume with another one."""
    while loss is not None and not hasattr(loss, "described"):
        loss = getattr(loss, "loss", None)
    if loss is None:
        return
    if run.manifest.get("teacher") not in (None, loss.described):
        raise ConfigError(
            f"{FLAG} {loss.described['name']}: its weights have changed since this run began; restore them, or start "
            "another run with --output_dir"
        )
    run.update(teacher=loss.described)


def check_vocabularies(student, teacher, name: str) -> None:
    """Raises a ConfigError unless two tokenizers have the same pieces with the same ids."""
    student_ids = student.get_vocab()
    teacher_ids = teacher.get_vocab()
    if student_ids == teacher_ids:
        return
    pieces = student_ids.keys() | teacher_ids.keys()
    piece = min((piece for piece in pieces if student_ids.get(piece) != teacher_ids.get(piece)), key=str)
    raise ConfigError(
        f"{FLAG} {name}: another vocabulary ({len(teacher_ids)} pieces) than the student's ({len(student_ids)}): "
        f"{piece!r} is {teacher_ids.get(piece)} there and {student_ids.get(piece)} here. A teacher's logits need the "
        "same pieces; its written answers do not (t5suite predict, then train on them)"
    )
