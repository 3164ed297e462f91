"""D: files of rows and texts that are damaged, odd or wrongly labelled, through runs of both scripts.

    >>> DATA["D1"].function(context)
    Outcome(passed=True, observed='46 of 46 named with file and line, or counted')

What is wrong ends a run with 65 before it trains and is named by file and line; what is merely odd is handled, and
counted where a row or document is left out. Rows are those of `--train_file`, `--validation_file` and `--test_file`;
texts come as files, as a stream and through a built corpus.
"""

import gzip
import json
from pathlib import Path

from faults.attempts import Attempt, Ended, problems
from faults.harness import Check, Context, Outcome, all_hold

NUM_ROWS, BAD_ROW = 12, 3
NUM_TEXTS, BAD_TEXT = 40, 7
SHORT = {"max_steps": 2, "save_strategy": "no", "max_eval_samples": None}
ROWS = {**SHORT, "benchmark": "glue", "dataset_name": "sst2", "max_train_samples": None}
# How a split is read, and nothing else.
ROLES = {"train": {}, "validation": {"eval_only": True}, "test": {"predict_only": True}}
STREAMED = {"streaming": True, "num_virtual_streams": 4, "shuffle_buffer_size": 16}

# What stands in the place of a row, and what is said of it.
BAD_ROWS = {
    "bad JSON": (b'{"sentence": "a", "label": }', "not JSON"),
    "non-UTF-8": (b'{"sentence": "caf\xe9", "label": 1}', "not UTF-8"),
    "half a surrogate pair": (b'{"sentence": "\\ud83d", "label": 1}', "not UTF-8"),
    "missing column": (b'{"text": "a", "label": 1}', "no column 'sentence'"),
    "wrong type": (b'{"sentence": {"a": 1}, "label": 1}', "column 'sentence' holds"),
    "no object": (b'["a", 1]', "expected one JSON object"),
    "NUL": (b"\x00" * 20, "NUL bytes"),
    "NUL in a text": (b'{"sentence": "a\x00b", "label": 1}', "NUL bytes"),
    "NaN": (b'{"sentence": NaN, "label": 1}', "not JSON"),
    "nested too deeply": (b'{"sentence": "a", "label": ' + b"[" * 1500, "not JSON"),
    "number of 5000 digits": (b'{"sentence": "a", "label": ' + b"1" * 5000 + b"}", "not JSON"),
    "other columns": (b'{"sentence": "a", "label": 1, "x": 2}', "other columns"),
}
BAD_TEXTS = {
    "bad JSON": (b'{"text": "a", }', "not JSON"),
    "non-UTF-8": (b'{"text": "caf\xe9"}', "not UTF-8"),
    "half a surrogate pair": (b'{"text": "\\ud83d"}', "not UTF-8"),
    "missing column": (b'{"sentence": "a"}', "no text column"),
    "wrong type": (b'{"text": 5}', "not text"),
    "no object": (b'"a"', "not an object"),
    "NUL": (b"\x00" * 20, "NUL bytes"),
    "nested too deeply": (b"[" * 1500, "not JSON"),
}
BAD_LABELS = {
    "unknown word": (b'{"sentence": "a", "label": "posittive"}', "'posittive'"),
    "id of no label": (b'{"sentence": "a", "label": 2}', "label 2"),
    "far too large": (b'{"sentence": "a", "label": 9999999999999999999999}', "label 9999"),
    "a fraction": (b'{"sentence": "a", "label": 0.5}', "label 0.5"),
    "a list": (b'{"sentence": "a", "label": [1]}', "label"),
    "-2": (b'{"sentence": "a", "label": -2}', "label -2"),
}
UNLABELLED = {"-1": b'{"sentence": "a", "label": -1}', "null": b'{"sentence": "a", "label": null}'}


def d1_bad_lines(context: Context) -> Outcome:
    """Lines that cannot be read, in rows and in texts."""
    attempts = {}
    for role in ("train",) if context.quick else ROLES:
        for name, (line, said) in _some(context, BAD_ROWS).items():
            path = _rows(context, line)
            attempts[f"{role}, {name}"] = _fine_tune(context, role, path, 65, f"{path.name}:{BAD_ROW}: .*{said}")
    attempts |= _cut_off(context)
    attempts |= _bad_texts(context)
    return all_hold(problems(context, attempts), "named with file and line, or counted")


def d2_odd_files(context: Context) -> Outcome:
    """Files that are empty or begin and end otherwise, texts and targets that are empty."""
    plain = _rows(context, b'{"sentence": "The soup is good.", "label": 1}')
    lines = plain.read_bytes().splitlines()
    odd = {
        "BOM": b"\xef\xbb\xbf" + plain.read_bytes(),
        "CRLF": b"\r\n".join(lines) + b"\r\n",
        "no newline at the end": b"\n".join(lines),
        "blank lines": b"\n\n".join(lines) + b"\n \n",
    }
    attempts = {}
    for role in ("train",) if context.quick else ROLES:
        for name, content in odd.items():
            path = _file(context, "rows.jsonl", content)
            attempts[f"{role}, {name}"] = _fine_tune(context, role, path, look=_all_rows(role, empty=0))
        for name, content in {"empty file": b"", "blank file": b"\n\r\n \n"}.items():
            path = _file(context, "rows.jsonl", content)
            attempts[f"{role}, {name}"] = _fine_tune(context, role, path, 65, rf"{path.name}: the file is empty")
        path = _rows(context, b'{"sentence": "", "label": 1}')
        message = f"1 rows with an empty text .1 in 'sentence'; first: .*{path.name}:{BAD_ROW}"
        attempts[f"{role}, empty text"] = _fine_tune(context, role, path, 0, message, _all_rows(role, empty=1))
    attempts |= _empty_targets(context)
    attempts |= _odd_texts(context)
    return all_hold(problems(context, attempts), "named, or handled and counted")


def d3_labels(context: Context) -> Outcome:
    """Labels that are none; -1 says "unlabelled", which only what is predicted may be."""
    attempts = {}
    for role in ("train",) if context.quick else ROLES:
        for name, (line, said) in BAD_LABELS.items():
            path = _rows(context, line)
            attempts[f"{role}, {name}"] = _fine_tune(context, role, path, 65, f"{path.name}:{BAD_ROW}: .*{said}")
    for role in ("train", "validation"):
        for name, line in UNLABELLED.items():
            path = _rows(context, line)
            attempts[f"{role}, {name}"] = _fine_tune(
                context, role, path, 65, f"{path.name}:{BAD_ROW}: .*must be labelled"
            )
        path = _file(context, "rows.jsonl", b'{"sentence": "a"}\n' * NUM_ROWS)
        attempts[f"{role}, no labels"] = _fine_tune(context, role, path, 65, f"{path.name}:1: .*must be labelled")
    for name, line in {**UNLABELLED, "no labels": b'{"sentence": "a"}'}.items():
        path = _file(context, "rows.jsonl", (line + b"\n") * NUM_ROWS)
        attempts[f"test, {name}"] = _fine_tune(context, "test", path, look=_predictions(NUM_ROWS))
    attempts |= _numbers(context)
    return all_hold(problems(context, attempts), "refused with the row, or predicted")


# ---------------------------------------------------------------------------------------------------------------------
# Rows


def _fine_tune(context, role: str, path: Path, code=0, says="", look=None, **changes) -> Attempt:
    """A run that reads one split from a file and the others from good ones."""
    files = {f"{other}_file": _good_rows(context) for other in ROLES} | {f"{role}_file": path}
    flags = context.flags("fine_tune_t5", **{**ROWS, **ROLES[role], **files, **changes})
    return Attempt("fine_tune_t5", flags, code, says, look)


def _rows(context, line: bytes) -> Path:
    """Good rows with one line in the place of row `BAD_ROW`."""
    lines = [json.dumps({"sentence": f"The soup is good, {i}.", "label": i % 2}).encode() for i in range(NUM_ROWS)]
    lines[BAD_ROW - 1] = line
    return _file(context, "rows.jsonl", b"\n".join(lines) + b"\n")


def _good_rows(context) -> Path:
    path = context.directory / "good.jsonl"
    if not path.exists():
        _rows(context, b'{"sentence": "It is bad.", "label": 0}').rename(path)
    return path


def _cut_off(context) -> dict[str, Attempt]:
    """Files that end too early: in the middle of a line, in the middle of a gzip stream."""
    good = _good_rows(context).read_bytes()
    line = _file(context, "rows.jsonl", good[:-9])
    packed = _file(context, "rows.jsonl.gz", gzip.compress(good * 50)[:-20])
    torn = f"{packed.name}: the gzip file is cut off"
    return {
        "truncated line": _fine_tune(context, "train", line, 65, f"{line.name}:{NUM_ROWS}: not JSON"),
        "truncated gzip": _fine_tune(context, "train", packed, 65, torn),
    }


def _empty_targets(context) -> dict[str, Attempt]:
    """A task of free text whose targets may be empty."""
    entry = {"prefix": "x: ", "text_column_name": "sentence", "label_column_name": "label", "labels": None}
    table = {"mine": {"words": {**entry, "metric_names": ["exact_match"], "metric_to_optimize": "exact_match"}}}
    tasks = _file(context, "tasks.yaml", json.dumps(table).encode())
    rows = [{"sentence": f"a {i}", "label": "" if i == 2 else f"b {i}"} for i in range(NUM_ROWS)]
    path = _file(context, "rows.jsonl", b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    task = {"task_file": tasks, "benchmark": "mine", "dataset_name": "words"}
    files = {"validation_file": path, "test_file": path}
    return {"empty target": _fine_tune(context, "train", path, look=_all_rows("train", 0, "words"), **task, **files)}


def _numbers(context) -> dict[str, Attempt]:
    """STS-B's labels are numbers."""
    task = {"dataset_name": "stsb", "validation_file": None, "test_file": None}
    attempts = {}
    for name, label in {"no number": '"high"', "infinite": "1e999", "too large": "1" + "0" * 400}.items():
        lines = ['{"sentence1": "a", "sentence2": "b", "label": 2.5}'] * NUM_ROWS
        lines[BAD_ROW - 1] = f'{{"sentence1": "a", "sentence2": "b", "label": {label}}}'
        path = _file(context, "rows.jsonl", "\n".join(lines).encode())
        said = f"{path.name}:{BAD_ROW}: .*is not a finite number"
        attempts[f"stsb, {name}"] = _fine_tune(context, "train", path, 65, said, **task)
    return attempts


def _all_rows(role: str, empty: int, task: str = "sst2"):
    """Looks that every row was used, and how many empty texts were counted."""

    def look(ended: Ended) -> str | None:
        data = ended.manifest()["data"][f"{task}.{role}"]
        if (data["rows"], data["used"], data["empty_texts"]) != (NUM_ROWS, NUM_ROWS, empty):
            return f"the manifest says {data['used']} of {data['rows']} rows, {data['empty_texts']} empty texts"
        return _predictions(NUM_ROWS)(ended) if role == "test" else None

    return look


def _predictions(count: int):
    """Looks that so many rows were predicted."""

    def look(ended: Ended) -> str | None:
        path = ended.directory / "predictions" / "sst2.test.jsonl"
        found = len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0
        return None if found == count else f"{found} predictions of {count} rows"

    return look


# ---------------------------------------------------------------------------------------------------------------------
# Texts


def _pre_train(context, *paths, code=0, says="", look=None, **changes) -> Attempt:
    flags = context.flags("pre_train_t5", **{**SHORT, "train_file": paths, **changes})
    return Attempt("pre_train_t5", flags, code, says, look)


def _build(context, *paths, code=0, says="") -> Attempt:
    """`t5suite corpus build`, through which a corpus gets its text."""
    from t5suite.models.loading import BUNDLED_MODEL

    flags = ["corpus", "build", "--input", *paths, "--tokenizer_name", BUNDLED_MODEL]
    return Attempt("t5suite.cli", flags, code, says)


def _lines(context) -> list[bytes]:
    return context.text().read_bytes().splitlines()[:NUM_TEXTS]


def _json_texts(context, line: bytes | None = None) -> Path:
    """Good documents as rows of JSON, one of them replaced."""
    lines = [json.dumps({"text": text.decode()}).encode() for text in _lines(context)]
    if line is not None:
        lines[BAD_TEXT - 1] = line
    return _file(context, "text.jsonl", b"\n".join(lines) + b"\n")


def _bad_texts(context) -> dict[str, Attempt]:
    """One bad document among good ones, in every way that text comes in."""
    attempts = {}
    for name, (line, kind) in _some(context, BAD_TEXTS).items():
        path = _json_texts(context, line)
        named = f"{path.name}:{BAD_TEXT}: "
        counted = _documents(NUM_TEXTS - 1, {kind: f"{path.name}:{BAD_TEXT}"})
        attempts |= {
            f"text, {name}": _pre_train(context, path, code=65, says=named),
            f"stream, {name}": _pre_train(context, path, code=65, says=named, **STREAMED),
            f"corpus, {name}": _build(context, path, code=65, says=named),
            f"text, {name}, skipped": _pre_train(context, path, look=counted, bad_lines="skip"),
            f"stream, {name}, skipped": _pre_train(
                context, path, says=rf"(?s)skipped: .*{named}.* [1-9]\d* bad", bad_lines="skip", **STREAMED
            ),
        }
    for name, (line, kind) in {"NUL": (b"a\x00b", "NUL bytes"), "non-UTF-8": (b"caf\xe9", "not UTF-8")}.items():
        lines = _lines(context)
        lines[BAD_TEXT - 1] = line
        path = _file(context, "text.txt", b"\n".join(lines))
        attempts[f"lines, {name}"] = _pre_train(context, path, code=65, says=f"{path.name}:{BAD_TEXT}: {kind}")
    return attempts | _torn_texts(context)


def _torn_texts(context) -> dict[str, Attempt]:
    """Packed files that end too early; what they lack cannot be skipped."""
    packed = _file(context, "text.txt.gz", gzip.compress(b"\n".join(_lines(context)))[:-20])
    parquet = _file(context, "text.parquet", b"PAR1" + b"\0" * 50)
    attempts = {}
    for kind, changes in {"text": {}, "stream": STREAMED, "skipped": {"bad_lines": "skip"}}.items():
        said = f"{packed.name}: the gzip file is cut off"
        attempts[f"{kind}, truncated gzip"] = _pre_train(context, packed, code=65, says=said, **changes)
        said = f"{parquet.name}: not a sound parquet file"
        attempts[f"{kind}, truncated parquet"] = _pre_train(context, parquet, code=65, says=said, **changes)
    return attempts


def _odd_texts(context) -> dict[str, Attempt]:
    """Text files that begin, end or are divided otherwise, and empty ones."""
    lines = _lines(context)
    plain = b"\n".join(lines) + b"\n"
    odd = {
        "BOM": b"\xef\xbb\xbf" + plain,
        "CRLF": b"\r\n".join(lines) + b"\r\n",
        "empty documents": b"\n".join([*lines[:5], b"", b" \t", *lines[5:]]) + b"\n",
    }
    attempts = {}
    for name, content in _some(context, odd).items():
        path = _file(context, "text.txt", content)
        empty = {"empty": f"{path.name}:6"} if name == "empty documents" else {}
        attempts[f"text, {name}"] = _pre_train(context, path, look=_documents(NUM_TEXTS, empty))
        attempts[f"stream, {name}"] = _pre_train(context, path, **STREAMED)
    empty, good = _file(context, "empty.txt", b""), _file(context, "good.txt", plain)
    none, refused = f"{empty.name}: no document in it", f"{empty.name}: the file is empty"
    return attempts | {
        "text, empty file": _pre_train(context, empty, code=65, says=none),
        "text, an empty file beside a good one": _pre_train(context, good, empty, look=_names_without_documents(empty)),
        # A stream takes its files in parts of equal size, and an empty one for a mistake.
        "stream, empty file": _pre_train(context, empty, code=65, says=refused, **STREAMED),
        "stream, an empty file beside a good one": _pre_train(context, good, empty, code=65, says=refused, **STREAMED),
        "corpus, empty file": _build(context, empty, code=65, says=none),
    }


def _names_without_documents(path: Path):
    """Looks that the manifest names a file as one without documents."""

    def look(ended: Ended) -> str | None:
        sources = ended.manifest()["data"]["train"]["sources"]
        empty = [source["name"] for source in sources if source["documents"] == 0]
        return None if empty == [str(path)] else f"the manifest names {empty} as empty"

    return look


def _documents(count: int, left_out: dict[str, str]):
    """Looks how many documents the manifest counts, and that it counts and names the first of what was left out."""

    def look(ended: Ended) -> str | None:
        (source,) = ended.manifest()["data"]["train"]["sources"]
        if source["documents"] != count or set(source["left_out"]) != set(left_out):
            return f"the manifest says {source['documents']} documents, left out {source['left_out']}"
        missing = [place for kind, place in left_out.items() if place not in source["named"][kind][0]]
        return f"{missing[0]} is not named" if missing else None

    return look


def _file(context, name: str, content: bytes) -> Path:
    """A new file under this name's beginning and ending, with a number between."""
    stem, _, suffix = name.partition(".")
    path = context.folder(stem).with_suffix(f".{suffix}")
    path.write_bytes(content)
    return path


def _some(context, table: dict) -> dict:
    """A quarter of a table where the quick form is wanted."""
    return dict(list(table.items())[::4]) if context.quick else table


DATA = {
    "D1": Check(
        d1_bad_lines,
        injected="bad JSON, non-UTF-8, missing column, wrong type, NUL, truncated line; rows, texts, streams, corpora",
        expected="65 with file:line, or a counted skip",
    ),
    "D2": Check(
        d2_odd_files,
        injected="empty file, empty text or target, BOM, CRLF",
        expected="empty file named; the rest handled and counted",
    ),
    "D3": Check(
        d3_labels,
        injected="unknown label, -1, id >= vocabulary, no labels",
        expected="65 naming the row; -1 in what is predicted alone",
    ),
}
