"""The rows and texts of requests -> the answers of the model, in the form of `t5suite predict` or of OpenAI's API."""

import argparse
import asyncio
import dataclasses
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable

from t5suite.base.errors import DataError
from t5suite.inference.decoding_settings import DecodingSettings
from t5suite.inference.exported import unsupported_settings
from t5suite.inference.jobs import Job, RowRequest, line_of_answers
from t5suite.inference.predictor import cut_labels, prompts_of
from t5suite.inference.rows import Row
from t5suite.inference.serving.bodies import CompletionBody, PredictBody
from t5suite.inference.serving.limits import ClientLeft, Limits
from t5suite.inference.serving.model_queue import ModelQueue, QueuedRows
from t5suite.inference.serving.serving_metrics import ServingMetrics
from t5suite.inference.settings import JSON, InputSettings, candidate_labels, decoding_by_flags


class Service:
    """One model that answers requests.

    Args:
      job: how rows are answered where a request says nothing else.
      text: the texts that the model reads.
      exported_kind: of the model's files (`exported.exported_kind`); None for a PyTorch model.
      name: what clients call the model; no path.
    """

    def __init__(
        self, job: Job, text: InputSettings, predictor, *, name: str, limits: Limits, exported_kind: str | None
    ):
        self.job = job
        self.text = text
        self.predictor = predictor
        self.name = name
        self.limits = limits
        self.exported_kind = exported_kind
        self.started = int(time.time())
        self.metrics = ServingMetrics(lambda: self.queue.waiting_rows)
        self.queue = ModelQueue(
            self._answer,
            max_rows_at_once=limits.rows,
            max_waiting_rows=limits.waiting_rows,
            observe_batch=self.metrics.observe_batch,
        )

    def _answer(self, job: Job, requests: list[RowRequest], on_text: Callable[[str], None] | None) -> list[dict]:
        """The lines of a batch; called by the queue's thread alone."""
        if isinstance(job.labels, list):
            self._check_whole_labels(job.labels)
        if on_text is None:
            return job.lines(requests, self.predictor)
        if not hasattr(self.predictor, "write_in_pieces"):  # exported files
            lines = job.lines(requests, self.predictor)
            on_text(lines[0]["prediction"])
            return lines
        (request,) = requests
        return [self._line_in_pieces(job, request, on_text)]

    def _check_whole_labels(self, labels: list[str]) -> None:
        """Raises DataError for a label that would be cut, which no client sees."""
        encoding = self.predictor.encoding
        too_long = cut_labels(encoding, labels)
        if too_long:
            longest = encoding.lengths.target
            raise DataError(f"labels: {too_long[0]!r} has more than the {longest} tokens of an answer; shorten it")

    def _line_in_pieces(self, job: Job, request: RowRequest, on_text: Callable[[str], None]) -> dict:
        """The line of one row; `on_text` gets its answer piece by piece."""
        languages = None if request.languages is None else [request.languages]
        (prompt,) = prompts_of(self.predictor.encoding, [request.text], languages)
        answer = self.predictor.write_in_pieces(
            prompt,
            job.decoding,
            job.max_new_tokens,
            on_text,
            index=request.index,
            plain=job.writes_plainly,
            languages=request.languages,
        )
        line = {"row": request.index, **line_of_answers([answer], scores=False, token_counts=True)}
        return {**line, "prompt_tokens": len(prompt)}

    @property
    def _default_new_tokens(self) -> int:
        """The longest answer to a request that does not say it: what the task needs, where the server allows it."""
        return min(self.job.max_new_tokens, self.limits.new_tokens)

    def job_of_rows(self, body: PredictBody) -> Job:
        """How the rows of `POST /predict` are answered.

        Raises:
          DataError, ConfigError: a setting that is out of its range, has no effect, or is too large for this server.
        """
        self.limits.check_rows(len(body.rows))
        settings = body.model_dump()
        flags = argparse.Namespace(**settings)
        decoding = decoding_by_flags(flags, self.text)
        max_new_tokens = decoding.max_new_tokens or self._default_new_tokens
        self._check_decoding(decoding, max_new_tokens, body.scores)
        return dataclasses.replace(
            self.job,
            raw=body.raw or self.job.raw,
            decoding=decoding,
            max_new_tokens=max_new_tokens,
            labels=candidate_labels(body.labels, self.text, warns=False, setting=JSON),
            scores=body.scores,
            inputs=body.include_inputs,
        )

    def job_of_completion(self, body: CompletionBody) -> Job:
        """How the texts of `POST /v1/completions` are answered.

        Raises:
          DataError, ConfigError: as `job_of_rows`; several drawn answers without a temperature; a model without text or
            with languages in rows' columns.
        """
        self.limits.check_rows(len(body.prompts))
        if not self.predictor.writes:
            raise DataError("this model chooses labels and writes no text: POST /predict")
        if self.job.language_columns:
            columns = " and ".join(self.job.language_columns)
            raise DataError(f"this model reads a row's language from column {columns}: POST /predict with such rows")
        if body.model not in (None, self.name):
            raise DataError(f"model {body.model:.100}: this server has {self.name}")
        max_new_tokens = self._default_new_tokens if body.max_tokens is None else body.max_tokens
        self._check_completion(body, max_new_tokens)
        is_drawn = body.temperature > 0
        decoding = DecodingSettings(
            max_new_tokens=body.max_tokens,
            do_sample=is_drawn,
            temperature=body.temperature or None,
            top_p=body.top_p if is_drawn else None,
            seed=body.seed,
            num_return_sequences=body.n,
        )
        if body.stream_options is not None and not body.stream:
            raise DataError("stream_options: no effect without stream")
        if body.stream and (len(body.prompts) > 1 or body.n > 1):
            raise DataError("stream: one prompt and one answer at a time")
        decoding.check()
        self._check_decoding(decoding, max_new_tokens, scores=False)
        return dataclasses.replace(
            self.job,
            raw=True,
            decoding=decoding,
            max_new_tokens=max_new_tokens,
            labels=None,
            scores=False,
            inputs=False,
            token_counts=True,
            check=self._check_whole,
        )

    def _check_completion(self, body: CompletionBody, max_new_tokens: int) -> None:
        """Checks the settings that `DecodingSettings` has by other names.

        Raises:
          DataError: the first that is out of its range, or has no effect.
        """
        if not 1 <= max_new_tokens <= self.limits.new_tokens:
            raise DataError(f"max_tokens {max_new_tokens}: from 1 to {self.limits.new_tokens}")
        if not 1 <= body.n <= self.limits.beams:
            raise DataError(f"n {body.n}: from 1 to {self.limits.beams}")
        if body.temperature < 0:
            raise DataError(f"temperature {body.temperature:g}: must be at least 0")
        if body.temperature > 0 and self.exported_kind is not None:
            kind = self.exported_kind
            raise DataError(f"temperature {body.temperature:g}: this server's model is {kind}, which cannot draw")
        if body.temperature == 0 and body.n > 1:
            raise DataError(f"n {body.n}: several answers need a temperature above 0")
        # 1 changes nothing: OpenAI's default, which clients send with every temperature.
        if body.temperature == 0 and body.top_p not in (None, 1):
            raise DataError(f"top_p {body.top_p:g}: no effect without a temperature above 0")

    def _check_whole(self, request: RowRequest) -> None:
        """Raises DataError for a text that is longer than what the model reads."""
        encoding = self.predictor.encoding
        cut_count = encoding.num_cut(request.segments, request.languages)
        if cut_count:
            longest = encoding.lengths.source
            raise DataError(
                f"{longest + cut_count} tokens, {cut_count} too many: this model reads {longest} at most; shorten it"
            )

    def _check_decoding(self, decoding: DecodingSettings, max_new_tokens: int, scores: bool) -> None:
        self.limits.check_decoding(decoding, max_new_tokens)
        if self.exported_kind is None:
            return
        for name in unsupported_settings(self.exported_kind):
            default = getattr(DecodingSettings, name, False)
            setting = scores if name == "scores" else getattr(decoding, name, default)
            if setting != default:
                raise DataError(f"{name}: this server's model is {self.exported_kind}, which cannot")

    async def lines(self, job: Job, rows: list[Row], disconnected: Callable) -> list[dict]:
        """The answers to rows, as `t5suite predict` has them.

        Args:
          disconnected: a coroutine function that returns when the client has left.

        Raises:
          Busy: too many rows wait; ClientLeft; TimeoutError; DataError, ConfigError: a row cannot be answered.
        """
        queued = QueuedRows(job, rows)
        self.queue.submit(queued)
        return await self._result(queued, disconnected)

    async def _result(self, queued: QueuedRows, disconnected: Callable) -> list[dict]:
        answer = asyncio.wrap_future(queued.future)
        client = asyncio.ensure_future(disconnected())
        try:
            await asyncio.wait((answer, client), timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            if client.done():
                raise ClientLeft
            raise TimeoutError(f"no answer within {self.limits.seconds:g} seconds")
        finally:
            client.cancel()
            if not answer.done():
                self.queue.withdraw(queued)

    def completion(self, lines: list[dict]) -> dict:
        """Lines of answers as OpenAI's object of a completion."""
        choices = []
        for line in lines:
            for answer in line.get("predictions", [{**line, "text": line["prediction"]}]):
                choices.append(_choice(answer["text"], len(choices), _finish_reason(answer)))
        return {**self._head_of_completion(), "choices": choices, "usage": _usage(lines)}

    def _head_of_completion(self) -> dict:
        return {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.name,
        }

    async def pieces(self, job: Job, prompt: str) -> AsyncIterator[str | dict]:
        """One answer in pieces of text, as the model writes them; at last its line.

        Raises:
          Busy: too many rows wait; TimeoutError; DataError, ConfigError: the text cannot be answered.
        """
        pieces: asyncio.Queue = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def on_text(piece: str) -> None:
            if queued.withdrawn.is_set():
                raise ClientLeft
            loop.call_soon_threadsafe(pieces.put_nowait, piece)

        def on_end(future) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, None)

        queued = QueuedRows(job, numbered_rows("prompt", [prompt]), on_text)
        self.queue.submit(queued)
        queued.future.add_done_callback(on_end)
        deadline = loop.time() + self.limits.seconds
        try:
            while True:
                # Around one wait alone: pieces may be asked for by several tasks.
                async with asyncio.timeout_at(deadline):
                    piece = await pieces.get()
                if piece is None:
                    break
                yield piece
            (line,) = queued.future.result()
            yield line
        finally:
            self.queue.withdraw(queued)

    async def first_piece(self, pieces: AsyncIterator[str | dict], disconnected: Callable) -> str | dict:
        """The first of an answer's `pieces`: until it is there, the request waits for the model.

        Args:
          disconnected: a coroutine function that returns when the client has left.

        Raises:
          ClientLeft; what `pieces` raises.
        """
        piece = asyncio.ensure_future(anext(pieces))
        client = asyncio.ensure_future(disconnected())
        try:
            await asyncio.wait((piece, client), return_when=asyncio.FIRST_COMPLETED)
            if piece.done():
                return piece.result()
            raise ClientLeft
        finally:
            client.cancel()
            piece.cancel()  # `pieces` then takes its request out of the queue
            await asyncio.wait((piece, client))

    async def events(
        self, first_piece: str | dict, pieces: AsyncIterator[str | dict], includes_usage: bool
    ) -> AsyncIterator[bytes]:
        """The pieces of an answer as server-sent events, in OpenAI's form.

        Args:
          includes_usage: one more event at the end has the tokens, and no piece.
        """
        head = self._head_of_completion()
        piece = first_piece
        while isinstance(piece, str):
            yield _event({**head, "choices": [_choice(piece, 0, None)]})
            piece = await anext(pieces)
        yield _event({**head, "choices": [_choice("", 0, _finish_reason(piece))]})
        if includes_usage:
            yield _event({**head, "choices": [], "usage": _usage([piece])})
        yield b"data: [DONE]\n\n"


def numbered_rows(name: str, values: list) -> list[Row]:
    """The values of a request's setting as rows.

    >>> numbered_rows("rows", ["It rains."])
    [Row(index=0, place='rows[0]', value='It rains.', file=None)]
    """
    return [Row(number, f"{name}[{number}]", value) for number, value in enumerate(values)]


def _usage(lines: list[dict]) -> dict:
    """The tokens that were read and written for lines of answers, in OpenAI's form."""
    prompt_tokens = sum(line["prompt_tokens"] for line in lines)
    answer_tokens = sum(line["answer_tokens"] for line in lines)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": answer_tokens,
        "total_tokens": prompt_tokens + answer_tokens,
    }


def _choice(text: str, index: int, finish_reason: str | None) -> dict:
    return {"text": text, "index": index, "logprobs": None, "finish_reason": finish_reason}


def _finish_reason(answer: dict) -> str:
    return "length" if answer.get("truncated") else "stop"


def _event(content: dict) -> bytes:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n".encode()
