"""What the bundled benchmark `mini` is made by: three small tasks, a text and a tiny model, for a lab with no network.

>>> (FOLDER / "sentiment" / "train.jsonl.gz").exists()
True

`FOLDER` has the files that the package ships and `t5suite.data` reads:

sentiment/ entailment/ similarity/   {train,validation,test}.jsonl.gz: the rows of `sentiment_rows` and its like
text/                                {train,validation}.txt.gz, one document a line, for pre-training: `documents`
model/                               configuration and tokenizer of a tiny T5, written by `vocabulary`

`grammar` writes the first two from a seed (`--write`) and checks them (`--check`).
"""

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "t5suite" / "data" / "mini"
MODEL_FOLDER = FOLDER / "model"
