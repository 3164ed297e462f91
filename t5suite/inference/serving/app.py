"""The routes of `t5suite serve`, made with FastAPI, behind the gate.

>>> app = app_of(service, hosts=LOCAL_NAMES, key=None)
>>> uvicorn.run(app, host="127.0.0.1", port=8000)

| route | answers |
|---|---|
| `POST /predict` | `{"answers": [...]}`, one for each row, as `t5suite predict` writes them |
| `POST /v1/completions` | OpenAI's completion of texts; with `"stream": true` one text's, piece by piece |
| `GET /v1/models` | the one model |
| `GET /health` | 200 while requests are taken |
| `GET /metrics` | for Prometheus |

A refused request has `{"detail": why}`, on the routes of OpenAI's API its form of an error
(`gate.content_of_refusal`). Neither a schema nor a page about the routes is served.
"""

import logging
import math
import time
from collections.abc import AsyncIterator, Collection

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from t5suite.base.errors import ConfigError, DataError
from t5suite.inference.serving.bodies import CompletionBody, PredictBody, read_body
from t5suite.inference.serving.gate import Gate, content_of_refusal
from t5suite.inference.serving.limits import Busy, ClientLeft
from t5suite.inference.serving.service import Service, numbered_rows

logger = logging.getLogger(__name__)

CLIENT_LEFT = 499  # nobody reads it; it is counted


def app_of(service: Service, hosts: Collection[str] | None, key: str | None) -> Gate:
    """The server of one model as an ASGI application.

    Args:
      hosts, key: as `gate.Gate` has them.
    """
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)

    @app.post("/predict")
    async def predict(request: Request):
        async def answer():
            body = read_body(PredictBody, await request.body())
            job = service.job_of_rows(body)
            lines = await service.lines(job, numbered_rows("rows", body.rows), lambda: until_disconnect(request))
            return JSONResponse({"answers": lines})

        return await answered(service, "/predict", answer)

    @app.post("/v1/completions")
    async def completions(request: Request):
        async def answer():
            body = read_body(CompletionBody, await request.body())
            job = service.job_of_completion(body)
            if body.stream:
                pieces = service.pieces(job, body.prompts[0])
                # What cannot be answered fails here, with its status.
                first_piece = await service.first_piece(pieces, lambda: until_disconnect(request))
                events = service.events(first_piece, pieces, body.includes_usage)
                events = counted_events_with_refusal(service, "/v1/completions", events)
                return StreamingResponse(events, media_type="text/event-stream")
            lines = await service.lines(job, numbered_rows("prompt", body.prompts), lambda: until_disconnect(request))
            return JSONResponse(service.completion(lines))

        return await answered(service, "/v1/completions", answer)

    @app.get("/v1/models")
    async def models():
        model = {"id": service.name, "object": "model", "created": service.started, "owned_by": "t5suite"}
        return JSONResponse({"object": "list", "data": [model]})

    @app.get("/health")
    async def health():
        return JSONResponse({"status": "ok", "model": service.name, "waiting_rows": service.queue.waiting_rows})

    @app.get("/metrics")
    async def metrics():
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    return Gate(app, hosts, key, service.limits)


async def until_disconnect(request: Request) -> None:
    """Returns when the client has closed its connection; its body was read before."""
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return


async def answered(service: Service, route: str, answer) -> Response:
    """What `answer()` returns, or the refusal for what it raises; timed, and counted unless it is a stream."""
    started = time.perf_counter()
    response = await _response(service, route, answer)
    if not isinstance(response, StreamingResponse):
        service.metrics.requests.labels(route, response.status_code).inc()
    service.metrics.request_seconds.observe(time.perf_counter() - started)
    return response


async def counted_events_with_refusal(
    service: Service, route: str, events: AsyncIterator[bytes]
) -> AsyncIterator[bytes]:
    """A stream's events, whose status 200 is sent; the refusal for an error is the last one. It is counted here."""
    status = CLIENT_LEFT
    try:
        async for event in events:
            yield event
        status = 200
    except Exception as error:
        refusal = _refusal_of(service, route, error)
        status = refusal.status_code
        yield b"data: " + refusal.body + b"\n\n"
    finally:
        service.metrics.requests.labels(route, status).inc()


async def _response(service: Service, route: str, answer) -> Response:
    try:
        return await answer()
    except Exception as error:
        return _refusal_of(service, route, error)


def _refusal_of(service: Service, route: str, error: Exception) -> Response:
    """The refusal that a client gets for an error."""
    if isinstance(error, (ConfigError, DataError)):
        return _refusal(route, 400, str(error).replace("--", ""))
    if isinstance(error, Busy):
        headers = {"Retry-After": str(_seconds_until_free(service))}
        return _refusal(route, 429, f"{error}; try again later", headers)
    if isinstance(error, TimeoutError):
        return _refusal(route, 503, f"no answer within {service.limits.seconds:g} seconds")
    if isinstance(error, ClientLeft):
        return Response(status_code=CLIENT_LEFT)
    logger.error("a request could not be answered", exc_info=error)
    return _refusal(route, 500, "the server could not answer; its log says why")


def _refusal(route: str, status: int, message: str, headers: dict | None = None) -> JSONResponse:
    return JSONResponse(content_of_refusal(route, status, message), status_code=status, headers=headers)


def _seconds_until_free(service: Service) -> int:
    """About how long the rows that wait will take, at least a second."""
    return max(1, math.ceil(service.metrics.seconds_for(service.queue.waiting_rows)))
