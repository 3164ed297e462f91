"""From a crawl to a corpus: datatrove filters and deduplicates, and the last step of its pipeline writes the tokens.

    pip install 'datatrove[processing]' spacy
    python examples/datatrove_corpus.py --input crawl/ --output_dir work --tokenizer_name google/t5-v1_1-base --tasks 8
    python examples/datatrove_corpus.py ... --tasks 500 --slurm_partition cpu --slurm_time 08:00:00
    t5suite pre_train --train_corpus work/corpus ...

Five stages, each of which begins when the one before it has ended: filter, signatures, buckets, clusters (MinHash,
which finds near duplicates), and the corpus. With `--slurm_partition` each is an array of jobs. The same command goes
on after the tasks that have ended. The filters below are Gopher's (arXiv:2112.11446); put your own in their place.
"""

import argparse
from pathlib import Path

from datatrove.pipeline.base import PipelineStep

BUCKETS = 14  # of MinHash, with 8 hashes each (FineWeb's, arXiv:2406.17557)


# %%
class CorpusWriter(PipelineStep):
    """The end of a pipeline: each task writes a shard of tokens, the one that ends last corpus.json.

    >>> LocalPipelineExecutor([JsonlReader("crawl"), CorpusWriter("corpus", "google/t5-v1_1-base")], tasks=8).run()
    """

    name = "T5 corpus"
    type = "💽 - WRITER"

    def __init__(
        self, output_dir: str, tokenizer_name: str, validation_fraction: float = 0.01, separator: str = "none"
    ):
        super().__init__()
        self.output_dir = output_dir
        self.tokenizer_name = tokenizer_name
        self.validation_fraction = validation_fraction
        self.separator = separator

    def run(self, data, rank: int = 0, world_size: int = 1):
        """Tokenizes the documents of this task; they go no further."""
        from t5suite.data.corpora.building import build_shard
        from t5suite.data.corpora.corpus_plan import CorpusSettings
        from t5suite.data.corpora.readers import TextOptions
        from t5suite.models.loading import load_tokenizer

        settings = CorpusSettings(
            TextOptions(), validation_fraction=self.validation_fraction, document_separator=self.separator
        )
        tokenizer = load_tokenizer(self.tokenizer_name)
        build_shard(
            self.texts_of(data), self.output_dir, tokenizer, (rank, world_size), settings, name="datatrove task"
        )

    def texts_of(self, data):
        """The texts of the documents, which are counted for datatrove's statistics."""
        for document in data:
            self.stat_update("documents")
            yield document.text


# %%
def stages(input_dir: str, work: Path, writer: CorpusWriter, tasks: int) -> dict[str, tuple[list, int]]:
    """By name: the steps of each stage, and its number of tasks."""
    from datatrove.pipeline.dedup import (
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupFilter,
        MinhashDedupSignature,
    )
    from datatrove.pipeline.dedup.minhash import MinhashConfig
    from datatrove.pipeline.filters import GopherQualityFilter, GopherRepetitionFilter
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter

    filtered, signatures, buckets, removed = (
        str(work / name) for name in ("filtered", "signatures", "buckets", "removed")
    )
    config = MinhashConfig(num_buckets=BUCKETS)
    return {
        "filter": (
            [JsonlReader(input_dir), GopherRepetitionFilter(), GopherQualityFilter(), JsonlWriter(filtered)],
            tasks,
        ),
        "signatures": ([JsonlReader(filtered), MinhashDedupSignature(signatures, config)], tasks),
        "buckets": ([MinhashDedupBuckets(signatures, buckets, config=config)], BUCKETS),
        "clusters": ([MinhashDedupCluster(buckets, removed, config=config)], 1),
        "corpus": ([JsonlReader(filtered), MinhashDedupFilter(removed), writer], tasks),
    }


# %%
def executor(name: str, steps: list, tasks: int, work: Path, arguments, before):
    """What runs a stage, after the one before it: processes of this machine, or Slurm's jobs."""
    common = {"tasks": tasks, "logging_dir": str(work / "logs" / name), "depends": before}
    if arguments.slurm_partition:
        from datatrove.executor import SlurmPipelineExecutor

        settings = {"partition": arguments.slurm_partition, "time": arguments.slurm_time, "qos": arguments.slurm_qos}
        return SlurmPipelineExecutor(steps, job_name=name, mem_per_cpu_gb=4, **settings, **common)
    from datatrove.executor import LocalPipelineExecutor

    return LocalPipelineExecutor(steps, workers=arguments.workers, **common)


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--input", required=True, help="a folder of .jsonl or .jsonl.gz files with a column text")
    add("--output_dir", required=True, help="the corpus goes into its folder corpus, what lies between beside that")
    add("--tokenizer_name", required=True, help="hub name or folder")
    add("--validation_fraction", type=float, default=0.01, help="share of documents that are held out")
    add("--tasks", type=int, default=1, help="parts of the work, and so shards of the corpus")
    add("--workers", type=int, default=1, help="processes of this machine at once")
    add("--slurm_partition", help="run on Slurm, in this partition")
    add("--slurm_time", default="04:00:00", help="the time of a job")
    add("--slurm_qos", default="normal")
    arguments = parser.parse_args(argv)
    work = Path(arguments.output_dir).absolute()
    writer = CorpusWriter(str(work / "corpus"), arguments.tokenizer_name, arguments.validation_fraction)
    last = None
    for name, (steps, tasks) in stages(arguments.input, work, writer, arguments.tasks).items():
        last = executor(name, steps, tasks, work, arguments, last)
    last.run()


if __name__ == "__main__":
    main()
