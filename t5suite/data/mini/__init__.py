"""The bundled benchmark `mini`: three small tasks, a text and a tiny model, for a lab with no network.

>>> (FOLDER / "sentiment" / "train.jsonl.gz").exists()
True

sentiment/ entailment/ similarity/   {train,validation,test}.jsonl.gz, written by `grammar`
text/                                {train,validation}.txt.gz, one document a line, for pre-training
model/                               configuration and tokenizer of a tiny T5, written by `vocabulary`
"""

from pathlib import Path

FOLDER = Path(__file__).parent
MODEL_FOLDER = FOLDER / "model"
