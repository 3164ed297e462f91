"""The forms that a report is written in.

>>> parse_formats("html,md")
['html', 'md']
"""

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import find

FORMATS = ("html", "md", "json")


def parse_formats(text: str) -> list[str]:
    """`--format` as a list; `none` is no file at all.

    Raises:
      ConfigError: no such format, or none beside others.
    """
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigError(f"--format is empty; name some of {', '.join(FORMATS)}, or none")
    for name in names:
        find(name, {known: known for known in (*FORMATS, "none")}, "format", where="--format")
    if "none" in names and len(names) > 1:
        raise ConfigError(f"--format {text}: none stands alone")
    return [name for name in names if name != "none"]
