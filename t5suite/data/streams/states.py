"""The position of a stream as JSON: which run it belongs to, and the whole run's from those of its ranks.

    >>> state = merge_states([json.loads(path.read_text()) for path in checkpoint.glob("stream-rank-*.json")])

A state is `{"version", "num_given", "data", "streams"}`: `num_given` counts the data given out over all ranks, `data`
is what they depend on (`StreamLoader.describe`), and `streams` has each virtual stream's position in each corpus.
"""

from t5suite.base.errors import ChangedDataError, ConfigError

VERSION = 1


def merge_states(states: list[dict]) -> dict:
    """The position of a whole run from those of its ranks, for a run that goes on with another number of them.

    Raises:
      ConfigError: the ranks stood at different data, or were not of one run.
    """
    first = states[0]
    streams = {}
    for state in states:
        check_same(state, first["data"])
        if state["num_given"] != first["num_given"]:
            raise ConfigError(f"positions of different steps: data {first['num_given']} and {state['num_given']}")
        streams.update(state["streams"])
    return {**first, "streams": streams}


def check_same(state: dict, data: dict) -> None:
    """Refuses a position of other settings or other text."""
    if state.get("version") != VERSION:
        raise ConfigError(f"a stream's position of version {state.get('version')!r}; this version reads {VERSION}")
    before = state["data"]
    differing = [
        f"{name} {before['settings'].get(name)!r} there, {value!r} here"
        for name, value in data["settings"].items()
        if before["settings"].get(name) != value
    ]
    if differing:
        raise ConfigError(f"the stream's position belongs to other settings: {'; '.join(differing)}")
    if before["tokenizer"] != data["tokenizer"]:
        raise ConfigError(f"the stream was tokenized by {before['tokenizer']}, this run's is {data['tokenizer']}")
    if before["corpora"] != data["corpora"]:
        pairs = [
            f"{there} there, {here} here" for there, here in zip(before["corpora"], data["corpora"]) if there != here
        ]
        raise ChangedDataError(
            "the streamed text has changed since the run began: "
            + "; ".join(pairs or [f"{len(before['corpora'])} corpora there, {len(data['corpora'])} here"])
        )
