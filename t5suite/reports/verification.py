"""Whether a finished run's scores can be had again: its record checked, and its rows answered again by its model.

>>> verification = verify_record(read_record("runs/mini-sentiment"))     # without the model
>>> verification.is_equal, verification.num_answers, verification.num_equal
(True, 400, None)

A verification is complete when every recorded answer was compared, or says what it left out. What differs between then
and now (versions, device, number format) explains small differences, and is none itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from t5suite.base.provenance import code_sha256, versions
from t5suite.reports.card_checks import problems_of_card
from t5suite.reports.evaluations import row_key
from t5suite.reports.formatting import points
from t5suite.reports.record_checks import problems_of_files, problems_of_lines, problems_of_manifest, problems_of_tasks
from t5suite.reports.recorded_rows import RecordedRows, rows_of_split
from t5suite.reports.run_records import RecordedSplit, RunRecord
from t5suite.reports.score_checks import (
    groups_of_results,
    is_same,
    problems_of_averages,
    problems_of_groups,
    problems_of_names,
    problems_of_scores,
)
from t5suite.reports.unverified_parts import unverified_parts
from t5suite.runs.directory import RESULTS
from t5suite.runs.public_record import record_sha256

# Nats between two answers below which rounding alone may turn one into the other. bfloat16 has 8 bits: logits near 16
# are 0.06 apart, and errors of a few layers add up; of float32 with 24 bits sums in another order differ by 1e-5.
# TF32 has as many bits as float16.
NEAR_TIES = {"float32": 1e-3, "tf32": 0.05, "float16": 0.05, "bfloat16": 0.25}
FORMATS = {"fp16": "float16", "bf16": "bfloat16"}
# Losses that are summed in another order: the share by which they may differ.
LOSS_TOLERANCE = 1e-5
# The name in `Answered.now` of what answers, where it is not the run's model.
ANSWERED_BY = "answered by"
# What results have of a split of which only the loss is evaluated.
LOSSES = ("nll", "loss")


@dataclass(frozen=True)
class DifferingRow:
    """An example whose answer now is not the recorded one.

    Attributes:
      row: its number in the run; key: what names it in the data.
      nats: by which the model now prefers its answer to the recorded one; None: not measured.
      is_near_tie: rounding may explain it.
      rows_changed: the split's rows are not those of the run, so that this may be another row.
    """

    split: str
    row: int
    key: str
    recorded: str
    now: str
    nats: float | None
    is_near_tie: bool
    rows_changed: bool = False


@dataclass(frozen=True)
class SplitVerification:
    """A split's answers and scores.

    Attributes:
      num_equal: recorded answers that are equal to those now; None: they were not compared.
      scores: as reported.
      scores_now: of the answers now, where something differs; None: not known.
    """

    name: str
    num_rows: int
    num_answers: int
    num_equal: int | None
    scores: Mapping[str, float]
    scores_now: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Verification:
    """What was compared, and what differs.

    Attributes:
      splits: those of the run.
      problems: sentences; none if the record agrees with itself and the answers are the same.
      rows: the examples whose answers differ.
      environment: `(what, then, now)` of what differs around the run.
      answered: whether the model was run; if not, `not_answered` says why.
      unverified: what nothing was compared of.
      record_sha256, commit: what to compare with a hash from elsewhere; the commit is the hub's.
    """

    splits: list[SplitVerification]
    problems: list[str]
    rows: list[DifferingRow]
    environment: list[tuple[str, str, str]]
    answered: bool
    not_answered: str
    record_sha256: str
    unverified: list[str] = field(default_factory=list)
    commit: str | None = None

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not self.problems and not self.rows

    @property
    def num_answers(self) -> int:
        """Recorded answers."""
        return sum(split.num_answers for split in self.splits)

    @property
    def num_equal(self) -> int | None:
        """Recorded answers that the model gives again; None: it was not run."""
        if not self.answered:
            return None
        return sum(split.num_equal or 0 for split in self.splits)

    @property
    def num_not_compared(self) -> int:
        """Recorded answers that could not be compared with others."""
        return sum(split.num_answers for split in self.splits if split.num_equal is None)


def verify_record(
    record: RunRecord,
    data_dir: str | None = None,
    answer: Callable[[RunRecord, Mapping[str, RecordedRows]], object] | None = None,
    check_tokenizer: Callable[[RunRecord], list[str]] | None = None,
    expected: str | None = None,
) -> Verification:
    """Checks a record, and compares its answers with those that `answer` gives.

    Args:
      data_dir: where to look for rows first.
      answer: `(record, rows by split)` -> `answering_again.Answered`; None: the model is not run.
      check_tokenizer: how the tokenizer differs from the recorded one.
      expected: the hash of the record, from elsewhere.

    Raises:
      DataError: rows are missing.
    """
    rows = {split.name: rows_of_split(record, split, data_dir) for split in record.splits}
    problems = problems_without_model(record, rows, expected)
    not_answered = ""
    if answer is None:
        not_answered = "--scores_only"
    elif check_tokenizer is not None:
        tokenizer_problems = check_tokenizer(record)
        problems += tokenizer_problems
        if tokenizer_problems:
            not_answered = "its tokenizer is another one"
    answered = None
    differing = []
    environment = []
    if not not_answered:
        answered = answer(record, rows)
        environment = environment_differences(record, answered.now)
        for split in record.splits:
            differing += differing_rows(record, split, answered, bool(rows[split.name].problem))
            problems += problems_of_losses(record, split, answered)
    splits = [verified_split(record, split, answered) for split in record.splits]
    if problems or differing:
        splits = [
            replace(verified, scores_now=scores_now(split, rows[split.name], answered))
            for verified, split in zip(splits, record.splits, strict=True)
        ]
    return Verification(
        splits=splits,
        problems=problems,
        rows=differing,
        environment=environment,
        answered=answered is not None,
        not_answered=not_answered,
        record_sha256=record_sha256(record.manifest),
        unverified=unverified_parts(record, rows, data_dir),
        commit=record.commit,
    )


def problems_without_model(record: RunRecord, rows: Mapping[str, RecordedRows], expected: str | None) -> list[str]:
    """What does not fit in a record and its rows; rows that have changed explain most of the others, and come first.

    Args:
      rows: those of each split.
      expected: the hash of the record, from elsewhere.
    """
    problems = [rows[split.name].problem for split in record.splits if rows[split.name].problem]
    problems += problems_of_manifest(record, expected)
    problems += problems_of_files(record)
    problems += problems_of_tasks(record)
    problems += problems_of_card(record)
    for split in record.splits:
        problems += problems_of_split(record, split, rows[split.name].rows)
    problems += problems_of_names(record)
    return problems + problems_of_averages(record)


def problems_of_split(record: RunRecord, split: RecordedSplit, rows: list[dict]) -> list[str]:
    """What does not fit in answers and scores of a split."""
    if not rows:
        return []
    example_set = split.scored.task.example_set(rows, split.scored.role)
    problems = problems_of_lines(split, example_set)
    if len(example_set) != len(split.lines):
        return problems
    task = split.scored.task
    reported = record.results["tasks"].get(split.name, {})
    if split.facts.get("method") == "loss":
        problems += problems_of_scores(split.name, {}, reported, names_of_losses=LOSSES)
    else:
        problems += problems_of_scores(split.name, task.score_examples(example_set, split.answers), reported)
    groups = task.score_groups(example_set, split.answers)
    return problems + problems_of_groups(split.name, groups, groups_of_results(record).get(split.name, {}))


def problems_of_losses(record: RunRecord, split: RecordedSplit, answered) -> list[str]:
    """Losses in the results that are not those of the model now, of splits of which only the loss is evaluated."""
    losses = answered.losses.get(split.name)
    if losses is None:
        return []
    reported = record.results["tasks"].get(split.name, {})
    problems = []
    for name in LOSSES:
        if name not in reported:
            continue
        if name not in losses:
            problems.append(f"{split.name}: {RESULTS} has {name}, which the model does not give")
        elif not is_same(losses[name], reported[name], LOSS_TOLERANCE):
            value = points(reported[name], "nan", digits=6)
            problems.append(f"{split.name}: {name} is {losses[name]:.6f} by the model, and {value} in {RESULTS}")
    return problems


def differing_rows(record: RunRecord, split: RecordedSplit, answered, rows_changed: bool) -> list[DifferingRow]:
    """The examples that are answered in another way now.

    Args:
      rows_changed: as in `DifferingRow`.
    """
    answers = answers_now(split, answered)
    if answers is None:
        return []
    bound = near_tie(record, answered.now)
    differing = []
    for position, (line, now) in enumerate(zip(split.lines, answers, strict=True)):
        if line["prediction"] == now:
            continue
        nats = answered.distances.get((split.name, position))
        row = DifferingRow(
            split=split.name,
            row=line["row"],
            key=key_of_line(line),
            recorded=line["prediction"],
            now=now,
            nats=nats,
            is_near_tie=nats is not None and abs(nats) <= bound,
            rows_changed=rows_changed,
        )
        differing.append(row)
    return differing


def answers_now(split: RecordedSplit, answered) -> list[str] | None:
    """The answers that can be compared with the recorded ones; None: there are none, or of another number of rows."""
    if answered is None:
        return None
    answers = answered.answers.get(split.name, [])
    return answers if len(answers) == len(split.lines) else None


def scores_now(split: RecordedSplit, rows: RecordedRows, answered) -> Mapping[str, float] | None:
    """The scores of the answers now; None if there are none, or the rows are not those of the run."""
    answers = answers_now(split, answered)
    if answers is None or rows.problem:
        return None
    if split.facts.get("method") == "loss":
        return answered.losses.get(split.name)
    example_set = split.scored.task.example_set(rows.rows, split.scored.role)
    if len(example_set) != len(answers):
        return None
    return split.scored.task.score_examples(example_set, answers)


def key_of_line(line: Mapping) -> str:
    """What names the row of a recorded answer in the data.

    >>> key_of_line({"row": 2, "idx": 3}), key_of_line({"row": 2, "place": "reviews.csv:4"})
    ('idx 3', 'reviews.csv:4')
    """
    key = row_key(line)
    return key if line.get("idx") is None else f"idx {key}"


def near_tie(record: RunRecord, now: Mapping) -> float:
    """Nats within which answers are near ties: by the coarsest number format, then or now."""
    formats = []
    for answering in (record.answering, now):
        formats += [answering.get("dtype"), FORMATS.get(answering.get("autocast"))]
        if answering.get("tf32"):
            formats.append("tf32")
    return max(NEAR_TIES.get(name, NEAR_TIES["float32"]) for name in formats)


def environment_differences(record: RunRecord, now: Mapping) -> list[tuple[str, str, str]]:
    """`(what, then, now)` of versions, code, device and decoding, where they differ."""
    code_then = record.manifest.get("code_sha256", "")
    hardware_then = record.manifest.get("hardware") or {}
    pairs = [
        (record.manifest.get("versions", {}), versions()),
        ({"code": code_then[:12]}, {"code": code_sha256()[:12]}),
        ({ANSWERED_BY: "the run's model", **record.answering}, {ANSWERED_BY: "the run's model", **now}),
        ({name: value for name, value in hardware_then.items() if value is not None}, hardware_now()),
    ]
    differences = []
    for past, present in pairs:
        for name, value in present.items():
            if name in past and past[name] != value:
                differences.append((name, shown(past[name]), shown(value)))
    return differences


def hardware_now() -> dict:
    """The processor and the accelerators of this machine."""
    from t5suite.base.provenance import hardware

    described = hardware()
    return {name: described[name] for name in ("processor", "gpus")}


def shown(value) -> str:
    """A value of the manifest in a table."""
    if value is None:
        return "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def verified_split(record: RunRecord, split: RecordedSplit, answered) -> SplitVerification:
    """What was compared of a split."""
    num_equal = None
    answers = answers_now(split, answered)
    if answers is not None:
        num_equal = sum(recorded == now for recorded, now in zip(split.answers, answers, strict=True))
    scores = record.results["tasks"].get(split.name, {})
    return SplitVerification(split.name, split.facts.get("n", 0), len(split.lines), num_equal, scores)
