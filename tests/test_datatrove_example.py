"""`examples/datatrove_corpus.py`: what the last step of a pipeline writes is what `t5suite corpus build` would.

Without datatrove its step runs on a class that stands in for `PipelineStep`, and the whole pipelines are skipped. The
other way round, what datatrove and Megatron write is adopted and compared with what their own readers give.
"""

import contextlib
import importlib.util
import io
import itertools
import sys
import types
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from absl.testing import parameterized
from corpus_files import Corpus, build_corpus, json_lines, write_packed
from support import folder
from token_folders import documents_of

from t5suite.testing import bundled_model, exits_with, run_cli

ROOT = Path(__file__).parent.parent
NO_DATATROVE = None if find_spec("datatrove") else "datatrove is not installed: pip install datatrove"
NO_MEGATRON = None if find_spec("megatron") else "megatron-core is not installed: pip install megatron-core"
TEXTS = [f"The cook saw a boat at noon and left the king {'again ' * (number % 7)}." for number in range(90)]


class StandIn:
    """Of datatrove's `PipelineStep`, what the writer uses."""

    def __init__(self):
        self.counts = {}

    def stat_update(self, label):
        self.counts[label] = self.counts.get(label, 0) + 1


def example():
    """The module; with a stand-in for datatrove where that is absent."""
    modules = {}
    if NO_DATATROVE:
        modules = {
            name: types.ModuleType(name) for name in ("datatrove", "datatrove.pipeline", "datatrove.pipeline.base")
        }
        modules["datatrove.pipeline.base"].PipelineStep = StandIn
    spec = importlib.util.spec_from_file_location("datatrove_corpus", ROOT / "examples" / "datatrove_corpus.py")
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, modules):
        spec.loader.exec_module(module)
    return module


def documents(texts):
    return (types.SimpleNamespace(text=text) for text in texts)


class WriterTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.corpus = folder() / "corpus"
        self.writer = example().CorpusWriter(str(self.corpus), bundled_model(), 0.2, "eos")

    def write(self, rank, texts):
        self.writer.run(documents(texts), rank, 3)

    @parameterized.parameters((0, 1, 2), (2, 0, 1))
    @pytest.mark.quick_cases(1)
    def test_shards_have_the_tokens_of_the_built_corpus_whatever_task_ends_last(self, *order):
        parts = [TEXTS[:50], [], ["", *TEXTS[50:], " "]]
        for rank in order:
            self.assertFalse((self.corpus / "corpus.json").exists())
            self.write(rank, parts[rank])
        files = [write_packed(f"{number}.jsonl", json_lines(texts)) for number, texts in enumerate(parts) if texts]
        built = build_corpus(files, validation_fraction=0.2, document_separator="eos", bad_lines="skip")
        corpus = Corpus(self.corpus)
        for split in ("train", "validation"):
            self.assertEqual(corpus.documents(split), built.documents(split))
            self.assertEqual(corpus.manifest["splits"][split], built.manifest["splits"][split])
        self.assertLen(corpus.shards, 3)
        self.assertEqual([source["documents"] for source in corpus.manifest["sources"]], [50, 0, 40])
        self.assertEqual(corpus.manifest["sources"][2]["left_out"], {"empty": 2})
        self.assertFalse((self.corpus / "build.json").exists())
        run_cli("corpus", "show", self.corpus, "--num_examples", 0, "--check_hashes", "--json")

    def test_a_task_may_run_again_until_the_corpus_is_finished(self):
        self.write(0, TEXTS[:9])
        self.write(0, TEXTS[:20])
        self.write(1, TEXTS[20:40])
        self.write(2, TEXTS[40:])
        counts = Corpus(self.corpus).manifest["splits"]
        self.assertEqual(counts["train"]["documents"] + counts["validation"]["documents"], 90)
        with exits_with(78, "holds a finished corpus"):
            self.write(1, TEXTS)

    def test_tasks_of_another_pipeline_are_refused(self):
        self.write(0, TEXTS[:9])
        self.writer.validation_fraction = 0.5
        with exits_with(78, "another corpus: --validation_fraction 0.2 there, 0.5 here"):
            self.write(1, TEXTS[9:])

    @pytest.mark.skipif(NO_DATATROVE is not None, reason=str(NO_DATATROVE))
    @pytest.mark.slow
    def test_a_pipeline_of_datatrove(self):
        from datatrove.executor import LocalPipelineExecutor
        from datatrove.pipeline.readers import JsonlReader

        source = folder()
        for number in range(3):
            write_packed(f"{number}.jsonl", json_lines(TEXTS[30 * number : 30 * number + 30]), source)
        steps = [JsonlReader(str(source)), self.writer]
        LocalPipelineExecutor(steps, tasks=3, workers=1, logging_dir=str(folder())).run()
        built = build_corpus(source, validation_fraction=0.2, document_separator="eos")
        self.assertEqual(Corpus(self.corpus).documents("train"), built.documents("train"))


class ReadersTest(parameterized.TestCase):
    """Adopted documents are those that the tools' own readers give."""

    def adopted(self, place):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            run_cli("corpus", "adopt", place, "--tokenizer_name", bundled_model(), "--validation_fraction", "0")
        return documents_of(place, "train")

    @pytest.mark.skipif(NO_DATATROVE is not None, reason=str(NO_DATATROVE))
    @pytest.mark.slow
    def test_of_datatrove(self):
        from datatrove.executor import LocalPipelineExecutor
        from datatrove.pipeline.readers import JsonlReader
        from datatrove.pipeline.tokens import DocumentTokenizer
        from datatrove.pipeline.tokens.merger import get_data_reader, load_doc_ends

        source, place = folder(), folder()
        write_packed("a.jsonl", json_lines(TEXTS), source)
        tokenizer = str(Path(bundled_model()) / "tokenizer.json")
        step = DocumentTokenizer(str(place), tokenizer, eos_token="</s>", seed=0)
        LocalPipelineExecutor([JsonlReader(str(source)), step], logging_dir=str(folder())).run()
        (path,) = place.glob("*.ds")
        with path.open("rb") as tokens, Path(f"{path}.index").open("rb") as index:
            reader = get_data_reader(tokens, load_doc_ends(index), nb_bytes=2)
            expected = [np.frombuffer(content, "<u2").tolist() for content in reader]
        self.assertLen(expected, len(TEXTS))
        self.assertEqual(self.adopted(place), expected)

    @parameterized.parameters("uint16", "int32")
    @pytest.mark.skipif(NO_MEGATRON is not None, reason=str(NO_MEGATRON))
    @pytest.mark.slow
    def test_of_megatron(self, dtype):
        import torch
        from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

        place = folder()
        builder = IndexedDatasetBuilder(str(place / "a.bin"), dtype=np.dtype(dtype).type)
        for number in range(2, 60):
            builder.add_document(torch.tensor([*range(5, 5 + number), 1]), [2, number - 1])
        builder.finalize(str(place / "a.idx"))
        dataset = IndexedDataset(str(place / "a"))
        borders = dataset.document_indices.tolist()
        expected = [np.concatenate(dataset[start:end]).tolist() for start, end in itertools.pairwise(borders)]
        self.assertLen(expected, 58)
        self.assertEqual(self.adopted(place), expected)
