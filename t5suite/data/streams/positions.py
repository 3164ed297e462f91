"""Positions of streams: those of all ranks as one, and what must be the same for a run to resume from one."""

from t5suite.base.errors import ChangedDataError, ConfigError

VERSION = 1
BEGIN_ANEW = "to begin the text anew: --reset data"


def merge_states(states: list[dict]) -> dict:
    """The position of a whole run from those of its ranks, for a run that resumes with another number of them."""
    first = states[0]
    streams = {}
    for state in states:
        check_same(state, first["data"])
        if state["num_given"] != first["num_given"]:
            raise ConfigError(f"positions of different steps: data {first['num_given']} and {state['num_given']}")
        streams.update(state["streams"])
    return {**first, "streams": streams}


def check_same(state: dict, data: dict) -> None:
    """Refuses a position with other settings or other text."""
    if state.get("version") != VERSION:
        raise ConfigError(f"a stream's position of version {state.get('version')!r}; this version reads {VERSION}")
    state_data = state["data"]
    differences = []
    for name, setting in data["settings"].items():
        state_setting = state_data["settings"].get(name)
        if state_setting != setting:
            differences.append(f"{name} {state_setting!r} there, {setting!r} here")
    if differences:
        raise ConfigError(f"the stream's position belongs to other settings: {'; '.join(differences)}; {BEGIN_ANEW}")
    if state_data["tokenizer"] != data["tokenizer"]:
        raise ConfigError(
            f"the stream was tokenized by {state_data['tokenizer']}, this run's is {data['tokenizer']}; {BEGIN_ANEW}"
        )
    if state_data["corpora"] != data["corpora"]:
        _refuse_earlier_deal(state_data["corpora"], data)
        raise ChangedDataError(
            "the streamed text is another than the checkpoint's, or has changed since: "
            f"{state_data['corpora']} there, {data['corpora']} here"
        )


def _refuse_earlier_deal(corpora_before: list[dict], data: dict) -> None:
    """Raises ConfigError if the position comes from a version that dealt the files to the readers in another way."""
    for before, corpus in zip(corpora_before, data["corpora"]):
        if "parts_a_file" in corpus and "parts_a_file" not in before:
            raise ConfigError(
                f"the position in a stream of {corpus['files']} files was written by an earlier version, which dealt "
                f"them to {data['settings']['num_virtual_streams']} virtual streams in another way: finish the run "
                "with that version, or begin the text anew with --reset data"
            )
