"""`t5suite adapt`: a Gemma decoder becomes an encoder-decoder, to be pre-trained further.

t5suite adapt --model_name_or_path google/gemma-3-270m --output_dir adapted --check
"""

import contextlib
import sys
from pathlib import Path

from t5suite.base.files import check_new_folder
from t5suite.base.libraries import choose_libraries
from t5suite.commands.path_checks import check_model, check_model_revision, check_place
from t5suite.commands.shared import (
    add_json_flag,
    add_libraries_flag,
    check_at_least,
    check_dry_run,
    note,
    print_json,
    show_text,
)

# What the folder of an adapted model holds besides the model (`t5suite.export.adapting`).
RECORD = "adapt.json"


def adapt_flags(parser) -> None:
    """Flags of `t5suite adapt`."""
    add = parser.add_argument
    add("--model_name_or_path", required=True, help="a Gemma 3 or Gemma 2 decoder: a folder, a run, a hub model")
    add("--output_dir", help="a new folder, or an empty one")
    add("--dry_run", action="store_true", help="show where every tensor would come from; write nothing")
    add("--check", action="store_true", help="prove that the output, new or an earlier one, holds the decoder")
    add("--num_sentinels", type=int, default=100, help="<extra_id_0>, ... in the tokenizer (default: 100)")
    add("--tokenizer_name", help="the decoder's tokenizer, if it is not in its folder")
    add("--model_revision", help="branch, tag or commit of a model of the hub")
    add("--verbose", action="store_true", help="show what libraries say, and their progress bars")
    add_libraries_flag(parser)
    add_json_flag(parser)


def adapt(arguments) -> None:
    """Writes the model and prints its parameters by origin; a dry run prints every tensor's.

    With `--check` an output that an earlier call has written is compared, and stays as it is.

    Raises:
      ConfigError: flags that do not go together, a decoder that cannot be adapted, or a folder that is not empty.
    """
    check_at_least(arguments, num_sentinels=1)
    check_dry_run(arguments)
    choose_libraries(allow_untested=arguments.allow_untested_libraries)
    check_model("--model_name_or_path", arguments.model_name_or_path, of_run=True)
    check_model_revision(arguments)
    is_adapted = arguments.check and (Path(arguments.output_dir) / RECORD).is_file()
    if is_adapted:
        check_model("--output_dir", arguments.output_dir)
    elif not arguments.dry_run:
        check_new_folder(arguments.output_dir)
        check_place("--output_dir", arguments.output_dir)
    from t5suite.export.adapting import adapt_model, check_again, plan_adaptation
    from t5suite.training.process_setup import start_logging

    start_logging(is_main=True, disable_tqdm=not arguments.verbose, verbose=arguments.verbose)
    # Libraries may print when they are first used, but standard output is for the result only.
    with contextlib.redirect_stdout(sys.stderr):
        if arguments.dry_run:
            record = plan_adaptation(arguments)
        elif is_adapted:
            record = check_again(arguments)
        else:
            record = adapt_model(arguments)
    if arguments.json:
        print_json(record)
        return
    if arguments.dry_run:
        _print_origins(record)
    _print_adaptation(record)
    if not (arguments.dry_run or is_adapted):
        note(f"next: t5suite pre_train --model_name_or_path {arguments.output_dir} --objective ul2 --train_file TEXT")


def _print_origins(record: dict) -> None:
    """Every tensor with its shape and its origin."""
    rows = [(line["name"], "x".join(map(str, line["shape"])), line["origin"]) for line in record["tensors"]]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, shape, origin in rows:
        show_text(f"{name:<{widths[0]}}  {shape:>{widths[1]}}  {origin}")
    print()


def _print_adaptation(record: dict) -> None:
    """Parameters by origin, and what was compared."""
    sizes = record["parameters"]
    num_rows = record["new_rows"]
    show_text(f"{record['class']} ({record['paper']}) from {record['source']}")
    print(f"{sizes['copied']:>13,} parameters are the decoder's")
    print(f"{sizes['new']:>13,} are new: {num_rows} rows, for {record['num_sentinels']} sentinels and as spares")
    if sizes["untrained"]:
        print(f"{sizes['untrained']:>13,} are untrained and frozen: a vision tower, which text does not reach")
    for name, measured in record.get("check", {}).items():
        text = f"{measured:.2g}" if isinstance(measured, float) else str(measured)
        print(f"{'check':>13}  {name:<24} {text}")
