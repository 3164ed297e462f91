"""`t5suite predict --web`: a local page, made with Gradio, to type a row and see its answer.

>>> answer = answer_function(job, predictor)
>>> answer("It rains.", "It is wet.")             # one text a column of the task
('entailment', {'entailment': 0.93, 'not_entailment': 0.07}, '')
>>> with local_socket() as listener:
...     server_of(page_of(answer, ["sentence1", "sentence2"], "rte"), listener).run(sockets=[listener])

Only the loopback address is served and nothing else is contacted: no analytics, no version check, no remote fonts. What
the page does not need is not served (`web_guard.Guard`): no upload, no files, no schema, no monitoring.
"""

import contextlib
import dataclasses
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError
from t5suite.inference.web_guard import Guard
from t5suite.runs.directory import MANIFEST, read_manifest
from t5suite.tasks.cut_marks import CUT_TOKENS
from t5suite.tasks.task_card import read_task_card

LOOPBACK = "127.0.0.1"
PORTS = range(7860, 7960)
MOST_LABELS = 10
LONGEST_TEXT = 100_000  # characters; about 20,000 tokens of English
MOST_WAITING = 16  # requests that wait for an answer

# What Gradio's page asks for: recorded in a browser, and what its client may ask for when a connection was lost.
_PAGE = r"/|/config|/theme\.css|/favicon\.ico|/manifest\.json|/(assets|static|svelte)/(?!.*\.\.)[\w./-]+"
_QUEUE = r"/gradio_api/(queue/data|heartbeat/\w+|startup-events)"
ROUTES = {
    "GET": re.compile(f"{_PAGE}|{_QUEUE}"),
    "HEAD": re.compile("/"),
    "POST": re.compile(r"/gradio_api/(queue/join|cancel|reset)"),
}


def answer_function(job, predictor) -> Callable:
    """Texts, one per column -> `(answer, {label: probability}, notes)`; without labels `(answer, None, notes)`.

    From a model that writes, the answer is its text; the probabilities are those of the task's labels.
    """
    label_job = None
    if predictor.writes and job.labels is None and job.reads_task and job.task.has_candidates:
        label_job = dataclasses.replace(job, labels="task")

    def answer(*texts):
        row = job.typed_row(dict(zip(job.columns, texts, strict=True)))
        (line,) = job.lines([job.request(row)], predictor)
        if label_job is not None:
            # Candidates may be made of columns that are not typed (ReCoRD's entities).
            with contextlib.suppress(DataError):
                (label_line,) = label_job.lines([label_job.request(row)], predictor)
                line = label_line | line
        return line["prediction"], line.get("probabilities"), notes_of(line)

    return answer


def notes_of(line: dict) -> str:
    """What an answer's line says of cuts and sense, a line each.

    >>> notes_of({"row": 0, "prediction": "rug rug", "cut_tokens": 2940})
    '2,940 tokens of the text were not read'
    """
    notes = []
    if CUT_TOKENS in line:
        notes.append(f"{line[CUT_TOKENS]:,} tokens of the text were not read")
    if line.get("truncated"):
        notes.append("the answer is cut off")
    if line.get("invalid"):
        notes.append("the answer is no label or number of the task")
    return "\n".join(notes)


def page_of(answer: Callable, columns: list[str], title: str):
    """The page, as a Gradio interface."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before the import, which otherwise sends a report
    os.environ["GRADIO_RUN_HISTORY"] = "False"  # Gradio 6.20 and later store what was typed in the browser
    import gradio

    def checked_answer(*texts):
        try:
            check_texts(texts, columns)
            return answer(*texts)
        except (ConfigError, DataError) as error:
            raise gradio.Error(str(error), print_exception=False) from None

    page = gradio.Interface(
        checked_answer,
        [gradio.Textbox(label=column, lines=2) for column in columns],
        [
            gradio.Textbox(label="answer"),
            gradio.Label(label="label probabilities", num_top_classes=MOST_LABELS),
            gradio.Textbox(label="notes"),
        ],
        title=title,
        analytics_enabled=False,
        flagging_mode="never",
        deep_link=False,
        api_visibility="private",
    )
    return page.queue(max_size=MOST_WAITING, api_open=False)


def check_texts(texts, columns: list[str]) -> None:
    """Refuses what is not a text, or too long a one.

    Raises:
      DataError: which column, and how long it is.
    """
    for column, text in zip(columns, texts, strict=True):
        if not isinstance(text, str):
            raise DataError(f"{column}: not a text")
        if len(text) > LONGEST_TEXT:
            raise DataError(f"{column}: {len(text):,} characters; the page takes {LONGEST_TEXT:,} at most")


def local_socket() -> socket.socket:
    """A socket that listens at the first free port from 7860 on."""
    for port in PORTS:
        with contextlib.suppress(OSError):
            return socket.create_server((LOOPBACK, port))
    raise ConfigError(f"--web: none of the ports {PORTS[0]} to {PORTS[-1]} of {LOOPBACK} is free")


def server_of(page, listener: socket.socket):
    """A server of the page at a socket; `run(sockets=[listener])` serves until Ctrl-C or `should_exit`."""
    import gradio
    import uvicorn
    from fastapi import FastAPI

    theme = gradio.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"])
    port = listener.getsockname()[1]
    app = gradio.mount_gradio_app(
        FastAPI(openapi_url=None),  # without a schema there are no pages about it
        page,
        path="/",
        server_name=LOOPBACK,
        server_port=port,
        theme=theme,
        footer_links=[],
        show_error=False,  # an error's text may have paths; it is printed where the server runs
        ssr_mode=False,
        enable_monitoring=False,
        mcp_server=False,
    )
    # Without a limit, the end waits for the pages that are still open.
    return uvicorn.Server(
        uvicorn.Config(Guard(app, port, ROUTES), ws="none", log_level="warning", timeout_graceful_shutdown=1)
    )


def page_title(model_name: str) -> str:
    """The name of a model; of a folder only the last part, because a page should not tell where files are.

    A run's `--run_name` comes first; a folder that does not name the model's one task (a sweep's `0002`) follows it.

    >>> page_title("/home/me/runs/rte/"), page_title("sweeps/grid/trials/0002"), page_title("google/t5-v1_1-small")
    ('rte', 'rte-0002', 'google/t5-v1_1-small')
    """
    if not os.path.isdir(model_name):
        return Path(model_name).name if os.path.exists(model_name) else model_name
    if (Path(model_name) / MANIFEST).is_file():
        run_name = read_manifest(model_name).get("settings", {}).get("run_name")
        if run_name:
            return run_name
    folder = Path(model_name).resolve().name
    card = read_task_card(model_name)
    tasks = list(card.tasks) if card else []
    if len(tasks) != 1 or tasks[0] in folder:
        return folder
    return f"{tasks[0]}-{folder}"


def serve_page(job, predictor, model_name: str) -> None:
    """Shows the page until Ctrl-C."""
    with local_socket() as listener:
        page = page_of(answer_function(job, predictor), job.columns, page_title(model_name))
        server = server_of(page, listener)
        print(f"http://{LOOPBACK}:{listener.getsockname()[1]}/ serves the page; Ctrl-C stops it", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listener])
