# /// script
# requires-python = ">=3.11"
# dependencies = ["t5suite"]
# ///
r"""Fine-tunes a model on the rows of a CSV file, in an environment that uv makes from the lines above.

    uv run examples/fine_tune.py --csv examples/reviews.csv --text_column review --target_column verdict \
        --model_name_or_path google/t5-v1_1-small

On a machine of Hugging Face, which ends with the model on the hub:

    hf jobs uv run --flavor t4-small --secrets HF_TOKEN --volume ./data:/data examples/fine_tune.py \
        --csv /data/reviews.csv --text_column review --target_column verdict \
        --model_name_or_path google/t5-v1_1-small --push_to_hub --hub_model_id USER/NAME

All other flags are those of `t5suite fine_tune`. Before a release is on PyPI, `dependencies` needs the checkout's
address: "t5suite @ git+https://...".
"""

import argparse
import sys
from pathlib import Path


def command_of(words: list[str]) -> list[str]:
    """The words of the `t5suite fine_tune` that this script runs.

    >>> command_of(["--csv", "examples/reviews.csv", "--model_name_or_path", "t5-small", "--max_steps", "100"])[:5]
    ['t5suite', 'fine_tune', '--data_format', 'csv', '--train_file']
    """
    parser = argparse.ArgumentParser(
        description="All other flags are those of `t5suite fine_tune`.", allow_abbrev=False
    )
    parser.add_argument("--csv", required=True, help="the rows; --text_column and --target_column name what is read")
    parser.add_argument("--model_name_or_path", required=True, help="such as google/t5-v1_1-small")
    arguments, others = parser.parse_known_args(words)
    if not Path(arguments.csv).is_file():
        parser.error(f"--csv {arguments.csv}: no such file")
    rows = ["--data_format", "csv", "--train_file", arguments.csv]
    return ["t5suite", "fine_tune", *rows, "--model_name_or_path", arguments.model_name_or_path, *others]


if __name__ == "__main__":
    sys.argv = command_of(sys.argv[1:])
    from t5suite.cli import run

    run()
