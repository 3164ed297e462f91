"""Commands that name neither a model nor data: they train the bundled toy, and their first line says so.

>>> with_recipe("fine_tune_t5", ["--use_cpu"])
['mini.yaml', '--use_cpu']
>>> bundled_note("fine_tune_t5", ["--learning_rate", "1e-3"], {"learning_rate": "1e-3"})
'no model, no data: the bundled toy model learns the bundled task mini/sentiment; a model of your choice: ...'
"""

from collections.abc import Mapping

from t5suite.runs.choosing import DATA_SETTINGS, MODEL_SETTINGS

# The recipe of a fine-tuning for which no flag says what is trained and how.
RECIPES = {"fine_tune_t5": "mini.yaml"}
# Flags that only say where a run executes, and what it shows.
EXECUTION_FLAGS = ("--use_cpu", "--dry_run", "--disable_tqdm", "--log_level", "--local_rank", "--_wandb")
LEARNS = {
    "fine_tune_t5": "the bundled toy model learns the bundled task mini/sentiment",
    "pre_train_t5": "the bundled toy model learns the bundled text",
}
OF_YOUR_CHOICE = {
    "fine_tune_t5": "a model of your choice: --model_name_or_path google/t5-v1_1-small; all flags: --help",
    "pre_train_t5": (
        "text and model of your choice: --train_file articles.txt --config_name t5-v1_1-small --tokenizer_name "
        "t5-small; all flags: --help"
    ),
}
# With one of these, other rows are read, or nothing is learnt.
OTHER_WORK = ("streaming", "model_class", "init_checkpoint", "eval_only", "predict_only", "eval_checkpoints")


def with_recipe(script: str, words: list[str]) -> list[str]:
    """The command line with the bundled recipe before it, if it says at most where a run executes and what it shows."""
    recipe = RECIPES.get(script)
    return [recipe, *words] if recipe and says_nothing_of_the_run(words) else words


def says_nothing_of_the_run(words: list[str]) -> bool:
    """Whether a command line has no flags but those of EXECUTION_FLAGS."""
    for place, word in enumerate(words):
        is_value = place > 0 and words[place - 1].startswith("--") and "=" not in words[place - 1]
        flag = f"--{word[2:].partition('=')[0].replace('-', '_')}"
        if word.startswith("--") and flag not in EXECUTION_FLAGS:
            return False
        if not word.startswith("--") and not is_value:  # a file of flags
            return False
    return True


def bundled_note(script: str, words: list[str], values: Mapping[str, object]) -> str | None:
    """That the bundled toy is trained, and how to train something else; None where flags name a model or data.

    Args:
      words: the command line.
      values: `{flag: value}` of it and of its files.
    """
    is_as_bundled = says_nothing_of_the_run(words)
    names_something = not values.keys().isdisjoint((*DATA_SETTINGS, *MODEL_SETTINGS, *OTHER_WORK))
    if names_something and not is_as_bundled:
        return None
    named = "no model, no data" if words else "no flags"
    duration = ", in a minute or two" if is_as_bundled else ""
    return f"{named}: {LEARNS[script]}{duration}; {OF_YOUR_CHOICE[script]}"
