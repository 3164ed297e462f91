"""The bodies of refusals: OpenAI's form on the routes of its API, which its clients read, and ours on the others.

>>> content_of_refusal("/v1/completions", 404, "no such route")
{'error': {'message': 'no such route', 'type': 'invalid_request_error', 'param': None, 'code': None}}
>>> content_of_refusal("/predict", 404, "no such route")
{'detail': 'no such route'}
"""

OPENAI_ROUTES = "/v1/"


def content_of_refusal(path: str, status: int, message: str) -> dict:
    """What a refused request gets, by its path."""
    if not path.startswith(OPENAI_ROUTES):
        return {"detail": message}
    return {"error": {"message": message, "type": _error_type(status), "param": None, "code": None}}


def _error_type(status: int) -> str:
    """OpenAI's word for what a status says."""
    if status >= 500:
        return "server_error"
    return "rate_limit_error" if status == 429 else "invalid_request_error"
