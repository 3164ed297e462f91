"""Pre-trains a tiny T5 from a stream; run in this process, or by torchrun on two ranks.

torchrun --nproc_per_node 2 tests/stream_run.py out.json run_directory 4
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from transformers import set_seed

from t5suite.data.batches.pre_training_collator import T5DataCollator
from t5suite.data.corpora.documents import bundled_text, read_documents
from t5suite.data.corpora.stream_loader import StreamCorpus, StreamLoader, StreamSettings
from t5suite.data.corpora.stream_sources import FileSource, stream_encoder
from t5suite.data.objectives import sentinel_ids
from t5suite.models.loading import load_model, load_tokenizer
from t5suite.training.flags.pre_training import PreTrainerArguments
from t5suite.training.pre_training import PreTrainer

UPDATE = 8
TINY = "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2"


def make_trainer(output_dir, *, num_workers=0, dropout_rate=0.1, max_steps=10, world_size=1, path=None, **stream):
    """A trainer over a text so short that step 5 stands in the second pass, in the middle of a window."""
    tokenizer = load_tokenizer(None)
    args = PreTrainerArguments(
        output_dir=str(output_dir),
        per_device_train_batch_size=UPDATE // 2 // world_size,
        gradient_accumulation_steps=2,
        max_steps=max_steps,
        learning_rate=1e-2,
        logging_steps=1,
        save_steps=1,
        save_total_limit=max_steps,
        eval_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        seed=1,
    )
    set_seed(1)
    model = load_model(tokenizer=tokenizer, config_overrides=f"{TINY},dropout_rate={dropout_rate}")
    collator = T5DataCollator(
        sentinel_ids=sentinel_ids(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        inputs_length=32,
        seed=1,
        decoder_start_token_id=model.config.decoder_start_token_id,
        pad_token_id=model.config.pad_token_id,
    )
    source = FileSource(path or short_text(tokenizer))
    defaults = {"seed": 1, "num_virtual_streams": 4, "buffer_size": 28}
    settings = StreamSettings((collator.tokens_length,), **{**defaults, **stream})
    loader = StreamLoader(
        [StreamCorpus(source)],
        stream_encoder(tokenizer, [source]),
        settings,
        collator,
        args.per_device_train_batch_size,
        rank=args.process_index,
        world_size=args.world_size,
        num_workers=num_workers,
    )
    return PreTrainer(stream=loader, model=model, args=args, collator=collator, processing_class=tokenizer)


def short_text(tokenizer, num_tokens=500) -> Path:
    """The first documents of the bundled text, with so many tokens."""
    path, lines = Path(tempfile.mkdtemp()) / "short.txt", []
    for document in read_documents(bundled_text("train")):
        if num_tokens <= 0:
            break
        lines.append(document[:200])
        num_tokens -= len(tokenizer(lines[-1])["input_ids"])
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def history(trainer) -> list[dict]:
    """What was logged of every update, without times."""
    names = ("loss", "grad_norm", "learning_rate", "epoch", "step")
    return [{name: line[name] for name in names} for line in trainer.state.log_history if "loss" in line]


def main(out, directory, max_steps):
    trainer = make_trainer(
        directory, dropout_rate=0, max_steps=int(max_steps), world_size=int(os.environ["WORLD_SIZE"])
    )
    trainer.train()
    if trainer.is_world_process_zero():
        with open(out, "w") as file:
            json.dump(history(trainer), file)


if __name__ == "__main__":
    main(*sys.argv[1:])
