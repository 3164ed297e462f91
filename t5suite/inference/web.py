"""`t5suite predict --web`: a local page, made with Gradio, to type a row and see its answer.

>>> answer = answer_function(job, predictor)
>>> answer("It rains.", "It is wet.")             # one text a column of the task
('entailment', {'entailment': 0.93, 'not_entailment': 0.07})
>>> launched(page_of(answer, ["sentence1", "sentence2"], "runs/rte"))
'http://127.0.0.1:7860/'

Only the loopback address is served and nothing else is contacted: no analytics, no version check, no remote fonts.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable

from t5suite.base.errors import DataError

LOOPBACK = "127.0.0.1"
MOST_LABELS = 10


def answer_function(job, predictor) -> Callable:
    """Texts, one per column -> `(answer, {label: probability})`; without labels `(answer, None)`.

    From a model that writes, the answer is its text; the probabilities are those of the task's labels.
    """
    jobs = [job]
    if predictor.writes and job.labels is None and not job.raw and job.task is not None and job.task.has_candidates:
        jobs.append(dataclasses.replace(job, labels="task"))

    def answer(*texts):
        row, line = job.typed(0, dict(zip(job.columns, texts, strict=True))), {}
        for number, one in enumerate(jobs):
            # Candidates may be made of columns that are not typed (ReCoRD's entities).
            with contextlib.suppress(*((DataError,) if number else ())):
                line = one.lines([one.request(row)], predictor)[0] | line
        return line["prediction"], line.get("probabilities")

    return answer


def page_of(answer: Callable, columns: list[str], title: str):
    """The page, as a Gradio interface."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before the import, which otherwise sends a report
    import gradio

    def shown(*texts):
        try:
            return answer(*texts)
        except DataError as error:
            raise gradio.Error(str(error), print_exception=False) from None

    return gradio.Interface(
        shown, [gradio.Textbox(label=column, lines=2) for column in columns],
        [gradio.Textbox(label="answer"), gradio.Label(label="label probabilities", num_top_classes=MOST_LABELS)],
        title=title, analytics_enabled=False, flagging_mode="never", deep_link=False, api_visibility="private",
    )  # fmt: skip


def launched(page) -> str:
    """Starts serving the page; its address."""
    import gradio

    theme = gradio.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"])
    options = {"share": False, "quiet": True, "footer_links": [], "ssr_mode": False, "theme": theme}
    return page.launch(server_name=LOOPBACK, prevent_thread_lock=True, **options)[1]


def serve(job, predictor, title: str) -> None:
    """Shows the page until Ctrl-C."""
    page = page_of(answer_function(job, predictor), job.columns, title)
    print(f"{launched(page)} serves the page; Ctrl-C stops it", flush=True)
    page.block_thread()
