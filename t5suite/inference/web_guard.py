"""What the page of `t5suite predict --web` lets through: requests of its own page, to the addresses that it needs.

>>> guarded = Guard(app, port=7860, routes={"GET": PAGE_GETS, "POST": PAGE_POSTS})

A browser may send requests to a local server on behalf of any page that it shows, also under a name that the other
page's owner points to 127.0.0.1 (DNS rebinding). Such a request has a foreign Host or Origin header, and is refused
before the page sees it. Pure ASGI (asgi.readthedocs.io), no library.
"""

import re
from collections.abc import Mapping

from t5suite.inference.asgi import body_of, header_values, replaying, send_content

LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")

# Longest request that is read, in bytes: ten texts of the largest size (`web.LONGEST_TEXT`) in UTF-8.
LARGEST_BODY = 4 * 2**20


class Guard:
    """An ASGI application in front of another one, which gets only requests that are allowed.

    Refused are: another Host than a local name with the served port (403), an Origin other than these (403), a route
    that is not listed (404), a body of more than `largest_body` bytes (413), and every websocket.

    Args:
      app: the application behind it.
      port: where it is served.
      routes: regular expressions of paths, by method.
    """

    def __init__(self, app, port: int, routes: Mapping[str, re.Pattern], largest_body: int = LARGEST_BODY):
        self.app = app
        self.routes = routes
        self.largest_body = largest_body
        self.hosts = {f"{name}:{port}" for name in LOCAL_NAMES}
        self.origins = {f"http://{host}" for host in self.hosts}

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        refusal = self.refusal(scope)
        if refusal is None:
            body = await body_of(receive, self.largest_body)
            if body is None:
                refusal = (413, f"a request may have {self.largest_body} bytes")
        if refusal is not None:
            status, message = refusal
            await send_content(send, status, {"detail": message})  # in this form the page shows refusals
            return
        await self.app(scope, replaying(body, receive), send)

    def refusal(self, scope) -> tuple[int, str] | None:
        """Why a request is refused: its status and a message; None if it is not."""
        hosts = header_values(scope, b"host")
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            return 403, f"this page answers only at {', '.join(sorted(self.hosts))}"
        if not set(header_values(scope, b"origin")) <= self.origins:
            return 403, "a request from another page"
        paths = self.routes.get(scope["method"])
        if paths is None or not paths.fullmatch(scope["path"]):
            return 404, "not found"
        return None
