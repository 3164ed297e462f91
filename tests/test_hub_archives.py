"""Splits in zip files of the hub: rows as the lines say, fields of the original script, damage named."""

import errno
import io
import json
import os
import zipfile
from unittest import mock

from absl.testing import parameterized
from datasets.arrow_writer import ArrowWriter
from support import folder

from t5suite import load_task
from t5suite.testing import exits_with, load_rows, make_task

COMMIT = "c" * 40
LINES = [
    {"id": "q1", "pid": "q1_0", "input": "Who?\n\nA stóry.", "output": "Bob", "source": "left out"},
    {"id": "q2", "pid": "q2_0", "input": "What?\n\nA story.", "output": "Rain"},
    {"id": "q1", "pid": "q1_1", "input": "Who?\n\nA stóry.", "output": "the tall man"},
]


def archive_of(files: dict[str, str | bytes]) -> bytes:
    """A zip file with these members."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


def json_lines(rows) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def scrolls_archive(name: str) -> bytes:
    """An archive as `tau/scrolls` has it: a folder of three splits, the test split without answers."""
    hidden = [{key: value for key, value in row.items() if key != "output"} for row in LINES]
    members = {"train": LINES, "validation": LINES, "test": hidden}
    return archive_of({f"{name}/{split}.jsonl": json_lines(rows) for split, rows in members.items()})


def flipped(archive: bytes) -> bytes:
    """An archive with one other byte in its first member's content."""
    place = archive.index(b"PK", 4) - 8
    return archive[:place] + bytes([archive[place] ^ 1]) + archive[place + 1 :]


class ArchiveTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.cache = folder()
        self.file = self.cache / "narrative_qa.zip"
        self.enter_context(mock.patch("datasets.config.HF_DATASETS_CACHE", self.cache))
        self.enter_context(mock.patch.dict(os.environ, HF_HUB_OFFLINE="1"))  # nothing is asked for the commit
        self.download = self.enter_context(mock.patch("huggingface_hub.hf_hub_download", return_value=str(self.file)))

    def load(self, split):
        return load_rows(load_task("scrolls", "narrative_qa"), split, data_revision=COMMIT)

    def tables(self) -> set[str]:
        """The files of rows in the cache."""
        return {str(path) for path in self.cache.rglob("*.arrow")}

    def test_rows_have_the_scripts_fields_and_one_questions_answers_are_together(self):
        self.file.write_bytes(scrolls_archive("narrative_qa"))
        fields = ("id", "pid", "input", "output")
        self.assertEqual(self.load("train"), [{field: line[field] for field in fields} for line in LINES])
        self.download.assert_called_with("tau/scrolls", "narrative_qa.zip", repo_type="dataset", revision=COMMIT)
        answers = [(row["id"], row["output"]) for row in self.load("validation")]
        self.assertEqual(answers, [("q1", ["Bob", "the tall man"]), ("q2", ["Rain"])])
        self.assertEqual([row["output"] for row in self.load("test")], [None, None])

    def test_rows_of_a_commit_are_unpacked_once_wherever_the_cache_of_the_client_is(self):
        self.file.write_bytes(scrolls_archive("narrative_qa"))
        rows, tables = self.load("train"), self.tables()
        self.assertLen(tables, 1)
        moved = folder() / "blob"
        os.rename(self.file, moved)
        self.download.return_value = str(moved)
        self.assertEqual((self.load("train"), self.tables()), (rows, tables))
        self.load("test")
        self.assertLen(self.tables(), 2)

    @parameterized.parameters(
        (b"PK no zip", "tau/scrolls/narrative_qa.zip: not a whole zip file .*start again"),
        (archive_of({"narrative_qa/dev.jsonl": "{}"}), "no train.jsonl in it; it has narrative_qa/dev.jsonl"),
        (flipped(scrolls_archive("narrative_qa")), "tau/scrolls/narrative_qa.zip: not a whole zip file .*start again"),
        (archive_of({"narrative_qa/train.jsonl": '{"id": "1"}\n{"id'}), r"narrative_qa/train.jsonl:2: not a row"),
        (archive_of({"narrative_qa/train.jsonl": b'{"id": "1"}\n{"id": "\xff"}'}), "train.jsonl:2: not a row"),
    )
    def test_what_is_wrong_is_named(self, content, message):
        self.file.write_bytes(content)
        with exits_with(65, message):
            self.load("train")

    def test_the_file_to_delete_is_not_the_link_that_the_client_would_make_anew(self):
        blob, link = self.cache / "blob", self.cache / "snapshot.zip"
        blob.write_bytes(b"PK no zip")
        link.symlink_to(blob)
        self.download.return_value = str(link)
        with exits_with(65, f"delete {os.path.realpath(blob)} and"):
            self.load("train")

    @parameterized.parameters(
        (errno.ENOSPC, "the disk of the hub's cache is full .*No space left"),
        (errno.EROFS, "a file cannot be written or read .*Read-only"),
    )
    def test_a_disk_that_takes_no_rows_is_no_fault_of_the_data_or_the_hub(self, number, message):
        self.file.write_bytes(scrolls_archive("narrative_qa"))
        (self.cache / "rows").mkdir()
        (self.cache / "rows" / "train.csv").write_text("text,label\nx,a\n")
        plain_task = make_task(hub_path=str(self.cache / "rows"), splits={"train": "train"})
        for method in ("write_examples_on_file", "write_table"):
            error = OSError(number, os.strerror(number))
            self.enter_context(mock.patch.object(ArrowWriter, method, side_effect=error))
        with exits_with(74, f"narrative_qa.zip.: {message}"):
            self.load("train")
        with exits_with(74, f"rows: {message}"):
            load_rows(plain_task, "train")
