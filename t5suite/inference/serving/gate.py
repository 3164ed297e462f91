"""What a server lets through: its own routes, for its own names, with its key, in bodies of a bounded size.

>>> gate = Gate(app, hosts=local_hosts(8000), key=None, limits=Limits())

A browser may send requests to a local server on behalf of any page that it shows, also under a name that the page's
owner points to 127.0.0.1 (DNS rebinding). Such a request has a foreign Host header, and is refused before anything
else; an address in numbers cannot be pointed elsewhere, and is taken. No header allows other pages to read answers
(CORS). Pure ASGI (asgi.readthedocs.io).
"""

import asyncio
import hmac
import ipaddress
from collections.abc import Collection

from t5suite.inference.asgi import body_of, header_values, replaying, send_content
from t5suite.inference.serving.limits import Limits

ROUTES = {
    "GET": ("/health", "/metrics", "/v1/models"),
    "POST": ("/predict", "/v1/completions"),
}
# Routes that need no key: a cluster asks whether the server lives.
OPEN_ROUTES = ("/health",)
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
# Below it are the routes of OpenAI's API.
OPENAI_ROUTES = "/v1/"


class Gate:
    """An ASGI application in front of the server's, which gets only requests that are allowed.

    Refused are: a Host that is neither one of `hosts` nor an address in numbers (403), a request from another page
    (403), an unknown route (404) or method (405), no key or a wrong one (401), a body that is too large (413) or that
    does not come to its end in time (408), and every websocket.

    Args:
      hosts: names, without ports, under which the server is known; None: any, because every request has a key.
      key: what clients send as `Authorization: Bearer KEY`; None: none is needed.
    """

    def __init__(self, app, hosts: Collection[str] | None, key: str | None, limits: Limits):
        self.app = app
        self.hosts = None if hosts is None else {host.lower() for host in hosts}
        self.key = key
        self.limits = limits

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        refusal = self.refusal(scope)
        if refusal is not None:
            await self._refuse(scope, send, *refusal)
            return
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                body = await body_of(receive, self.limits.body_bytes)
        except TimeoutError:
            await self._refuse(scope, send, 408, f"the body did not come within {self.limits.body_seconds:g} seconds")
            return
        if body is None:
            await self._refuse(scope, send, 413, f"a body has at most {self.limits.body_bytes} bytes")
            return
        await self.app(scope, replaying(body, receive), send)

    async def _refuse(self, scope, send, status: int, message: str) -> None:
        await send_content(send, status, content_of_refusal(scope["path"], status, message))

    def refusal(self, scope) -> tuple[int, str] | None:
        """Why a request is refused: its status and a message; None if it is not."""
        hosts = header_values(scope, b"host")
        if len(hosts) != 1 or not self._is_known(hosts[0]):
            return 403, "this server is not known under that name; --allowed_hosts names others"
        if header_values(scope, b"origin"):
            return 403, "a request from a page"
        methods = [method for method, routes in ROUTES.items() if scope["path"] in routes]
        if not methods:
            return 404, "no such route"
        if scope["method"] not in methods:
            return 405, f"{scope['path']} takes {methods[0]}"
        if scope["path"] not in OPEN_ROUTES and not self._has_key(scope):
            return 401, "send the server's key: Authorization: Bearer KEY"
        return None

    def _is_known(self, host: str) -> bool:
        if self.hosts is None:
            return True
        name = host_name(host)
        return name in self.hosts or is_address(name)

    def _has_key(self, scope) -> bool:
        if self.key is None:
            return True
        sent = header_values(scope, b"authorization")
        expected = f"Bearer {self.key}"
        # In constant time: how long it takes says nothing of how much of the key is right.
        return len(sent) == 1 and hmac.compare_digest(sent[0].encode("latin-1"), expected.encode("utf-8"))


def host_name(host: str) -> str:
    """The name in a Host header, in lower case, without its port.

    >>> host_name("LocalHost:8000"), host_name("[::1]:8000"), host_name("model.lab")
    ('localhost', '::1', 'model.lab')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def is_address(name: str) -> bool:
    """Whether a name is an IP address in numbers."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host."""
    return host in LOCAL_NAMES or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def content_of_refusal(path: str, status: int, message: str) -> dict:
    """What a refused request gets: OpenAI's form on the routes of its API, which its clients read, ours on the others.

    >>> content_of_refusal("/v1/completions", 404, "no such route")
    {'error': {'message': 'no such route', 'type': 'invalid_request_error', 'param': None, 'code': None}}
    >>> content_of_refusal("/predict", 404, "no such route")
    {'detail': 'no such route'}
    """
    if not path.startswith(OPENAI_ROUTES):
        return {"detail": message}
    return {"error": {"message": message, "type": _error_type(status), "param": None, "code": None}}


def _error_type(status: int) -> str:
    """OpenAI's word for what a status says."""
    if status >= 500:
        return "server_error"
    return "rate_limit_error" if status == 429 else "invalid_request_error"
