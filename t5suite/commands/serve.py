"""`t5suite serve`: a trained model behind HTTP.

t5suite serve --model_name_or_path runs/mini-sentiment-tiny

Everything that can be checked without the model is checked first, and without torch.
"""

import importlib.util
import os

from t5suite.base.errors import ConfigError
from t5suite.base.libraries import choose_libraries
from t5suite.commands.path_checks import check_model, check_model_revision
from t5suite.commands.predict import add_model_flags, add_text_flags
from t5suite.commands.shared import add_libraries_flag, check_at_least

API_KEY = "T5SUITE_API_KEY"
LIBRARIES = ("fastapi", "uvicorn", "prometheus_client")


def serve_flags(parser) -> None:
    """Flags of `t5suite serve`."""
    add = parser.add_argument
    add("--model_name_or_path", required=True, help="a run, checkpoint, adapter, model or export folder, or a hub name")
    add("--host", default="127.0.0.1", help="the address to listen at; beyond this machine it needs a key or --no_auth")
    add("--port", type=int, default=8000, help="the port to listen at; 0: any free one (default: 8000)")
    add(
        "--served_model_name",
        help="what clients call the model; default: --run_name, else the folder (TASK-FOLDER if it lacks the task), "
        "else the hub's name",
    )
    add("--allowed_hosts", help="further names of this machine that clients use, with commas")
    add("--no_auth", action="store_true", help=f"answer everybody who reaches --host, without {API_KEY}")
    add = parser.add_argument_group("limits").add_argument
    add("--max_rows", type=int, metavar="N", default=256, help="rows of one request, and of one batch (default: 256)")
    add(
        "--max_waiting_rows",
        type=int,
        metavar="N",
        default=1024,
        help="rows that may wait; more are refused with 429 (default: 1024)",
    )
    add(
        "--max_answer_tokens",
        type=int,
        default=1024,
        help="the longest answer that a client may ask for (default: 1024)",
    )
    add("--timeout", type=float, default=120.0, help="seconds for an answer (default: 120)")
    add_text_flags(parser)
    add_model_flags(parser)
    add_libraries_flag(parser)


def serve(arguments) -> None:
    """Answers clients until it is asked to stop."""
    _check_serve_flags(arguments)
    choose_libraries(allow_untested=arguments.allow_untested_libraries)
    check_model("--model_name_or_path", arguments.model_name_or_path)
    check_model_revision(arguments)
    from t5suite.inference.serving.running import serve_by_flags

    serve_by_flags(arguments)


def _check_serve_flags(arguments) -> None:
    """Checks that need no model.

    Raises:
      ConfigError: a flag out of its range; a server that others reach, without a key; a library that is missing.
    """
    missing_libraries = [name for name in LIBRARIES if not importlib.util.find_spec(name)]
    if missing_libraries:
        raise ConfigError(f"serve needs {', '.join(missing_libraries)}: python -m pip install 't5suite[serve]'")
    check_at_least(arguments, batch_size=1, max_source_length=1, max_rows=1, max_waiting_rows=1, max_answer_tokens=1)
    if not 0 <= arguments.port < 2**16:
        raise ConfigError(f"--port {arguments.port}: from 0 to 65535")
    if not arguments.timeout > 0:
        raise ConfigError(f"--timeout {arguments.timeout}: must be above 0")
    key = os.environ.get(API_KEY)
    if key == "":
        raise ConfigError(f"{API_KEY} is empty: set it to a long random text, or unset it")
    if key and arguments.no_auth:
        raise ConfigError(f"--no_auth: {API_KEY} is set; unset it, or drop --no_auth")
    from t5suite.inference.serving.gate import is_loopback

    if not is_loopback(arguments.host) and not key and not arguments.no_auth:
        raise ConfigError(
            f"--host {arguments.host}: others reach this server: set {API_KEY} (clients send it as a bearer token), or "
            "let everybody in with --no_auth"
        )
