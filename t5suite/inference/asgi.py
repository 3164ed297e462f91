"""Requests and answers in ASGI's messages (asgi.readthedocs.io), for what stands in front of an application.

>>> header_values({"headers": [(b"host", b"localhost:8000")]}, b"host")
['localhost:8000']
"""

import json


def header_values(scope, name: bytes) -> list[str]:
    """All values of a header, whose name ASGI writes in lower case."""
    return [value.decode("latin-1") for header, value in scope["headers"] if header == name]


async def body_of(receive, largest: int) -> bytes | None:
    """The whole body of a request; None once it is longer than `largest`, or the client has gone."""
    body = b""
    while len(body) <= largest:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body if len(body) <= largest else None
    return None


def replaying(body: bytes, receive):
    """A `receive` that gives a body that was read before, then what the client sends next."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again():
        return messages.pop() if messages else await receive()

    return receive_again


async def send_content(send, status: int, content: dict) -> None:
    """A whole answer in JSON, after which the connection is closed."""
    text = json.dumps(content).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(text)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})
