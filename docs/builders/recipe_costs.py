"""What a step of each shipped recipe takes, by `t5suite summary`: `docs/builders/recipe_costs.json`.

>>> summary_words(SETTINGS_OF["t5_v1_1_base_adafactor.yaml"])[:2]
['--model_name_or_path=t5-v1_1-base', '--batch_size=128']

python -m docs.builders.recipe_costs      # some minutes of one processor; a test compares the words with the recipes
"""

import json
import subprocess
import sys
from pathlib import Path

import yaml

from t5suite.base.files import shipped_folder
from t5suite.base.script_flags import flags_of
from t5suite.models.presets import PRESETS

FILE = Path(__file__).with_name("recipe_costs.json")
# Span corruption of 568 tokens makes 512 inputs and 114 targets (arXiv:1910.10683, section 3.1.4).
TARGETS_OF_INPUTS = {512: 114}
SETTINGS_OF = {
    path.name: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in sorted(shipped_folder("recipes").glob("*.yaml"))
}


def summary_words(settings: dict) -> list[str] | None:
    """The flags of `t5suite summary` for a recipe's step; None where the model's shapes are known to the hub alone, or
    the lengths of the targets differ."""
    name = settings.get("config_name") or settings.get("model_name_or_path") or ""
    preset = name.removeprefix("google/")
    lengths = step_lengths(settings)
    if preset not in PRESETS or "config_overrides" in settings or lengths is None:
        return None
    words = [
        f"--model_name_or_path={preset}",
        f"--batch_size={settings['per_device_train_batch_size']}",
        f"--source_length={lengths[0]}",
        f"--target_length={lengths[1]}",
        f"--gradient_accumulation_steps={settings.get('gradient_accumulation_steps', 1)}",
        f"--optimizer={settings['optimizer']}",
    ]
    if settings.get("bf16"):
        words.append("--bf16")
    return words


def step_lengths(settings: dict) -> tuple[int, int] | None:
    """Tokens of an input and of a target; None where a mixture of objectives has several."""
    if "inputs_length" not in settings:
        defaults = flags_of("fine_tune_t5")
        names = ("max_source_length", "max_target_length")
        source, target = (settings.get(name, defaults[name]["default"]) for name in names)
        return source, target
    inputs_length = settings["inputs_length"]
    targets_length = TARGETS_OF_INPUTS.get(inputs_length)
    if "objective" in settings or targets_length is None:
        return None
    return inputs_length, targets_length


def main() -> None:
    """Writes the file, a recipe at a time; equal steps are summed up once."""
    costs: dict[str, dict] = {}
    tables: dict[tuple, dict] = {}
    for name, settings in SETTINGS_OF.items():
        words = summary_words(settings)
        if words is None:
            continue
        if tuple(words) not in tables:
            tables[tuple(words)] = measured(words)
        costs[name] = {"words": words, **tables[tuple(words)]}
    FILE.write_text(json.dumps(costs, indent=1) + "\n", encoding="utf-8")


def measured(words: list[str]) -> dict[str, int]:
    """Parameters, and bytes of a device at the worst moment of a step."""
    command = [sys.executable, "-c", "from t5suite.cli import main; main()", "summary", "--json", *words]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    table = json.loads(shown)
    return {"parameters": table["parameters"], "peak": table["memory"]["peak"]}


if __name__ == "__main__":
    main()
