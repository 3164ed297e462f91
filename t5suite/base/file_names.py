"""What the names of files say of their content.

>>> unpacked_suffix("Reviews.CSV.gz"), FORMATS_BY_SUFFIX[".csv"]
('.csv', 'csv')
"""

from pathlib import Path

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
# The `--data_format` of a file, by the suffix of its name.
FORMATS_BY_SUFFIX = {
    ".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv", ".tab": "tsv",
    ".parquet": "parquet", ".txt": "text",
}  # fmt: skip


def suffixes_of(data_format: str) -> tuple[str, ...]:
    """How the names of files of a `--data_format` end: `.tsv` and `.tab` for `tsv`."""
    return tuple(suffix for suffix, name in FORMATS_BY_SUFFIX.items() if name == data_format)


def without_compression(name: str) -> str:
    """The file's name when unpacked: `articles.jsonl` for `articles.jsonl.gz`."""
    for suffix in COMPRESSIONS:
        if name.lower().endswith(suffix):
            name = name[: -len(suffix)]
    return name


def unpacked_suffix(name: str) -> str:
    """How a file's name ends when it is unpacked, in small letters: `.jsonl` for `Articles.JSONL.gz`."""
    return Path(without_compression(name)).suffix.lower()


def is_compressed(path) -> bool:
    """Whether the file's name says that it is compressed."""
    return Path(path).suffix.lower() in COMPRESSIONS
