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
import re
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from transformers.integrations import is_deepspeed_zero3_enabled

from t5suite.base.errors import ConfigError, UserError
from t5suite.base.hub_files import CONFIG, file_of_model
from t5suite.base.model_files import table_or_empty
from t5suite.data.batches.collators import IGNORED
from t5suite.data.rows.formats import quoted_words
from t5suite.models.adapters import is_adapted, weights_fingerprint
from t5suite.models.classes import num_elements
from t5suite.models.families import recognize_family
from t5suite.models.families.causal import SEPARATOR
from t5suite.models.loading import load_model, load_tokenizer
from t5suite.models.own_models import MODEL_CLASS
from t5suite.tasks.registry import Task
from t5suite.tasks.task_card import TaskCard, task_card_of_model
from t5suite.training.losses import LossWithMeans, TokenLoss, token_logits
from t5suite.training.model_tasks import settings_of_task, task_like

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


def distilled_loss(model, tokenizer, arguments, tasks) -> DistilledLoss:
    """The loss for `--teacher`, with the teacher loaded unsharded in float32.

    Args:
      tasks: the tasks of both models; if the teacher has a head, it is for these tasks.

    Raises:
      ConfigError: no such teacher, one of another family or vocabulary or without a trained head, or a student whose
        loss is not over tokens.
    """
    flags = arguments.distillation
    args = arguments.training
    family = recognize_family(model)
    if is_deepspeed_zero3_enabled():
        raise ConfigError(f"{FLAG} {flags.teacher}: ZeRO-3 would shard the teacher, too; use --deepspeed zero2")
    if getattr(model.config, "problem_type", None) == "regression":
        raise ConfigError(f"{FLAG} {flags.teacher}: the student's loss is not a cross-entropy of tokens or classes")
    teacher = load_teacher(flags.teacher, tokenizer, arguments.model, tasks)
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
    warn_of_other_texts(flags.teacher, teacher, model, tasks)
    teacher.requires_grad_(False).eval().to(args.device)
    logger.info("teacher: %s, %d parameters", flags.teacher, num_elements(teacher.parameters()))
    pieces = model.config.num_labels if family.has_head else len(tokenizer)
    target_loss = TokenLoss(args.label_smoothing_factor, args.z_loss)
    loss = DistilledLoss(target_loss, teacher, flags.distillation_alpha, flags.distillation_temperature, pieces)
    loss.described = {"name": flags.teacher, "fingerprint": weights_fingerprint(teacher)}
    return loss


def load_teacher(name: str, student_tokenizer, model_args, tasks):
    """The teacher, whose class may be the user's own and whose code the hub's, as the student's may be.

    Raises:
      ConfigError: as `distilled_loss`; it is of a class that `--model_class` does not name.
    """
    trust = model_args.trust_remote_code
    with naming_teacher(name):
        tokenizer = load_tokenizer(name, trust_remote_code=trust, flag=FLAG)
        check_vocabularies(student_tokenizer, tokenizer, name)
        config_file = file_of_model(name, CONFIG)
        own_class = table_or_empty(config_file).get(MODEL_CLASS) if config_file else None
        if own_class not in (None, model_args.model_class):
            raise ConfigError(
                f"{FLAG} {name}: its model is a {own_class}, code that runs only if you name it; it teaches a student "
                f"of the same class, with --model_class {own_class}"
            )
        return load_model(name, tokenizer=tokenizer, tasks=tasks, trust_remote_code=trust, model_class=own_class)


@contextlib.contextmanager
def naming_teacher(name: str) -> Iterator[None]:
    """Errors of loading name `--teacher`, and give ways out that work: other flags of models are the student's."""
    ways = {
        "--adapter_base": f"merge it into its base (t5suite export --model_name_or_path {name} --adapter_base BASE "
        f"--output_dir FOLDER), and give {FLAG} FOLDER",
        "--tokenizer_name": "put the tokenizer that belongs to it into its folder",
    }
    try:
        yield
    except UserError as error:
        message = str(error).replace("--model_name_or_path", FLAG)
        for flag, way in ways.items():
            message = re.sub(rf"; [^;]*{flag}[^;]*\Z", lambda _, way=way: f"; {way}", message)
        if not message.startswith(FLAG):
            message = f"{FLAG} {name}: {message.removeprefix(f'{name}: ')}"
        error.args = (message,)
        raise


def warn_of_other_texts(name: str, teacher, model, tasks) -> None:
    """Warns of texts that are made in another way than those from which the teacher has learned.

    Args:
      name: the teacher's, whose `task.json` says how its texts were made.
    """
    card = task_card_of_model(name)
    differences = {}
    for task in tasks:
        differences |= other_settings_of_texts(task, card)
    separator = getattr(teacher.config, SEPARATOR, None)
    if separator is None and card is not None:
        separator = card.settings.get(SEPARATOR)
    if separator not in (None, getattr(model.config, SEPARATOR, separator)):
        differences[SEPARATOR] = separator
    if differences:
        logger.warning(
            "%s %s: it has learned from texts with other settings than this run's: %s",
            FLAG,
            name,
            ", ".join(f"{setting}={value!r:.100}" for setting, value in differences.items()),
        )


def other_settings_of_texts(task: Task, card: TaskCard | None) -> dict[str, str]:
    """The settings of the teacher's own task that make other texts than those of a task of this run."""
    teacher_task = task_like(task, card)
    if teacher_task is None or teacher_task.entry.get("formatter") != task.entry.get("formatter"):
        return {}
    settings = settings_of_texts(task)
    return {name: value for name, value in settings_of_texts(teacher_task).items() if value != settings[name]}


def settings_of_texts(task: Task) -> dict[str, str]:
    """What makes the texts of a task of the user's own, whatever the order of its labels."""
    settings = settings_of_task(task)
    labels = quoted_words(sorted(task.label_words or ()))
    return {"labels": labels, **{name: settings.get(name, "") for name in ("prefix", "input_format", "output_format")}}


def note_teacher(run, loss) -> None:
    """Writes the teacher to the manifest.

    Raises:
      ConfigError: the run would go on with other weights of a teacher, which `--allow_changed teacher` accepts.
    """
    while loss is not None and not hasattr(loss, "described"):
        loss = getattr(loss, "loss", None)
    if loss is None:
        return
    before = run.manifest.get("teacher") or loss.described
    if before["fingerprint"] != loss.described["fingerprint"]:
        problem = f"{FLAG} {loss.described['name']}: its weights have changed since this run began"
        if "teacher" not in run.allowed:
            allowed = ",".join([*sorted(run.allowed), "teacher"])
            raise ConfigError(
                f"{problem}; restore them, start another run with --output_dir, or continue with --allow_changed "
                f"{allowed}"
            )
        logger.warning(problem)
        run.note_changes({"teacher": (before, loss.described)})
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
