"""The guard of the page of `t5suite predict --web`: its own page's requests pass, and nothing else that reaches its port."""

import asyncio
import json
import re

from absl.testing import parameterized

from t5suite.inference.web_guard import Guard

PORT = 7860


async def echo(scope, receive, send):
    """An application that answers the path and the body that it got."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode() + b" " + body})


def requested(method="GET", path="/", headers=(("host", f"127.0.0.1:{PORT}"),), parts=(b"",), kind="http"):
    """What a guard of `echo` sends for one request, whose body arrives in parts."""
    guard = Guard(echo, PORT, {"GET": re.compile("/"), "POST": re.compile("/answer")}, largest_body=10)
    scope = {"type": kind, "method": method, "path": path}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in headers]
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages[-1]["more_body"] = False
    messages.append({"type": "http.disconnect"})
    sent = []

    async def receive():
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    asyncio.run(guard(scope, receive, send))
    return sent


class GuardTest(parameterized.TestCase):
    @parameterized.parameters("127.0.0.1:7860", "localhost:7860", "LOCALHOST:7860", "[::1]:7860")
    def test_a_request_to_a_local_name_passes(self, host):
        for headers in ([("host", host)], [("host", host), ("origin", "http://localhost:7860")]):
            start, body = requested("POST", "/answer", headers, (b"12345", b"67890"))
            self.assertEqual((start["status"], body["body"]), (200, b"/answer 1234567890"))

    @parameterized.parameters(
        [[("host", "evil.example:7860")]],
        [[("host", "127.0.0.1.evil.example:7860")]],
        [[("host", "evil.example")]],
        [[("host", "127.0.0.1:7861")]],
        [[("host", "127.0.0.1")]],
        [[("host", "")]],
        [[]],
        [[("host", "127.0.0.1:7860"), ("host", "evil.example:7860")]],
    )
    def test_another_host_is_refused(self, headers):
        self.assertEqual(requested(headers=headers)[0]["status"], 403)

    @parameterized.parameters(
        "http://evil.example",
        "http://evil.example:7860",
        "https://127.0.0.1:7860",
        "http://127.0.0.1:8000",
        "http://127.0.0.1:7860.evil.example",
        "null",
        "",
    )
    def test_another_origin_is_refused_and_gets_no_leave_to_read(self, origin):
        start, _ = requested(headers=[("host", "127.0.0.1:7860"), ("origin", origin)])
        self.assertEqual(start["status"], 403)
        self.assertNotIn(b"access-control-allow-origin", dict(start["headers"]))

    @parameterized.parameters(("GET", "/answer"), ("POST", "/"), ("PUT", "/"), ("OPTIONS", "/"), ("GET", "/x"))
    def test_a_route_that_is_not_listed_is_not_served(self, method, path):
        self.assertEqual(requested(method, path)[0]["status"], 404)

    @parameterized.parameters([(b"12345678901",)], [(b"12345", b"67890", b"1")])
    def test_a_longer_body_is_refused(self, *parts):
        start, body = requested("POST", "/answer", parts=parts[0])
        self.assertEqual(start["status"], 413)
        self.assertIn("10 bytes", json.loads(body["body"])["detail"])

    def test_a_websocket_is_closed(self):
        self.assertEqual(requested(kind="websocket"), [{"type": "websocket.close"}])
