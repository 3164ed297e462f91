# %% [markdown]
# # Prompt tuning: a frozen model and a few trained vectors
#
# A tiny T5 is pre-trained on the bundled text, a minute on two cores. Then it stays as it is: before each input
# stand 20 virtual tokens, and only these are trained (arXiv:2104.08691). The answers are words that the model knows
# from its text.

# %%
import os
from pathlib import Path

import pre_train_t5
from t5suite import FineTuner
from t5suite.data.formats.tables import table_rows

HERE = Path(__file__).parent if "__file__" in globals() else Path()
RUNS = Path(os.environ.get("T5SUITE_EXAMPLE_RUNS", "runs/examples"))
STEPS = int(os.environ.get("T5SUITE_EXAMPLE_STEPS", "500"))

# %% [markdown]
# A prefix language model goes on with what it reads, in words of its own. With a model of the hub this step falls away:
# `CHECKPOINT = "google/t5-base-lm-adapt"`.

# %%
CHECKPOINT = RUNS / "prefix_lm"
pre_trained = pre_train_t5.main(
    ["mini_pre_train.yaml", "--objective=prefix_lm", f"--max_steps={STEPS}", "--eval_strategy=no", "--save_strategy=no",
     "--disable_tqdm=True", f"--output_dir={CHECKPOINT}"]
)  # fmt: skip
print(f"pre-trained: {pre_trained['tasks']['pre_train']['nll']:.2f} nats a token")

# %% [markdown]
# The task is put into words that the model can go on with: "... On the whole, the hotel was" -> "delightful".

# %%
WORDS = {"negative": "terrible", "positive": "delightful"}
rows = [{"review": row["review"], "word": WORDS[row["verdict"]]} for _, row in table_rows(HERE / "reviews.csv", "csv")]
TASK = {
    "data": {"train": rows[:2600], "validation": rows[2600:]},
    "text_column": "review",
    "target_column": "word",
    "labels": list(WORDS.values()),
    "input_format": ["__input__ On the whole, the hotel was"],
    "eval_method": "score",
    "dataset_name": "reviews",
    "quiet": True,
}
untuned = FineTuner(CHECKPOINT, **TASK, output_dir=RUNS / "untuned").evaluate()
before = untuned["tasks"]["reviews"]["accuracy"]
print(f"as it is: accuracy {before:.1f}")

# %%
tuner = FineTuner(
    CHECKPOINT,
    **TASK,
    adapter="prompt_tuning",
    num_virtual_tokens=20,
    optimizer="adamw",
    learning_rate=0.5,
    schedule="linear",
    warmup_steps=0.1,
    max_steps=STEPS,
    eval_strategy="steps",
    eval_steps=max(1, STEPS // 4),
    train_sampling_strategy="random",
    output_dir=RUNS / "prompt_tuning",
)
print(tuner)
after = tuner.train()["tasks"]["reviews"]["accuracy"]
print(f"with 20 virtual tokens: accuracy {after:.1f}, {after - before:+.1f} points")

# %% [markdown]
# What is saved is the virtual tokens alone; the folder says which model they belong to.

# %%
folder = tuner.save(RUNS / "virtual_tokens")
size = (folder / "adapter_model.safetensors").stat().st_size
print(f"{folder.name}: {size:,} bytes")
NEW = ["The garden was very pleasant.", "The soup was horrible."]
for text, shares in zip(NEW, FineTuner(folder).predict_labels(NEW), strict=True):
    print(f"{text} -> {max(shares, key=shares.get)} ({100 * max(shares.values()):.0f}%)")
