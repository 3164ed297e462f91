"""`t5suite serve`, given its flags: loads the model, then answers until it is asked to stop.

On SIGTERM or Ctrl-C no further connections are taken, what was accepted is answered, and the process ends with 0.
"""

import argparse
import dataclasses
import logging
import os
import signal
import socket

import uvicorn

from t5suite.base.errors import ConfigError
from t5suite.inference.decoding_settings import DecodingSettings
from t5suite.inference.exported import ExportedPredictor, exported_kind
from t5suite.inference.jobs import Job
from t5suite.inference.running import make_job, predictor_by_flags, text_settings_of_model
from t5suite.inference.serving.app import app_of
from t5suite.inference.serving.gate import LOCAL_NAMES, is_loopback
from t5suite.inference.serving.limits import Limits
from t5suite.inference.serving.service import Service
from t5suite.inference.web import page_title
from t5suite.models.placement import check_placement_flags
from t5suite.reports.cards import input_template
from t5suite.tasks.task_card import task_card_after_file
from t5suite.training.process_setup import start_logging
from t5suite.training.processes.ranks import Ranks

logger = logging.getLogger(__name__)

API_KEY = "T5SUITE_API_KEY"
# What `t5suite predict` has flags for, and clients of a server say themselves.
ANSWERS_BY_DEFAULT = {
    **dataclasses.asdict(DecodingSettings()),
    "labels": None,
    "scores": False,
    "include_inputs": False,
    "output": None,
}


def serve_by_flags(arguments) -> None:
    """Serves until SIGTERM or Ctrl-C.

    Raises:
      ConfigError: no such model, flags that do not fit it, or a port that is taken.
    """
    start_logging(True, disable_tqdm=not arguments.verbose, verbose=arguments.verbose)
    with listening_socket(arguments.host, arguments.port) as listener:
        service = make_service(arguments)
        server = make_server(service, arguments)
        logger.info("%s answers at http://%s:%d", service.name, arguments.host, listener.getsockname()[1])
        end_normally_on_signals()
        server.run(sockets=[listener])
        service.queue.close()
        logger.info("%s has stopped: what was accepted is answered", service.name)


def end_normally_on_signals() -> None:
    """uvicorn ends on SIGTERM and Ctrl-C by its own handlers, then raises the signal anew for those before: these."""
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda number, frame: None)


def make_service(arguments) -> Service:
    """The model that the flags name, ready to answer.

    Raises:
      ConfigError: no such model, or flags that do not fit it.
    """
    check_placement_flags(arguments.device_map, arguments.max_memory, embedding_on_cpu=False)
    arguments = argparse.Namespace(**vars(arguments), **ANSWERS_BY_DEFAULT)
    card = task_card_after_file(arguments.model_name_or_path, arguments.model_revision, arguments.task_file)
    text = text_settings_of_model(arguments, card)
    job = make_job(arguments, text)
    predictor = predictor_by_flags(arguments, card, text, job, Ranks())
    _warn_of_free_text(job, predictor)
    _log_form_of_prompts(job, predictor)
    return Service(
        job,
        text,
        predictor,
        name=arguments.served_model_name or page_title(arguments.model_name_or_path),
        limits=limits_by_flags(arguments),
        exported_kind=exported_kind(arguments.model_name_or_path),
    )


def _warn_of_free_text(job: Job, predictor) -> None:
    """Logs that every request for free text will be refused: exported files of some models do not write it."""
    writes_free_text = predictor.writes and not job.writes_plainly
    if writes_free_text and isinstance(predictor, ExportedPredictor) and predictor.ignored_settings:
        logger.warning(
            "requests for free text are refused, only labels are chosen: %s; serve the original model",
            predictor.why_no_free_text,
        )


def _log_form_of_prompts(job: Job, predictor) -> None:
    """Logs what the prompts of OpenAI's clients look like; nothing where `--input_format` is put around them."""
    is_known = job.task is not None and job.input_format is None
    if is_known and predictor.writes and not job.language_columns:
        logger.info("/v1/completions: prompts are finished texts, such as %r", input_template(job.task.entry))


def make_server(service: Service, arguments) -> uvicorn.Server:
    """The server of a model; `run(sockets=[listener])` answers until SIGTERM, Ctrl-C or `should_exit`."""
    key = os.environ.get(API_KEY)
    if key is None:
        logger.info("no key is asked for: %s is not set", API_KEY)
    else:
        logger.info("every request but GET /health needs the key of %s: Authorization: Bearer KEY", API_KEY)
    config = uvicorn.Config(
        app_of(service, hosts_by_flags(arguments, key), key),
        ws="none",
        lifespan="off",
        log_level="warning",
        server_header=False,
        timeout_keep_alive=5,
    )
    return uvicorn.Server(config)


def limits_by_flags(arguments) -> Limits:
    """The limits that flags change."""
    return Limits(
        rows=arguments.max_rows,
        waiting_rows=arguments.max_waiting_rows,
        new_tokens=arguments.max_answer_tokens,
        seconds=arguments.timeout,
    )


def hosts_by_flags(arguments, key: str | None) -> set[str] | None:
    """The names under which the server is known; None: any, where every request has a key and no names are given."""
    names = {name.strip() for name in (arguments.allowed_hosts or "").split(",")} - {""}
    if key is not None and not is_loopback(arguments.host) and not names:
        return None
    return {*LOCAL_NAMES, arguments.host, *names}


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens at an address.

    Raises:
      ConfigError: the address is not this machine's, or the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise ConfigError(f"--host {host} --port {port}: {error.strerror or error}; give another") from None
