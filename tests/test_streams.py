"""Streams: the same data for any number of workers and ranks, exact positions, nothing held out is trained on."""

import dataclasses
import errno
import functools
import hashlib
import itertools
import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import datasets
import numpy as np
import psutil
import pytest
from absl.testing import parameterized
from corpus_files import is_held_out, json_lines, parquet, write_packed
from number_encoder import NumberEncoder
from support import folder
from transformers import AutoTokenizer
from vocabulary_folders import write_t5

from t5suite.data.corpora.encoding import TextEncoder
from t5suite.data.streams.documents import StreamDocuments
from t5suite.data.streams.encoder import stream_encoder
from t5suite.data.streams.loader import StreamLoader, check_shares, held_out_documents
from t5suite.data.streams.positions import merge_states
from t5suite.data.streams.settings import StreamCorpus, StreamSettings
from t5suite.data.streams.shares import Share, cut_files, dealt_files
from t5suite.data.streams.sources import FileSource, HubSource, open_source
from t5suite.data.streams.virtual_streams import VirtualStream
from t5suite.testing import exits_with, tiny_tokenizer
from t5suite.training.checkpoints.data_positions import StreamSource
from t5suite.training.pre_training_data import SCORE_ALL, held_out_of_stream
from t5suite.training.pre_training_streams import StreamedText
from t5suite.training.pre_training_text import TextSettings
from t5suite.training.processes.ranks import Ranks

UPDATE = 16  # blocks of an update, over all ranks


def number_documents(count=300, seed=0):
    """Documents of 3 to 29 numbers; no number comes twice, so that each tells its document."""
    lengths = np.random.default_rng(seed).integers(3, 30, size=count)
    return [" ".join(str(100 * i + t) for t in range(length)) for i, length in enumerate(lengths)]


def written(texts, name, where=None) -> Path:
    kind = Path(name.removesuffix(".gz").removesuffix(".zst")).suffix
    text = "\n".join(texts).encode() + b"\n"
    return write_packed(name, {".parquet": parquet(texts), ".txt": text}.get(kind) or json_lines(texts), where)


def file_source(paths, **options) -> FileSource:
    """The files, read with these options of `FileSource`."""
    return FileSource(paths, dataclasses.replace(FileSource(paths).options, **options))


def count_lines_before(path, offset):
    return Path(path).read_bytes()[:offset].count(b"\n")


def as_it_is(examples):
    return examples


def settings(**changes):
    return StreamSettings(**{"lengths": (8,), "seed": 3, "num_virtual_streams": 8, "buffer_size": 32, **changes})


def loader(corpora, rank=0, world_size=1, num_workers=0, **changes):
    corpora = corpora if isinstance(corpora, list) else [StreamCorpus(corpora)]
    ranks = {"rank": rank, "world_size": world_size, "num_workers": num_workers}
    return StreamLoader(corpora, NumberEncoder(), settings(**changes), as_it_is, UPDATE // world_size, **ranks)


def updates(corpora, count, world_size=1, num_workers=0, state=None, **changes):
    """`(per update {j: its tokens}, the run's position at the end)` from all ranks."""
    data, states = [{} for _ in range(count)], []
    for rank in range(world_size):
        stream = loader(corpora, rank, world_size, num_workers, **changes)
        if state is not None:
            stream.load_state_dict(json.loads(json.dumps(state)))
        batches = iter(stream)
        for update in data:
            update.update({e["index"]: (e["input_ids"].tolist(), e.get("corpus", 0)) for e in next(batches)})
        states.append(stream.state_dict())
        stream.close()
    return data, merge_states(states)


NAMES = ("a.txt", "a.jsonl", "a.json.gz", "a.txt.zst", "a.parquet")


class ShareTest(parameterized.TestCase):
    @parameterized.product(names=[(name,) for name in NAMES] + [NAMES, ("a.txt", "b.jsonl")], count=(1, 2, 6, 15))
    @pytest.mark.quick_cases(11)
    def test_every_document_belongs_to_one_reader_once_a_pass(self, names, count):
        directory, texts = folder(), number_documents(60)
        for i, name in enumerate(names):
            written(texts[i :: len(names)], f"{i}/{name}", directory)
        source = FileSource(directory)
        for epoch in range(2):
            shares = [[item.text for item in source.read(Share(i, count), epoch, seed=5)] for i in range(count)]
            self.assertCountEqual([text for share in shares for text in share], texts)

    def test_json_lines_are_shared_out_alike_whatever_a_document_of_a_txt_file_is(self):
        path = written(number_documents(60), "a.jsonl")
        for index in range(4):
            shares = [list(file_source(path, text_unit=unit).read(Share(index, 4))) for unit in ("line", "paragraph")]
            self.assertNotEmpty(shares[0])
            self.assertEqual(shares[1], shares[0])

    @parameterized.product(name=NAMES, text_unit=("line", "paragraph"))
    def test_reading_on_from_any_document(self, name, text_unit):
        texts = number_documents(40)
        texts = [text + "\n" for text in texts] if text_unit == "paragraph" and ".txt" in name else texts
        directory = folder()
        for i in range(3):
            written(texts[i::3], f"{i}/{name}", directory)
        source = file_source(directory, text_unit=text_unit)
        items = list(source.read(Share(1, 3), seed=5))
        for i, item in enumerate(items):
            if item.text:
                self.assertEqual(list(source.read(Share(1, 3), position=item.position, seed=5)), items[i:])


def equal_files(file_count, documents_a_file, ending="jsonl.gz") -> FileSource:
    """Files of one size that can only be read from their beginning; document d of file f is the text "f d"."""
    directory = folder()
    for file in range(file_count):
        texts = [f"{file} {document}" for document in range(documents_a_file)]
        written(texts, f"{file:03}.{ending}", directory)
    source = FileSource(directory)
    source.sizes = [1] * file_count
    return source


def openings_counted(source) -> list[int]:
    """Replaces the source's reading of files by one that lists the files that were opened."""
    opened, records = [], source.records

    def counting(piece, place):
        opened.append(piece.file)
        return records(piece, place)

    source.records = counting
    return opened


@functools.cache
def whole_run_over(file_count: int) -> tuple[FileSource, list]:
    """Files that cannot be cut, and the updates that a run of one process reads from them."""
    source = equal_files(file_count, 40)
    return source, updates(source, 45, lengths=(2,))[0]


def digest(value) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


class DealTest(parameterized.TestCase):
    """Files that cannot be cut, dealt out to readers."""

    @parameterized.parameters(
        (4, 8, "4912ca0ed7e00cd6", "cadb31f8e083a951"),
        (8, 8, "1495dcb391553a74", "a7d5e8da50b5fe15"),
        (16, 8, "e0ae5dcba984721c", "ae4b93a2dcf079ea"),
        (1, 8, "1fa2fc5d51a3889a", "ecb58165b77cbb44"),
    )
    @pytest.mark.quick_cases(1)
    def test_the_order_is_that_of_earlier_versions_where_the_counts_divide(
        self, file_count, reader_count, of_items, of_updates
    ):
        source = equal_files(file_count, 12)
        shares = [
            [[item.text for item in source.read(Share(reader, reader_count), epoch, seed=5)] for epoch in range(2)]
            for reader in range(reader_count)
        ]
        self.assertEqual(digest(shares), of_items)
        batches, _ = updates(source, 24, lengths=(2,))
        self.assertEqual(digest([sorted(batch.items()) for batch in batches]), of_updates)

    @parameterized.product(
        files_and_readers=[(41, 64), (3, 8), (63, 64), (65, 64), (100, 64), (7, 3), (5, 1), (96, 64)]
    )
    def test_parts_rotate_so_that_every_pass_has_every_document_once(self, files_and_readers):
        file_count, reader_count = files_and_readers
        most_readers_a_file = -(-reader_count // file_count)
        counts = np.zeros(reader_count, dtype=int)
        for epoch in range(4):
            seen = []
            for reader in range(reader_count):
                deal = dealt_files([1] * file_count, Share(reader, reader_count), epoch, seed=1)
                counts[reader] += len(deal.pieces)
                self.assertNotEmpty(deal.pieces)
                self.assertLessEqual(deal.step, most_readers_a_file)
                for number, piece in enumerate(deal.pieces):
                    residues = range(deal.offset_of(number), 12, deal.step)
                    seen += [(piece.file, document) for document in residues]
            if deal.step < 12:
                self.assertCountEqual(seen, [(file, d) for file in range(file_count) for d in range(12)])
        self.assertLessEqual(counts.max() - counts.min(), 1, "a reader is ahead of another by more than a part")

    @parameterized.parameters(
        ([1, 1, 2, 2], [[0, 2], [1, 3], [0, 2], [1, 3]], [0, 0, 1, 1], 2),
        ([1, 1, 1, 5], [[0, 1, 2, 3]] * 4, [0, 1, 2, 3], 4),
        ([1, 3, 5], [[0, 1, 2]] * 4, [0, 1, 2, 3], 4),
    )
    def test_files_of_unequal_sizes_are_dealt_to_groups_of_equal_shares(self, sizes, files, offsets, step):
        deals = [dealt_files(sizes, Share(reader, 4), seed=None) for reader in range(4)]
        self.assertEqual([[piece.file for piece in deal.pieces] for deal in deals], files)
        self.assertEqual([deal.offset for deal in deals], offsets)
        self.assertEqual({deal.step for deal in deals}, {step})

    @parameterized.parameters(
        ([1, 1, 2, 2], 4), ([1, 3, 5], 4), ([2, 2, 2, 2, 3], 5), ([7, 1, 3, 4], 6), ([4, 4, 8], 1)
    )
    def test_every_document_of_files_of_unequal_sizes_has_one_reader_in_every_pass(self, sizes, reader_count):
        """By brute force: a reader takes every n-th document of its files, one file after another."""
        for epoch in range(3):
            taken = []
            for reader in range(reader_count):
                deal = dealt_files(sizes, Share(reader, reader_count), epoch, seed=1)
                documents = [(piece.file, number) for piece in deal.pieces for number in range(12 * sizes[piece.file])]
                taken += documents[deal.offset :: deal.step]
            every = [(file, number) for file, size in enumerate(sizes) for number in range(12 * size)]
            self.assertCountEqual(taken, every)

    @parameterized.parameters(([100, 300], 2), ([7, 1, 30], 5), ([3], 4), ([1, 1, 1], 1))
    def test_every_byte_of_files_that_can_be_cut_has_one_reader(self, sizes, reader_count):
        pieces = [piece for reader in range(reader_count) for piece in cut_files(sizes, Share(reader, reader_count))]
        taken = [(piece.file, byte) for piece in pieces for byte in range(piece.start, piece.end)]
        self.assertEqual(taken, [(file, byte) for file, size in enumerate(sizes) for byte in range(size)])

    @parameterized.parameters(11, 3)
    def test_a_pass_opens_each_file_once(self, file_count):
        self.check_openings_of_a_pass(file_count, num_streams=16)

    @parameterized.parameters(41, 4, 64, 1)
    @pytest.mark.slow
    def test_a_pass_of_many_streams_opens_each_file_once(self, file_count):
        self.check_openings_of_a_pass(file_count, num_streams=64)

    def check_openings_of_a_pass(self, file_count, num_streams):
        documents_a_file = 2 * num_streams
        source = equal_files(file_count, documents_a_file)
        opened = openings_counted(source)
        stream = loader(source, num_virtual_streams=num_streams, lengths=(2,), buffer_size=4 * num_streams)
        batches, seen = iter(stream), set()
        num_blocks = 3 * num_streams**2  # more than a pass
        for _ in range(num_blocks // UPDATE):
            seen |= {tuple(example["input_ids"].tolist()) for example in next(batches)}
        self.assertEqual(len(seen), file_count * documents_a_file)
        files_used = -(-num_blocks // documents_a_file)
        self.assertLessEqual(len(opened), files_used + file_count, "a file is opened once a pass, some ahead of use")

    @pytest.mark.slow
    def test_11_files_take_no_more_openings_of_16_streams_than_16(self):
        opened = {}
        for file_count in (11, 16):
            source = equal_files(file_count, 704 // file_count)
            opened[file_count] = openings_counted(source)
            updates(source, 704 // UPDATE, num_virtual_streams=16, lengths=(2,), buffer_size=16)
        self.assertLessEqual(len(opened[11]), 1.2 * len(opened[16]))

    @parameterized.product(shape=[(2, 0), (1, 2), (2, 2)], file_count=(3, 11))
    @pytest.mark.quick_cases(1)
    def test_rotated_parts_are_the_same_for_workers_ranks_and_restarts(self, shape, file_count):
        """Of 11 files, a pass is 28 updates."""
        source, whole = whole_run_over(file_count)
        self.assertEqual(updates(source, 45, *shape, lengths=(2,))[0], whole)
        for cut in (1, 31):
            _, state = updates(source, cut, *shape, lengths=(2,))
            self.assertEqual(updates(source, 45 - cut, state=state, lengths=(2,))[0], whole[cut:])

    def test_an_earlier_versions_position_in_rotated_files_is_refused(self):
        state = loader(equal_files(3, 8)).state_dict()
        for corpus in state["data"]["corpora"]:
            del corpus["parts_a_file"]
        with exits_with(78, "a stream of 3 files was written by an earlier version.*--reset data"):
            loader(equal_files(3, 8)).load_state_dict(state)

    def test_a_part_without_text_is_not_the_end(self):
        source = equal_files(3, 2)  # parts of three readers for two documents
        batches, _ = updates(source, 3, lengths=(2,))
        self.assertLen({tuple(tokens) for batch in batches for tokens, _ in batch.values()}, 6)


class SharedFilesTest(parameterized.TestCase):
    """Files that cannot be cut are read once for all readers of a process that keep about the same pace."""

    @parameterized.product(characters_kept=(0, 300, 1500, 10**6), seed=(0, 1, 2))
    def test_a_reader_gets_its_documents_whatever_the_others_do(self, characters_kept, seed):
        alone = equal_files(2, 50)
        expected = [list(alone.read(Share(reader, 8))) for reader in range(8)]
        source = FileSource(alone.paths)
        source.sizes = alone.sizes
        source.shared_files.characters_kept = characters_kept
        rng = np.random.default_rng(seed)
        starts = [int(rng.integers(len(items))) for items in expected]
        readers = [source.read(Share(i, 8), position=expected[i][start].position) for i, start in enumerate(starts)]
        items_of_readers = [[] for _ in readers]
        unfinished = list(range(8))
        while unfinished:
            reader = unfinished[rng.integers(len(unfinished))]
            item = next(readers[reader], None)
            if item is None:
                unfinished.remove(reader)
            else:
                items_of_readers[reader].append(item)
        self.assertEqual(items_of_readers, [items[start:] for items, start in zip(expected, starts)])

    def test_a_file_is_opened_once_while_its_records_are_kept_and_again_by_a_reader_that_lags(self):
        for characters_kept, num_openings in ((10**6, 1), (3000, 2)):
            source = equal_files(1, 100)
            source.shared_files.characters_kept = characters_kept  # 3000: fourteen records
            opened = openings_counted(source)
            first, second = (source.read(Share(reader, 2)) for reader in range(2))
            next(second)
            self.assertLen(list(itertools.islice(first, 30)), 30)
            self.assertLen(list(second), 49)
            self.assertLen(opened, num_openings)

    def test_a_failure_reaches_every_reader(self):
        path = written(number_documents(20), "a.jsonl.gz")
        path.write_bytes(path.read_bytes()[:-9])
        source = FileSource(path)
        readers = [source.read(Share(reader, 3)) for reader in range(3)]
        for reader in readers:
            with exits_with(65, "a.jsonl.gz: the .* file is cut off"):
                list(reader)


class DocumentsTest(parameterized.TestCase):
    """About 65,536 characters are tokenized at once, of 130,000."""

    TEXTS = [" ".join(map(str, range(10_000 + 400 * i, 10_300 + 401 * i))) for i in range(60)]

    def test_every_document_has_the_pass_and_the_counts_before_it_and_is_read_on_from_there(self):
        source = FileSource(written(self.TEXTS, "a.txt"))
        arguments = (source, NumberEncoder(), settings(validation_fraction=0.2, separator_id=9), Share(0, 1))
        counts = {"documents": 0, "tokens": 0, "held_out": 0, "empty": 0, "bad": 0}
        expected = []
        for epoch, text in itertools.product(range(2), self.TEXTS):
            if is_held_out(text, 0.2):
                counts["held_out"] += 1
                continue
            ids = [*map(int, text.split()), 9]
            expected.append((epoch, dict(counts), ids))
            counts["documents"] += 1
            counts["tokens"] += len(ids)
        documents = StreamDocuments(*arguments)
        read = [next(documents) for _ in expected]
        self.assertEqual([(place["epoch"], place["counts"], ids.tolist()) for place, ids in read], expected)
        for number in (0, 40, len(expected) // 2, len(expected) - 3):
            rest = StreamDocuments(*arguments, position=read[number][0])
            for place, ids in read[number : number + 3]:
                place_again, ids_again = next(rest)
                self.assertEqual((place_again, ids_again.tolist()), (place, ids.tolist()))

    def test_text_is_tokenized_in_batches_of_that_size(self):
        encoder = mock.Mock(encode=mock.Mock(side_effect=NumberEncoder().encode))
        documents = StreamDocuments(FileSource(written(self.TEXTS, "a.txt")), encoder, settings(), Share(0, 1))
        for _ in self.TEXTS:
            next(documents)
        batches = [call.args[0] for call in encoder.encode.call_args_list]
        self.assertEqual(list(itertools.chain(*batches)), self.TEXTS)
        self.assertGreater(len(batches), 1)
        for batch in batches[:-1]:
            self.assertGreaterEqual(sum(map(len, batch)), 65536)
            self.assertLess(sum(map(len, batch[:-1])), 65536)


class BlockTest(parameterized.TestCase):
    def test_a_window_holds_the_next_blocks_of_the_text_in_another_order(self):
        texts = number_documents(30)
        tokens = [int(word) for _ in range(4) for text in texts for word in text.split()]
        corpora = [StreamCorpus(FileSource(written(texts, "a.txt")))]
        stream = VirtualStream(corpora, NumberEncoder(), settings(num_virtual_streams=1, buffer_size=10), index=0)
        found = [next(stream).tokens.tolist() for _ in range(101)]
        expected = [tokens[8 * i : 8 * i + 8] for i in range(101)]
        borders = [0, 1, *range(11, 102, 10)]
        orders = set()
        for start, end in itertools.pairwise(borders):
            self.assertCountEqual(found[start:end], expected[start:end])
            orders.add(tuple(expected.index(block, start) - start for block in found[start:end]))
        self.assertLen(orders, len(borders) - 1)

    def test_blocks_of_several_lengths_follow_their_weights(self):
        source = FileSource(written(number_documents(200), "a.txt"))
        mixed = settings(lengths=(5, 8, 11), denoiser_weights=(1, 2, 0), num_virtual_streams=2, buffer_size=40)
        batches = iter(StreamLoader([StreamCorpus(source)], NumberEncoder(), mixed, as_it_is, 600))
        examples = next(batches)
        self.assertTrue(all(len(e["input_ids"]) == (5, 8, 11)[e["denoiser"]] for e in examples))
        counts = np.bincount([e["denoiser"] for e in examples], minlength=3)
        self.assertBetween(counts[0], 150, 250)
        self.assertEqual(counts[2], 0)

    def test_several_corpora_follow_their_weights_and_are_read_in_full(self):
        few, many = number_documents(20), [" ".join(f"9{n}" for n in t.split()) for t in number_documents(90, 1)]
        files = (few, "few.txt", 1), (many, "many.txt.gz", 3)
        corpora = [StreamCorpus(FileSource(written(texts, name)), weight) for texts, name, weight in files]
        found, _ = updates(corpora, 128, num_virtual_streams=2)
        data = [datum for update in found for datum in update.values()]
        self.assertLessEqual(abs(sum(corpus for _, corpus in data) - 0.75 * len(data)), 2 * 2)
        for corpus, texts in enumerate((few, many)):
            seen = {token for tokens, which in data if which == corpus for token in tokens}
            self.assertEqual(seen, {int(word) for text in texts for word in text.split()})

    def test_corpora_share_the_shuffled_blocks_by_weight_and_first_windows_grow_from_stream_to_stream(self):
        source = FileSource(written(number_documents(200), "a.txt"))
        corpora = [StreamCorpus(source, weight) for weight in (1, 3)]
        for index, first_sizes in enumerate([(1, 1), (1, 3), (2, 6), (3, 9)]):
            stream = VirtualStream(corpora, NumberEncoder(), settings(num_virtual_streams=4, buffer_size=64), index)
            blocks = [next(stream) for _ in range(40)]
            for corpus, (first_size, size) in enumerate(zip(first_sizes, (4, 12), strict=True)):
                numbers = [block.given for block in blocks if block.corpus == corpus]
                two_windows = [*range(1, first_size + 1), *range(1, size + 1), 1]
                self.assertEqual(numbers[: len(two_windows)], two_windows)

    def test_virtual_streams_draw_apart_so_that_every_update_is_of_all_corpora_and_denoisers(self):
        source = FileSource(written(number_documents(200), "a.txt"))

        def draws_of_updates(seed: int) -> list[list[tuple[int, int]]]:
            mixed = settings(lengths=(5, 8), denoiser_weights=(1, 1), num_virtual_streams=16, seed=seed)
            batches = iter(StreamLoader([StreamCorpus(source)] * 2, NumberEncoder(), mixed, as_it_is, 16))
            return [[(e["corpus"], e["denoiser"]) for e in next(batches)] for _ in range(30)]

        updates_of_seeds = draws_of_updates(3), draws_of_updates(4)
        for which in (0, 1):
            streams = set()
            for draws_UV in updates_of_seeds:
                drawn_UV = np.array(draws_UV)[:, :, which]
                self.assertBetween(drawn_UV.sum(axis=1).min(), 2, 8)  # of 16, 8 on average
                self.assertBetween(drawn_UV.sum(axis=1).max(), 8, 14)
                streams |= {tuple(drawn_U) for drawn_U in drawn_UV.T.tolist()}
            self.assertLen(streams, 2 * 16)

    def test_a_separator_follows_every_document(self):
        source = FileSource(written(["1 2 3", "4 5"], "a.txt"))
        found, _ = updates(source, 1, num_virtual_streams=1, separator_id=9, lengths=(14,))
        self.assertEqual(found[0][0][0], [1, 2, 3, 9, 4, 5, 9] * 2)

    def test_settings_that_cannot_be(self):
        for name, value in (("lengths", (0,)), ("num_virtual_streams", 0), ("validation_fraction", 1.0)):
            with exits_with(78, name):
                settings(**{name: value})
        with exits_with(78, "64 virtual streams.*--num_virtual_streams 72"):
            check_shares(64, 4, 3)


class SameDataTest(parameterized.TestCase):
    """36 updates are three to five passes."""

    NUM_UPDATES = 36

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        directory = folder()
        written(number_documents(60), "a.txt", directory)
        written(number_documents(90)[60:], "b.txt", directory)
        cls.sources = {
            "plain": FileSource(directory),
            "packed": FileSource(written(number_documents(60), "a.jsonl.gz")),
            "many": FileSource([written(number_documents(8, i), f"{i}.txt.zst") for i in range(12)]),
        }
        cls.whole = {name: updates(source, cls.NUM_UPDATES)[0] for name, source in cls.sources.items()}

    @parameterized.product(kind=("plain", "packed", "many"), shape=[(1, 2), (2, 0), (2, 2), (8, 0)])
    @pytest.mark.quick_cases(1)
    def test_workers_and_ranks_change_nothing(self, kind, shape):
        self.assertEqual(updates(self.sources[kind], self.NUM_UPDATES, *shape)[0], self.whole[kind])

    @parameterized.product(kind=("plain", "packed", "many"), cut=(1, 8, 23, 35))
    @pytest.mark.quick_cases(1)
    def test_going_on_from_any_update_changes_nothing(self, kind, cut):
        _, state = updates(self.sources[kind], cut)
        rest, _ = updates(self.sources[kind], self.NUM_UPDATES - cut, state=state)
        self.assertEqual(rest, self.whole[kind][cut:])

    @parameterized.parameters((1, 2, 1, 0), (2, 1, 1, 2), (2, 2, 8, 0))
    @pytest.mark.slow
    def test_going_on_with_other_workers_and_ranks(self, ranks_before, workers_before, ranks_after, workers_after):
        source, cut = self.sources["plain"], 23
        _, state = updates(source, cut, ranks_before, workers_before)
        rest, _ = updates(source, self.NUM_UPDATES - cut, ranks_after, workers_after, state)
        self.assertEqual(rest, self.whole["plain"][cut:])

    def test_the_position_counts_what_was_given_out_not_what_was_read_ahead(self):
        _, by_workers = updates(self.sources["plain"], 5, num_workers=2)
        _, alone = updates(self.sources["plain"], 5)
        self.assertEqual(by_workers, alone)
        self.assertLess(len(json.dumps(by_workers)), 8 * 500)

    def test_mixed_corpora_go_on_exactly(self):
        corpora = [StreamCorpus(source, weight) for source, weight in zip(self.sources.values(), (2, 1))]
        whole, _ = updates(corpora, 12)
        _, state = updates(corpora, 7, num_workers=2)
        rest, _ = updates(corpora, 5, world_size=2, state=state)
        self.assertEqual(rest, whole[7:])

    def test_a_position_is_refused_where_it_does_not_belong(self):
        source = self.sources["plain"]
        streams = [loader(source, rank, 2) for rank in range(2)]
        for stream in streams:
            next(iter(stream))
        states = [stream.state_dict() for stream in streams]
        with exits_with(78, "seed 3 there, 4 here; to begin the text anew: --reset data"):
            loader(source, seed=4).load_state_dict(merge_states(states))
        with exits_with(78, "positions of all ranks are needed"):
            loader(source).load_state_dict(states[0])
        with exits_with(78, "datum 16.*cannot resume"):
            check = loader(source, 0, 3, num_virtual_streams=9)
            check.load_state_dict({**check.state_dict(), "num_given": 16})
        with exits_with(78, "different steps"):
            merge_states([states[0], {**states[1], "num_given": 32}])
        with exits_with(65, "another than the checkpoint's, or has changed since: .* here$"):
            loader(FileSource(written(["1 2"], "a.txt"))).load_state_dict(merge_states(states))
        with exits_with(78, "version"):
            loader(source).load_state_dict({"version": 0})

    @parameterized.parameters(0, 199_990)
    def test_text_that_differs_at_an_end_of_a_file_of_one_size_is_refused(self, place):
        text = "1234 5678\n" * 20_000
        changed_text = text[:place] + "9" + text[place + 1 :]
        state, changed = (loader(FileSource(write_packed("a.txt", t.encode()))) for t in (text, changed_text))
        with exits_with(65, "text is another than the checkpoint's, or has changed since"):
            changed.load_state_dict(state.state_dict())

    def test_counts_are_those_of_the_streams_that_were_read(self):
        source = self.sources["plain"]
        stream = loader(source, num_virtual_streams=32)
        nothing = {"documents": 0, "tokens": 0, "held_out": 0, "empty": 0, "bad": 0, "epochs": 0}
        self.assertEqual(stream.counts(), nothing)
        next(iter(stream))  # a block of half of the streams, each of 8 tokens
        expected = {**nothing, "epochs": 1}
        for index in range(16):
            tokens_of_stream = 0
            for item in source.read(Share(index, 32), seed=3):
                if tokens_of_stream < 8:
                    tokens_of_stream += len(item.text.split())
                    expected["documents"] += 1
            expected["tokens"] += tokens_of_stream
        self.assertEqual(stream.counts(), expected)

    def test_a_block_that_takes_a_whole_pass_counts_one(self):
        one_stream = {"num_virtual_streams": 1, "buffer_size": 1, "lengths": (5,)}
        stream = loader(FileSource(written(["1 2 3", "4 5"], "a.txt")), **one_stream)
        for passes, _ in zip((16, 32), stream, strict=False):
            counts = stream.counts()
            self.assertEqual((counts["epochs"], counts["documents"]), (passes, 2 * passes))


class HeldOutTest(parameterized.TestCase):
    def test_what_cannot_be_held_out_is_refused(self):
        path = folder() / "a.jsonl"
        path.write_text(json.dumps({"text": "1 2"}) + "\n{oh\n")
        with exits_with(65, "a.jsonl:2: not JSON"):
            list(held_out_documents(file_source(path), 1.0))
        skipping = file_source(path, bad_lines="skip")
        self.assertEqual(list(held_out_documents(skipping, 1.0)), ["1 2"])
        with exits_with(
            65, r"a\.jsonl: none of 1 documents is held out: raise --validation_fraction \(1e-09\), or give"
        ):
            list(held_out_documents(skipping, 1e-9))

    def test_held_out_text_of_every_corpus_is_scored_by_its_weight(self):
        tokenizer = tiny_tokenizer()
        corpora = [[f"{word} {number}" for number in range(80)] for word in ("king", "boat", "store")]
        sources = [FileSource(written(lines, "a.txt")) for lines in corpora]
        text = StreamedText(sources, (4, 2, 0.01), TextSettings(sources[0].options, validation_fraction=0.5))
        rows = text.held_out_tokens(tokenizer, num_blocks=6, block_length=5)
        ids = []
        for lines in corpora:
            held_out = [line for line in lines if is_held_out(line, 0.5)]
            encoded = tokenizer(held_out, add_special_tokens=False)["input_ids"]
            ids.append(list(itertools.chain.from_iterable(encoded)))
        self.assertEqual([row.tolist() for row in rows], [ids[0][:20], ids[1][:10], ids[2][:5]])

    def test_held_out_text_is_encoded_and_joined_as_the_text_that_is_trained_on(self):
        """By the stream's encoder; a document without tokens has no end, either."""
        source = FileSource(written(["12 13", "nothing", "14"], "a.txt"))
        settings = TextSettings(source.options, validation_fraction=1.0, document_separator="eos")
        encoder = mock.Mock(return_value=NumberEncoder())
        with mock.patch("t5suite.training.pre_training_streams.stream_encoder", encoder):
            rows = StreamedText([source], (1,), settings).held_out_tokens(tiny_tokenizer(), 1, block_length=9)
        self.assertEqual([row.tolist() for row in rows], [[12, 13, 1, 14, 1]])
        documents = StreamDocuments(source, NumberEncoder(), StreamSettings((8,), separator_id=1), Share(0, 1))
        trained_on = [next(documents)[1].tolist() for _ in range(4)]
        self.assertCountEqual(trained_on, [[12, 13, 1], [14, 1]] * 2)

    def test_1024_blocks_of_a_stream_are_scored_by_default_whatever_their_lengths(self):
        source = FileSource(written(number_documents(1200), "a.txt"))
        text = StreamedText([source, source], (1, 3), TextSettings(source.options, validation_fraction=0.9))
        collator = SimpleNamespace(tokens_lengths=[2, 8], weights=[0.5, 0.5])
        _, examples = held_out_of_stream(None, text, tiny_tokenizer(), folder(), collator, SCORE_ALL, Ranks())
        self.assertLen(examples.held_out.examples, 1024)

    def test_where_the_fast_engine_gives_other_ids_the_tokenizer_reads_the_stream(self):
        lines = [f"A king sat in boat {number}." for number in range(60)]
        source = FileSource(written(lines, "a.txt"))
        place = folder()
        write_t5(place, lines, 60)
        tokenizer = AutoTokenizer.from_pretrained(place)
        self.assertEqual(stream_encoder(tokenizer, [source]).engine, "sentencepiece")
        encode = TextEncoder.encode

        def other_ids_of_these_lines(encoder, texts):
            return [[0] for _ in texts] if texts == lines else encode(encoder, texts)

        with (
            mock.patch.object(TextEncoder, "encode", other_ids_of_these_lines),
            self.assertLogs("t5suite", "WARNING") as logs,
        ):
            encoder = stream_encoder(tokenizer, [source])
        self.assertEqual(encoder.engine, "tokenizers")
        self.assertRegex(logs.output[0], "a.txt.*SentencePiece's ids differ")

    def test_a_tokenizer_without_an_end_ends_no_document(self):
        source = FileSource(written(["1 2"], "a.txt"))
        endless = SimpleNamespace(eos_token=None, eos_token_id=None, name_or_path="endless")
        with exits_with(78, "--document_separator eos: endless has no end token"):
            StreamedText([source], (1,), TextSettings(source.options, document_separator="eos")).separator_id(endless)
        self.assertIsNone(StreamedText([source], (1,), TextSettings(source.options)).separator_id(endless))

    def test_a_changed_validation_file_is_tokenized_anew_before_the_first_step(self):
        path = written(["a king"], "held_out.txt")
        source = FileSource(written(["a boat"], "a.txt"))
        text = StreamedText([source], (1,), TextSettings(source.options, validation_files=[str(path)]))
        collator = SimpleNamespace(tokens_lengths=[4], weights=[1.0])
        args = SimpleNamespace(output_dir=str(folder()), allow_changed=None)
        directory = folder() / "corpus"
        for count in (9, 90):
            path.write_text("a king\n" * count)
            described, _ = held_out_of_stream(args, text, tiny_tokenizer(), directory, collator, SCORE_ALL, Ranks())
            self.assertEqual(described["validation"]["splits"]["validation"]["documents"], count)

    def test_no_held_out_document_is_trained_on(self):
        texts = number_documents(300)
        source = FileSource(written(texts, "a.txt"))
        found, _ = updates(source, 40, validation_fraction=0.2)
        seen = {token // 100 for update in found for tokens, _ in update.values() for token in tokens}
        self.assertEqual(seen, {i for i, text in enumerate(texts) if not is_held_out(text, 0.2)})
        held_out = [text for text in texts if is_held_out(text, 0.2)]
        self.assertEqual(list(held_out_documents(source, 0.2)), held_out)


class TroubleTest(parameterized.TestCase):
    def stream_of(self, lines, bad_lines="error", **options):
        path = folder() / "a.jsonl"
        path.write_text("".join(line + "\n" for line in lines))
        return path, loader(file_source(path, bad_lines=bad_lines), **options)

    LINES = [json.dumps({"text": text}) for text in number_documents(50)]

    @parameterized.parameters(0, 2)
    def test_a_bad_line_is_named_by_file_and_line(self, num_workers):
        path, stream = self.stream_of([*self.LINES, "{oh", *self.LINES], num_workers=num_workers)
        batches = iter(stream)
        with exits_with(65, f"^{path}:51: not JSON"):
            for _ in range(20):
                next(batches)

    @parameterized.parameters(0, 2)
    def test_an_error_of_the_disk_keeps_its_cause_and_its_file(self, num_workers):
        path, stream = self.stream_of(self.LINES, num_workers=num_workers)
        path.unlink()
        path.symlink_to("/proc/self/mem")  # reading its first byte is an input/output error
        with self.assertRaises(OSError) as raised:
            next(iter(stream))
        self.assertEqual((raised.exception.errno, raised.exception.filename), (errno.EIO, str(path)))

    @parameterized.parameters(0, 2)
    def test_bad_and_empty_lines_are_counted_and_named(self, num_workers):
        lines = [*self.LINES, "{oh", '{"text": " "}', "", '{"text": 7}']
        path, stream = self.stream_of(lines, "skip", num_workers=num_workers, num_virtual_streams=2)
        here = mock.patch("t5suite.data.corpora.documents.lines_before", wraps=count_lines_before)
        with here as counting_here, self.assertLogs("t5suite", "WARNING") as logs:
            batches = iter(stream)
            for _ in range(8):
                next(batches)
        stream.close()
        counts = stream.counts()
        passes = counts["bad"] // 2
        self.assertGreaterEqual(passes, 1)
        self.assertEqual(counts["empty"], counts["bad"])
        self.assertBetween(counts["documents"], 50 * passes, 50 * (passes + 2))
        self.assertIn(f"skipped: {path}:51: not JSON", "\n".join(logs.output))
        self.assertIn(f"{path}:54: column 'text' holds 7", "\n".join(logs.output))
        # Workers count lines, where there are any: training would wait.
        self.assertEqual(counting_here.called, num_workers == 0)

    @parameterized.parameters(0, 2)
    @pytest.mark.quick_cases(1)
    def test_a_bad_line_is_named_once_however_many_blocks_follow(self, num_workers):
        texts = [json.dumps({"text": text}) for text in number_documents(2000)]
        path, stream = self.stream_of([texts[0], "{oh", *texts[1:]], "skip", num_workers=num_workers)
        with self.assertLogs("t5suite", "WARNING") as logs:
            batches = iter(stream)
            for _ in range(40):
                next(batches)
        stream.close()
        self.assertEqual(stream.counts()["bad"], 1)
        self.assertEqual("\n".join(logs.output).count(f"{path}:2:"), 1)

    def test_ten_bad_lines_are_named_and_all_are_counted(self):
        lines = [*self.LINES, *["{oh"] * 12]
        path, stream = self.stream_of(lines, "skip", num_virtual_streams=1)
        with self.assertLogs("t5suite", "WARNING") as logs:
            next(iter(stream))
        self.assertEqual(stream.counts()["bad"] % 12, 0)
        messages = [record.getMessage() for record in logs.records]
        places = [message.rpartition(": not JSON")[0] for message in messages[:-1]]
        self.assertEqual(places, [f"skipped: {path}:{number}" for number in range(51, 61)])
        self.assertEqual(messages[-1], "no more skipped lines are shown")

    def test_lines_are_counted_only_for_bad_ones_that_are_named(self):
        lines = [line for good in self.LINES for line in (good, "{oh")]
        path, stream = self.stream_of(lines, "skip")
        lines_before = mock.patch("t5suite.data.corpora.documents.lines_before", wraps=count_lines_before)
        with lines_before as counting, self.assertLogs("t5suite", "WARNING") as logs:
            batches = iter(stream)
            for _ in range(8):
                next(batches)
        self.assertGreater(stream.counts()["bad"], 50)
        self.assertBetween(counting.call_count, 1, 10)
        for record in logs.records[:10]:
            number = int(record.getMessage().removeprefix(f"skipped: {path}:").partition(":")[0])
            self.assertEqual(lines[number - 1], "{oh")

    def test_an_empty_file_is_refused(self):
        with exits_with(65, "b.txt: the file is empty"):
            FileSource([written(["1 2"], "a.txt"), write_packed("b.txt", b"")])

    def test_fewer_documents_than_streams(self):
        _, stream = self.stream_of(self.LINES[:3])
        with exits_with(65, r"stream \d of 8 finds nothing to train on.*--num_virtual_streams"):
            next(iter(stream))

    def test_a_killed_worker_ends_the_run_with_a_clear_error(self):
        _, stream = self.stream_of(self.LINES, num_workers=2)
        batches = iter(stream)
        next(batches)
        os.kill(stream._messages._workers[1].pid, signal.SIGKILL)
        started = time.monotonic()
        with self.assertRaisesRegex(ChildProcessError, "tokenizes during training has died"):
            for _ in range(10000):
                next(batches)
        self.assertLess(time.monotonic() - started, 30)

    def test_closing_ends_the_workers(self):
        _, stream = self.stream_of(self.LINES, num_workers=2)
        batches = iter(stream)  # which a training loop still holds
        next(batches)
        pids = [worker.pid for worker in stream._messages._workers]
        self.assertLen(pids, 2)
        stream.close()
        self.assertIsNone(next(batches, None))
        running = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
        self.assertEqual({process.status() for process in running} - {psutil.STATUS_ZOMBIE}, set())


class TokenizerTest(parameterized.TestCase):
    def test_another_tokenizer_is_refused_on_resume(self):
        source = FileSource(written(number_documents(50), "a.txt"))
        state = loader(source).state_dict()
        with exits_with(78, "tokenized by other, this run's is numbers; .* --reset data"):
            loader(source).load_state_dict({**state, "data": {**state["data"], "tokenizer": "other"}})


class BreakingDataset:
    """What is read of a streamed data set of one file, whose connection breaks once before each of these rows."""

    num_shards = 1
    column_names = None

    def __init__(self, texts: list[str], breaks_before: list[int], first: int = 0):
        self.texts = texts
        self.breaks_before = breaks_before
        self.first = first

    def shard(self, num_shards, index):
        return self

    def skip(self, count):
        return BreakingDataset(self.texts, self.breaks_before, count)

    def iter(self, batch_size):
        for row in range(self.first, len(self.texts)):
            if row in self.breaks_before:
                self.breaks_before.remove(row)
                raise ConnectionError("reset")
            yield {"text": [self.texts[row]]}


class HubTest(parameterized.TestCase):
    """The hub's stand-in is a local folder, streamed by the real `load_dataset`."""

    def setUp(self):
        super().setUp()
        offline = mock.patch.object(datasets.config, "HF_HUB_OFFLINE", True)  # else it counts the download: 5 s
        offline.start()
        self.addCleanup(offline.stop)
        self.texts = number_documents(90)
        self.sources = {}
        for kind in ("jsonl", "parquet", "jsonl.gz"):
            directory = folder()
            for i in range(4):
                written(self.texts[i::4], f"train-{i}.{kind}", directory)
            builder = "parquet" if kind == "parquet" else "json"
            files = sorted(map(str, directory.iterdir()))
            dataset = datasets.load_dataset(builder, data_files=files, split="train", streaming=True)
            self.sources[kind] = HubSource(f"hub:{kind}", dataset=dataset)

    @parameterized.product(kind=("jsonl", "parquet", "jsonl.gz"), count=(3, 8))
    @pytest.mark.quick_cases(2)
    def test_every_document_belongs_to_one_reader_who_can_go_on_from_it(self, kind, count):
        source = self.sources[kind]
        shares = [list(source.read(Share(i, count), seed=1)) for i in range(count)]
        self.assertCountEqual([item.text for share in shares for item in share], self.texts)
        for i in (0, 1, len(shares[1]) - 1):
            self.assertEqual(list(source.read(Share(1, count), 0, shares[1][i].position, 1)), shares[1][i:])

    def test_same_data_with_workers_and_after_a_restart(self):
        source = self.sources["jsonl"]
        whole, _ = updates(source, 12)
        self.assertEqual(updates(source, 12, num_workers=2)[0], whole)
        _, state = updates(source, 7, num_workers=2)
        self.assertEqual(updates(source, 5, world_size=2, state=state)[0], whole[7:])

    @mock.patch("time.sleep")
    def test_a_connection_that_breaks_far_apart_has_all_attempts_each_time(self, sleep):
        dataset = BreakingDataset(self.texts, [0, 1, 20, 40, 60])
        documents = list(HubSource("hub:x", dataset=dataset).read(Share(0, 1)))
        self.assertEqual([document.text for document in documents], self.texts)
        self.assertEqual(sleep.call_count, 5)
        with exits_with(75, "file 0 after row 20"):
            list(HubSource("hub:x", dataset=BreakingDataset(self.texts, [20] * 4)).read(Share(0, 1)))

    @parameterized.parameters((["txt", "id"],), (None,))
    def test_a_data_set_without_the_text_column_is_refused_with_those_that_it_has(self, column_names):
        """Some data sets name their columns only with their rows."""
        dataset = BreakingDataset(self.texts, [])
        dataset.column_names = column_names
        dataset.iter = lambda batch_size: iter([{"txt": ["1 2"], "id": [1]}])
        with exits_with(65, "hub:x: no column 'text' .--text_column_name.; did you mean txt"):
            list(HubSource("hub:x", dataset=dataset).read(Share(0, 1)))

    @parameterized.parameters((RuntimeError("of our own"), RuntimeError), (KeyError("x"), KeyError))
    def test_a_bug_is_no_broken_file(self, error, kind):
        dataset = BreakingDataset(self.texts, [])
        dataset.iter = mock.Mock(side_effect=error)
        with self.assertRaises(kind):
            list(HubSource("hub:x", dataset=dataset).read(Share(0, 1)))

    def test_files_and_data_sets_of_the_hub_are_no_one_stream(self):
        with exits_with(78, "hub:a/b, .*stream them as several corpora, each with its weight"):
            open_source(["hub:a/b", str(written(self.texts, "a.txt"))])
        self.assertIsInstance(open_source([str(written(self.texts, "a.txt"))]), FileSource)

    def test_a_broken_file_is_named(self):
        directory = folder()
        (directory / "a.jsonl").write_text('{"text": "1 2"}\n' * 3)
        dataset = datasets.load_dataset("json", data_files=str(directory / "a.jsonl"), split="train", streaming=True)
        (directory / "a.jsonl").write_text('{"text": "1 2"}\n{"tex\n')
        with exits_with(65, "hub:x: file 0 cannot be read"):
            list(HubSource("hub:x", dataset=dataset).read(Share(0, 1)))


class SeenTest(parameterized.TestCase):
    """How many data a run has seen, in updates of one size, then of another, over both parts."""

    def begun(self, update_size, step, state=None) -> tuple[StreamSource, list]:
        """The data of a run that begins at a step with the position of an earlier part, and its updates."""
        source = FileSource(written(number_documents(60), "a.txt"))
        stream = StreamLoader([StreamCorpus(source)], NumberEncoder(), settings(), as_it_is, update_size)
        if state is not None:
            stream.load_state_dict(json.loads(json.dumps(state)))
        data = StreamSource(stream, max_steps=9)
        data.on_train_begin(SimpleNamespace(gradient_accumulation_steps=1), SimpleNamespace(global_step=step), None)
        return data, iter(stream)

    @parameterized.product(sizes=((16, 8), (8, 24)), step=(0, 3))
    def test_every_datum_is_counted_once_whatever_the_update_and_a_restart(self, sizes, step):
        """After the restart steps count on from 3, or from 0 (--reset step)."""
        seen = []
        data, batches = self.begun(sizes[0], 0)
        for number in range(1, 4):
            seen += [example["index"] for example in next(batches)]
            self.assertEqual(data.seen(number, sizes[0]), len(seen))
        again, batches = self.begun(sizes[1], step, merge_states([data.loader.state_dict()]))
        for number in range(step + 1, step + 3):
            indices = [example["index"] for example in next(batches)]
            self.assertEqual(
                again.examples_of(number, sizes[1]), [f"stream data {len(seen)} to {len(seen + indices) - 1}"]
            )
            seen += indices
            self.assertEqual(again.seen(number, sizes[1]), len(seen))
        self.assertEqual(seen, [*range(len(seen))])

    def test_a_position_is_taken_up_and_one_that_is_lost_or_broken_is_no_beginning(self):
        checkpoint = folder()
        data, batches = self.begun(8, 0)
        next(batches)
        data.save(checkpoint)
        start = SimpleNamespace(checkpoint=checkpoint, reset=frozenset())
        for reset, first in ((frozenset(), 8), (frozenset({"data"}), 0)):
            again, _ = self.begun(8, 0)
            again.load(SimpleNamespace(checkpoint=checkpoint, reset=reset), 8)
            self.assertEqual([example["index"] for example in next(iter(again.loader))], [*range(first, first + 8)])
        state = json.loads((checkpoint / "stream-rank-0.json").read_text())
        without_one = {**state, "streams": {name: state["streams"][name] for name in list(state["streams"])[1:]}}
        for content, message in (
            ("{", "rank-0.json is broken"),
            (json.dumps(without_one), "no position of"),
            (None, "has no "),
        ):
            (checkpoint / "stream-rank-0.json").unlink()
            if content is not None:
                (checkpoint / "stream-rank-0.json").write_text(content)
            with exits_with(78, message):
                self.begun(8, 0)[0].load(start, 8)

    def test_another_text_is_refused_or_begun_anew_where_data_may_change(self):
        checkpoint = folder()
        data, batches = self.begun(8, 0)
        next(batches)
        data.save(checkpoint)
        stream = loader(FileSource(written(number_documents(50), "a.txt")))
        other = StreamSource(stream, max_steps=9)
        start = SimpleNamespace(checkpoint=checkpoint, reset=frozenset())
        refusal = (
            "the streamed text is another than the checkpoint's, or has changed since: .* here; to begin the text anew: "
            "--reset data, or --allow_changed data, which works in sharded training, too$"
        )
        for allowed in (None, "seed"):
            with exits_with(65, refusal):
                other.load(start, 8, allowed)
        with self.assertLogs("t5suite", "WARNING") as logs:
            other.load(start, 8, "seed,data")
        self.assertRegex(logs.output[0], " here; --allow_changed data: the stream begins anew$")
        self.assertEqual(next(iter(stream))[0]["index"], 0)
