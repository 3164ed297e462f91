# %% [markdown]
# # Prompt tuning: a frozen model and a few trained vectors
#
# A tiny T5 learns to answer two questions about a review, all of its weights trained. Then it is frozen, and asked
# without a question: it cannot know which of the two is meant. 40 virtual tokens before the text are trained to tell it
# (arXiv:2104.08691): a task then costs a few kilobytes, and one model serves them all.

# %%
import os
import re
from pathlib import Path

from t5suite import FineTuner
from t5suite.data.rows.file_rows import table_rows

HERE = Path(__file__).parent if "__file__" in globals() else Path()
RUNS = Path(os.environ.get("T5SUITE_EXAMPLE_RUNS", "runs/examples"))
STEPS = int(os.environ.get("T5SUITE_EXAMPLE_STEPS", "500"))

# %%
reviews = [row["review"] for _, row in table_rows(HERE / "reviews.csv", "csv")]
rows = []
for i, review in enumerate(reviews):
    subject = re.search(r"\b[Tt]he (\w+)", review)[1]
    last = re.search(r"(\w+)\W*$", review)[1]
    rows.append([("What is it about?", subject), ("What is the last word?", last)][i % 2])
asked = [{"input": f"{review} {question}", "output": answer} for review, (question, answer) in zip(reviews, rows)]
bare = [{"input": review, "output": answer} for review, (question, answer) in zip(reviews, rows) if "last" in question]
print(*asked[:2], sep="\n")

# %% [markdown]
# The model is made here, in half a minute; with a network it may be any of the hub's instead.

# %%
SETTINGS = {"schedule": "linear", "eval_strategy": "steps", "train_sampling_strategy": "random", "quiet": True}
base = FineTuner(
    data={"train": asked[:2600], "validation": asked[2600:]},
    metrics="exact_match",
    optimizer="adafactor",
    learning_rate=1.5e-2,
    warmup_steps=0.05,
    max_steps=STEPS,
    eval_steps=STEPS // 2,
    output_dir=RUNS / "two_questions",
    **SETTINGS,
)
right = base.train()["tasks"]["data"]["exact_match"]
print(f"two questions: {right:.1f}% of the answers are right")

# %%
TASK = {
    "data": {"train": bare[:1300], "validation": bare[1300:]},
    "metrics": "exact_match",
    "dataset_name": "last_word",
}
untuned = FineTuner(base.args.output_dir, **TASK, output_dir=RUNS / "untuned").evaluate()
before = untuned["tasks"]["last_word"]["exact_match"]
print(f"without a question: {before:.1f}% give the last word")

# %%
tuner = FineTuner(
    base.args.output_dir,
    **TASK,
    **SETTINGS,
    adapter="prompt_tuning",
    adapter_args={"num_virtual_tokens": 40},
    optimizer="adamw",
    learning_rate=0.1,
    warmup_steps=0.1,
    max_steps=STEPS // 2,
    eval_steps=max(1, STEPS // 4),
    output_dir=RUNS / "prompt_tuning",
)
print(tuner)
after = tuner.train()["tasks"]["last_word"]["exact_match"]
print(f"with 40 virtual tokens: {after:.1f}%, {after - before:+.1f} points")

# %% [markdown]
# What is saved is the virtual tokens alone; the folder says which model they belong to.

# %%
folder = tuner.save(RUNS / "virtual_tokens")
size = (folder / "adapter_model.safetensors").stat().st_size
print(f"{folder.name}: {size:,} bytes")
NEW = ["The lamp was very pleasant.", "The parcel was horrible."]
for text, answer in zip(NEW, FineTuner(folder).predict(NEW), strict=True):
    print(f"{text} -> {answer}")
