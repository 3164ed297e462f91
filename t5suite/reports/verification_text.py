"""A verification in words, and as JSON.

>>> print("\\n".join(verification_lines(verification)))
equal: 400 of 400 answers, accuracy 91.50, invalid_rate 0.00
sentiment: 400 rows, 400 of 400 answers equal, accuracy 91.50, invalid_rate 0.00
cannot be verified: how the weights were trained
SHA-256 of the record: 5e0c1f...
"""

from t5suite.data.rows.jsonl import without_nan
from t5suite.reports.formatting import points, shortened
from t5suite.reports.verification import DifferingRow, SplitVerification, Verification

LONGEST_ANSWER = 60
MOST_PROBLEMS = 30


def verification_lines(verification: Verification, max_rows: int = 20) -> list[str]:
    """What was compared, and what differs; at most `max_rows` rows."""
    lines = [verdict(verification)]
    lines += [split_line(split) for split in verification.splits]
    lines += [f"different: {problem}" for problem in verification.problems[:MOST_PROBLEMS]]
    hidden = len(verification.problems) - MOST_PROBLEMS
    if hidden > 0:
        lines.append(f"different: {hidden} more")
    lines += row_lines(verification.rows, max_rows)
    if verification.environment:
        lines.append("then and now:")
    lines += [f"  {name}: {then} then, {now} now" for name, then, now in verification.environment]
    if verification.unverified:
        lines.append(f"cannot be verified: {', '.join(verification.unverified)}")
    if verification.commit:
        lines.append(f"commit on the hub: {verification.commit}")
    lines.append(f"SHA-256 of the record: {verification.record_sha256}")
    return lines


def verdict(verification: Verification) -> str:
    """The first line: equal or different, and of what.

    >>> verdict(verification)
    'equal: 872 of 872 answers, accuracy 91.40'
    """
    word = "equal" if verification.is_equal else "different"
    if not verification.answered:
        reason = verification.not_answered
        return f"{word}: the record of {verification.num_answers} answers; the model was not run ({reason})"
    counts = f"{verification.num_equal} of {verification.num_answers} answers"
    if verification.is_equal:
        scores = f", {scores_text(verification.splits[0])}" if len(verification.splits) == 1 else ""
        return f"equal: {counts}{scores}"
    return f"different: {difference_text(verification, counts)}"


def difference_text(verification: Verification, counts: str) -> str:
    """What differs, in numbers.

    >>> difference_text(verification, "871 of 872 answers")
    '871 of 872 answers are equal, the others are near ties'
    """
    num_problems = len(verification.problems)
    if verification.num_equal == verification.num_answers:
        parts = "1 part of the record differs" if num_problems == 1 else f"{num_problems} parts of the record differ"
        return f"all {verification.num_answers} answers are equal, but {parts}"
    text = f"{counts} are equal"
    if verification.num_not_compared:
        text += f", {verification.num_not_compared} were not compared"
    if verification.rows and all(row.is_near_tie for row in verification.rows):
        text += ", the others are near ties"
    if num_problems:
        text += f"; {counted(num_problems, 'other difference')}"
    return text


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(2, "other difference")
    '2 other differences'
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def scores_text(split: SplitVerification) -> str:
    """The reported scores of a split, and those of the answers now where they are others.

    >>> scores_text(SplitVerification("sst2", 872, 872, 872, {"accuracy": 91.4, "invalid_rate": 0.0}))
    'accuracy 91.40, invalid_rate 0.00'
    >>> scores_text(SplitVerification("sst2", 872, 872, 800, {"accuracy": 91.4}, {"accuracy": 87.5}))
    'accuracy (recorded 91.40, now 87.50)'
    """
    texts = []
    for metric, score in split.scores.items():
        text = points(score, "nan")
        score_now = (split.scores_now or {}).get(metric)
        if score_now is not None and points(score_now, "nan") != text:
            text = f"(recorded {text}, now {points(score_now, 'nan')})"
        texts.append(f"{metric} {text}")
    return ", ".join(texts) or "no scores (its rows have no labels)"


def split_line(split: SplitVerification) -> str:
    """A split's answers and scores."""
    answers = f"{split.num_answers} answers"
    if split.num_equal is not None:
        answers = f"{split.num_equal} of {split.num_answers} answers equal"
    return f"{split.name}: {split.num_rows} rows, {answers}, {scores_text(split)}"


def row_lines(rows: list[DifferingRow], max_rows: int) -> list[str]:
    """The rows that differ; the farthest first, since near ties matter least."""
    ordered = sorted(rows, key=lambda row: (row.is_near_tie, -abs(row.nats or 0.0), row.row))
    lines = [row_line(row) for row in ordered[:max_rows]]
    if len(rows) > max_rows:
        lines.append(f"  and {len(rows) - max_rows} more rows (--max_rows)")
    return lines


def row_line(row: DifferingRow) -> str:
    """A row that differs, and by how much."""
    recorded = shortened(row.recorded, LONGEST_ANSWER)
    now = shortened(row.now, LONGEST_ANSWER)
    name = f"row {row.row}"
    if row.key not in (name, f"idx {row.row}"):
        name += f" ({row.key})"
    return f"  {row.split} {name}: {recorded!r} recorded, {now!r} now; {distance_text(row)}"


def distance_text(row: DifferingRow) -> str:
    """By how much the two best answers lie apart."""
    if row.rows_changed:
        return "not measured how far apart, since the rows have changed"
    if row.nats is None:
        return "not measured how far apart"
    text = f"{abs(row.nats):.3g} nats apart"
    if row.is_near_tie:
        return f"{text}: a near tie, which rounding may turn"
    return f"{text}: no near tie"


def verification_json(verification: Verification) -> list[dict]:
    """The verification as lines of JSON: the verdict, each split, each problem, each row, each difference around."""
    lines = [
        {
            "verdict": "equal" if verification.is_equal else "different",
            "answers": verification.num_answers,
            "equal": verification.num_equal,
            "answered": verification.answered,
            "not_answered": verification.not_answered or None,
            "unverified": verification.unverified,
            "record_sha256": verification.record_sha256,
            "commit": verification.commit,
        }
    ]
    for split in verification.splits:
        counts = {"rows": split.num_rows, "answers": split.num_answers, "equal": split.num_equal}
        scores = {"scores": dict(split.scores), "scores_now": without_nan(split.scores_now)}
        lines.append({"split": split.name, **counts, **scores})
    lines += [{"problem": problem} for problem in verification.problems]
    for row in verification.rows:
        lines.append({**vars(row)})
    lines += [{"differs": name, "then": then, "now": now} for name, then, now in verification.environment]
    return lines
