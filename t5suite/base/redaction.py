"""Keeps secrets out of whatever is shown, logged, written or sent.

    >>> redacted("--hub_token: 'hf_abcdefghijklmnopqrstuvwxyz' is no number")
    "--hub_token: '***' is no number"
    >>> redacted_value({"hub": {"access_token": "abc", "retries": 3}})
    {'hub': {'access_token': '***', 'retries': 3}}

A secret is recognized by its value, if the environment or netrc holds it, or by its format, if its kind of token has
one. W&B's older keys are 40 hexadecimal digits, as commits are, so they are recognized by value only.
"""

import functools
import logging
import netrc
import os
import re

# What stands in place of a secret.
MASK = "***"
SECRET_WORDS = ("token", "key", "password", "secret")
# Shorter values would match ordinary words.
SHORTEST_VALUE = 16
SHAPES = re.compile(
    r"\bhf_[A-Za-z0-9]{20,}"  # Hugging Face
    r"|\bapi_org_[A-Za-z0-9]{20,}"  # Hugging Face, organizations
    r"|\bwandb_v\d+_\w{20,}"  # Weights & Biases
    r"|\b(?:gh[opsru]|github_pat)_\w{20,}"  # GitHub
    r"|\bsk-[\w-]{20,}"
    r"|\bAKIA[A-Z0-9]{16}\b"  # AWS
    r"|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"  # the name and password of an address
)
# Control characters except tab and line feed, Unicode's line separators and direction marks, lone surrogates.
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# How a path begins that leads out of the working directory: from the root, a home, a drive, a server, a folder above.
# The two slashes of a URL do not count.
PATH_START = r"(?:file:/+|[A-Za-z]:[\\/](?!/)|\\\\|~[\w.-]*[\\/]|\.\.[\\/]|/(?!/))"
# In a text a path ends at a space; a text that is a path as a whole, or a flag with one, may have spaces in it.
PATHS = re.compile(rf"(?<![^\s=,:'\"(\[`]){PATH_START}[^\s,:'\")\]`]*")
IS_PATH = re.compile(rf"(?:--?[\w-]+=)?{PATH_START}")
WHOLE_PATHS = re.compile(rf"{PATH_START}(?:(?!,\s*{PATH_START}).)*", re.DOTALL)


def without_folders(text: str) -> str:
    """The text with every path that leads out of the working directory reduced to its last name.

    >>> without_folders("--train_file /home/ada/reviews.csv"), without_folders("/home/ada/my data/reviews.csv")
    ('--train_file …/reviews.csv', '…/reviews.csv')
    """
    text = str(text)
    pattern = WHOLE_PATHS if IS_PATH.match(text) else PATHS
    return pattern.sub(lambda path: f"…/{_last_name(path[0])}", text)


def _last_name(path: str) -> str:
    """What stands after a path's last slash.

    >>> _last_name("C:\\\\data\\\\reviews.csv"), _last_name("/home/ada/")
    ('reviews.csv', 'ada')
    """
    return re.split(r"[\\/]", path.rstrip("\\/"))[-1]


def redacted(text: str) -> str:
    """The text with every secret in it replaced by `***`."""
    return _without(known_secrets(), text)


def _without(secrets: list[str], text: str) -> str:
    for secret in secrets:
        text = text.replace(secret, MASK)
    return SHAPES.sub(MASK, text)


def redacted_value(value, by_name: bool = True):
    """A JSON value with every secret in it replaced: in texts, and any text under a secret's name.

    >>> redacted_value({"api_key": "x", "lr": 0.1, "hf_abcdefghijklmnopqrstuvwxyz0123_token": "x"})
    {'api_key': '***', 'lr': 0.1, '***_token': '***'}

    Args:
      by_name: False if names may be anything, such as a task's `label_token`: names are then ignored.
    """
    # Looked up once: the environment has a hundred variables, and a manifest hundreds of texts.
    return _redacted_value(value, by_name, known_secrets())


def _redacted_value(value, by_name: bool, secrets: list[str]):
    if isinstance(value, str):
        return _without(secrets, value)
    if isinstance(value, dict):
        return _redacted_table(value, by_name, secrets)
    if isinstance(value, (list, tuple)):
        return [_redacted_value(item, by_name, secrets) for item in value]
    return value


def _redacted_table(table: dict, by_name: bool, secrets: list[str]) -> dict:
    shown_table = {}
    for name, item in table.items():
        shown_item = _redacted_value(item, by_name, secrets)
        is_filled = isinstance(item, str) and item != ""
        if by_name and is_filled and is_secret_name(name):
            shown_item = MASK
        shown_table[_redacted_value(name, True, secrets)] = shown_item
    return shown_table


def printable(text: str) -> str:
    r"""Text for a terminal, a log or Markdown: characters that control a terminal or text direction become `\u001b`.

    >>> printable("\x1b]0;owned\x07 a\tb")
    '\\u001b]0;owned\\u0007 a\tb'
    """
    return STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def is_secret_name(name: str) -> bool:
    """Whether a flag, setting or variable of that name holds a secret.

    >>> is_secret_name("--hub_token"), is_secret_name("WANDB_API_KEY"), is_secret_name("tokenizer_name")
    (True, True, False)
    """
    return str(name).lower().endswith(SECRET_WORDS)


def known_secrets() -> list[str]:
    """What the environment and netrc hold, longest first, so that none is replaced in part."""
    secrets_of_environment = {os.environ[name] for name in os.environ if is_secret_name(name)}
    values = [value for value in secrets_of_environment | _netrc_secrets() if len(value) >= SHORTEST_VALUE]
    return sorted(values, key=len, reverse=True)


class RedactingFormatter(logging.Formatter):
    """Log lines, including tracebacks and arguments, without secrets and control characters.

    >>> handler.setFormatter(RedactingFormatter("%(levelname)s %(name)s: %(message)s"))
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        return printable(redacted(super().format(record)))


@functools.cache
def _netrc_secrets() -> frozenset[str]:
    try:
        hosts = netrc.netrc(os.environ.get("NETRC")).hosts
    except (OSError, netrc.NetrcParseError):
        return frozenset()
    return frozenset(password for _, _, password in hosts.values() if password)
