"""Inputs that hurt: JSON, YAML, files and flags that nearly fit, and others that do not at all (hypothesis strategies).

>>> json_line_files().example()
b'{"sentence": "\\xed\\xa0\\x80", "label": 11111...}\\r\\n[[[[['
"""

import gzip
import json
import random

import yaml
from hypothesis import strategies as st

DEEP = 100_000
NASTY_NUMBERS = (0, 1, -1, 2, -2, 5, 10**18, 2**63, -(2**63) - 1, 10**400, 0.5, 1e-5, 1e308, -0.0)
NASTY_TEXTS = (
    "",
    " ",
    "\n",
    "\x00",
    "\ud800",
    "\udfff",
    "\ufeff",
    "../x",
    "/etc/passwd",
    "..",
    "a/b",
    "$(id)",
    "; rm -rf x",
    "'\"`",
    "True",
    "None",
    "nan",
    "1e-5",
    "-1",
    "0",
    "1",
    "positive",
    "negative",
    "entailment",
    "%s%n",
    "{}",
    "\\",
    "\x1b[31m",
    "é" * 300,
)
NASTY_LINES = (
    b"", b" ", b"\xef\xbb\xbf", b"\xff\xfe", b"\x00", b"\xed\xa0\x80", b'"\\ud800"', b"NaN", b"-Infinity", b"1e999", b"1" * 5000, b"-" + b"7" * 4301,
    b'{"label": ' + b"9" * 5000 + b"}", b"[" * DEEP, b'{"a":' * DEEP, b"[" * 500 + b"]" * 500, b'{"sentence": "a", "sentence": "b"}', b'{"sentence": "x", "label": 1',
    b'{"text": "\\ud83d"}', b'{"text": "a\\u0000b"}', b"{}", b"[]", b"null", b'"text"', b'{"prediction": null}', b'{"prediction": "x"}', b"{'a': 1}", b'{"a": 1}{"b": 2}',
    b"\x80\x81", b"tru", b'"\t"',
)  # fmt: skip


def texts():
    """Texts, lone surrogates and control characters among them."""
    return st.one_of(
        st.sampled_from(NASTY_TEXTS), st.text(st.characters(), max_size=12), st.text("ab .,XitThe", max_size=12)
    )


def numbers():
    """Whole numbers and others, far too large ones and those that are none among them."""
    return st.one_of(st.sampled_from(NASTY_NUMBERS), st.integers(-3, 6), st.integers(), st.floats())


def json_values():
    """Whatever a JSON reader may give."""
    atoms = st.one_of(st.none(), st.booleans(), numbers(), texts())
    return st.recursive(
        atoms,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts(), inner, max_size=3)),
        max_leaves=6,
    )


def rows(columns):
    """Rows with these columns, more or less: cells that may fit, wrong ones, columns too many or too few."""
    plausible = st.one_of(texts(), st.integers(-1, 3), st.lists(texts(), max_size=3), json_values())
    ids = st.fixed_dictionaries({}, optional={name: json_values() for name in ("passage", "query", "question")})
    cells = {column: plausible | ids if column == "idx" else plausible for column in columns}
    return st.one_of(
        st.fixed_dictionaries(cells),
        st.fixed_dictionaries({}, optional=cells),
        st.dictionaries(texts(), json_values(), max_size=3),
    )


@st.composite
def line_files(draw, values):
    """The bytes of a file of JSON lines: `values` and nasty lines, with any line ends, perhaps behind a BOM."""
    one = st.one_of(values.map(encoded), values.map(encoded), st.sampled_from(NASTY_LINES))
    lines = draw(st.lists(one, max_size=4))
    mark, end = (
        draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf"])),
        draw(st.sampled_from([b"\n", b"\n", b"\r\n", b"\r"])),
    )
    return mark + end.join(lines)


def mutations(content: bytes, seed: int, count: int):
    """The content as it is and `count` damaged forms of it: cut off, changed, shortened, doubled, with something put in."""
    yield content
    rng = random.Random(seed)
    for _ in range(count):
        changed = content
        for _ in range(rng.choice((1, 1, 2, 4))):
            changed = rng.choice(MUTATIONS)(changed, rng)
        yield changed


def _cut(content, rng):
    return content[: rng.randint(0, len(content))]


def _flip(content, rng):
    place = rng.randint(0, max(len(content) - 1, 0))
    return content[:place] + bytes([rng.randint(0, 255)]) + content[place + 1 :]


def _drop(content, rng):
    start, end = sorted((rng.randint(0, len(content)), rng.randint(0, len(content))))
    return content[:start] + content[end:]


def _double(content, rng):
    start, end = sorted((rng.randint(0, len(content)), rng.randint(0, len(content))))
    return content[:end] + content[start:]


def _insert(content, rng):
    place = rng.randint(0, len(content))
    return content[:place] + rng.choice(INSERTED) + content[place:]


MUTATIONS = (_cut, _flip, _drop, _double, _insert, _insert)
INSERTED = (
    *(line for line in NASTY_LINES if len(line) < 10_000),
    b"\n",
    b"\r\n",
    b'"',
    b"\\",
    b",",
    b": ",
    b"{",
    b"- ",
    b"\\ud800",
    b"'",
    b"\t",
)


def packed(content: bytes, suffix: str, seed: int) -> bytes:
    """The content as a file of that suffix holds it, perhaps damaged once it is packed; some only claim to be packed."""
    import zstandard

    rng = random.Random(seed)
    if suffix and rng.random() < 0.8:
        content = gzip.compress(content, 1) if suffix == ".gz" else zstandard.compress(content, 1)
        content = rng.choice(MUTATIONS)(content, rng) if rng.random() < 0.5 else content
    return content


def encoded(value) -> bytes:
    """One JSON value as a careless program would write it."""
    return json.dumps(value, ensure_ascii=len(repr(value)) % 2 == 0).encode("utf-8", "surrogatepass")


YAML_TAGS = ("!!python/object/apply:os.system ['touch canary']", "!!python/name:os.system", "!!python/object/new:subprocess.Popen [['touch', 'canary']]",
             "!!python/module:os", "!!binary '@'", "!!timestamp x", "!!int x", "!!float 1__", "!!set {a, b}", "!!omap [a: 1]", "!!bool x", "!x y")  # fmt: skip
YAML_ODDITIES = ("[" * 500, "{a: " * 500, "- " * 500, "&a [*a]", "&a {x: *a}", "a: &x 1\nb: *x", "b: *nothing", "a: 1\na: 2", "? [1, 2]\n: 3", "? {a: 1}\n: 2", "<<: 5", "<<: [a]",
                 "---\na: 1\n---\nb: 2", "%YAML 9.9\n---\na", "\t", "a:\tb: c", "1" * 5000, "a: " + "1" * 5000, "a: 0x" + "f" * 5000, "2001-99-99", "a: 2001-02-30", "a: 1:99:99",
                 "~", "null", "''", "\x00", "\x85", "\ufeffa: 1", "a: |\n  x\n y", "a: !!binary |\n  @@@", "1e-5", "0b2", "0o9", "a: .nan", "a: -.inf", "yes: no", "? a", ": a",
                 "x: 12345678901234567890:59", "=: 1", "a: =", "a: 190:20:30.15")  # fmt: skip


@st.composite
def yaml_documents(draw, values):
    """YAML text: `values` as a dumper writes them, tags that would run code, oddities, and lines that are cut."""
    kind = draw(st.sampled_from(["dumped", "dumped", "tagged", "odd", "mixed", "raw"]))
    if kind == "raw":
        return draw(st.text(st.sampled_from("abc:-[]{}&*!|>'\"%#\n \t,?0123456789e.~@`\x00\ud800é"), max_size=40))
    if kind == "odd":
        return draw(st.sampled_from(YAML_ODDITIES))
    value = draw(values)
    text = dumped(value, draw(st.sampled_from([None, True, False])))
    if kind == "tagged":
        text += f"{draw(st.sampled_from(['seed', 'mine', 'x']))}: {draw(st.sampled_from(YAML_TAGS))}\n"
    if kind == "mixed":
        text = draw(st.permutations([text, draw(st.sampled_from(YAML_ODDITIES)) + "\n"]).map("".join))
    return text


def dumped(value, flow) -> str:
    """A value as YAML; where YAML cannot say it, as JSON, which it mostly reads too."""
    try:
        return yaml.safe_dump(value, allow_unicode=bool(flow), default_flow_style=flow)
    except (yaml.YAMLError, ValueError):
        return json.dumps(value, default=str) + "\n"
