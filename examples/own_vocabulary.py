# %% [markdown]
# # A vocabulary of your own: molecules, proteins, or any sequence that is no text
#
# A regular expression cuts SELFIES-like strings into symbols, which become tokens. A tiny T5 is pre-trained on
# such strings by span corruption and then learns a class: does the molecule hold an acid, an amine, or neither?

# %%
import os
import random
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import pre_train_t5
from t5suite import FineTuner

RUNS = Path(os.environ.get("T5SUITE_EXAMPLE_RUNS", "runs/examples"))
STEPS = int(os.environ.get("T5SUITE_EXAMPLE_STEPS", "400"))
GROUPS = {"acid": "[C][=Branch1][C][=O][O]", "amine": "[N][Branch1][C][C][C]", "neither": ""}
PARTS = ["[C]", "[C][C]", "[C][=C]", "[C][Branch1][C][O]", "[C][=O]", "[N][=C]", "[C][=C][C][Ring1][C]", "[S]"]

draw, molecules = random.Random(0), []
for _ in range(6000):  # chains of parts that hold a group at some place
    kind, parts = draw.choice(list(GROUPS)), draw.choices(PARTS, k=draw.randint(5, 12))
    parts.insert(draw.randint(0, len(parts)), GROUPS[kind])
    molecules.append({"input": "".join(parts), "output": kind})
print(molecules[0])

# %% [markdown]
# Special tokens come first, as T5's; sentinels are found by their names, and the words of the answers are tokens, too.
# For amino acids the expression is `[A-Z]|[a-z]+`, a capital a token.

# %%
RUNS.mkdir(parents=True, exist_ok=True)
symbol_list = sorted({symbol for row in molecules for symbol in row["input"].replace("]", "] ").split()})
words = ["<pad>", "</s>", "<unk>", *symbol_list, *GROUPS]
tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\[[^\]]*\]|\w+"), "removed", invert=True)
tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
tokenizer.decoder = decoders.Fuse()
sentinels = [f"<extra_id_{i}>" for i in range(100)]
names = dict(pad_token="<pad>", eos_token="</s>", unk_token="<unk>", extra_special_tokens=sentinels)
PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(RUNS / "symbols")
print(f"{len(words)} tokens and {len(sentinels)} sentinels")

# %%
(RUNS / "molecules.txt").write_text("".join(row["input"] + "\n" for row in molecules[:3000]))
flags = "--config_name=mini --config_overrides=d_model=64,d_ff=128,num_layers=2 --inputs_length=64 --learning_rate=6e-3"
flags += f" --per_device_train_batch_size=32 --eval_strategy=no --save_strategy=no --max_steps={STEPS // 2}"
flags += " --document_separator=eos --disable_tqdm=True"
folders = {"tokenizer_name": "symbols", "train_file": "molecules.txt", "output_dir": "molecules"}
words = [f"--{flag}={RUNS / name}" for flag, name in folders.items()]
scores = pre_train_t5.main([*flags.split(), *words])["tasks"]["pre_train"]
print(f"pre-trained: {scores['nll']:.2f} nats a token, {scores['unigram_nll']:.2f} without a model")

# %% [markdown]
# Molecules that pre-training has not seen: 2,700 to learn from, 300 to score.

# %%
schedule = dict(learning_rate=1.5e-2, schedule="linear", warmup_steps=0.1, max_steps=STEPS)
rows = {"train": molecules[3000:5700], "validation": molecules[5700:]}
tuner = FineTuner(
    RUNS / "molecules", rows, labels=list(GROUPS), optimizer="adafactor", per_device_train_batch_size=32,
    output_dir=RUNS / "acids", quiet=True, **schedule,
)  # fmt: skip
(scores,) = tuner.train()["tasks"].values()
print(f"held-out molecules: accuracy {scores['accuracy']:.1f}")
print(*tuner.predict([f"[C][C]{group}[C]" for group in GROUPS.values()]))
