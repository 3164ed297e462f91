"""The bodies of requests, checked by pydantic: an unknown setting or a wrong type is refused by name.

>>> PredictBody.model_validate({"rows": [{"sentence": "Good."}], "num_beams": 4}).num_beams
4
>>> read_body(CompletionBody, b'{"prompt": "Is it?", "best_of": 3}')
DataError: best_of: Input should be less than or equal to 1
>>> read_body(PredictBody, b'{"rows": ["Good."], "labels": true}')
DataError: labels must be a list of labels, "task" or "none"
>>> read_body(PredictBody, b'{"rows": [{"sentence": NaN}]}')
DataError: not JSON (rows[0].sentence: NaN is not a JSON value; write null)
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from t5suite.base.errors import DataError
from t5suite.data.rows.jsonl import parse_line
from t5suite.inference.decoding_settings import DecodingSettings


class RowsBody(BaseModel):
    """What `POST /predict` has besides the settings of decoding: rows, and what is to be written of them."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    rows: list[dict | str] = Field(description="a list of objects with the columns, or of texts")
    labels: list[str] | Literal["task", "none"] | None = Field(
        default=None, description='a list of labels, "task" or "none"'
    )
    scores: bool = False
    include_inputs: bool = False
    raw: bool = False


PredictBody = create_model(
    "PredictBody",
    __base__=RowsBody,
    __doc__="The body of `POST /predict`: rows, and the settings of `t5suite predict` by their names.",
    **{setting.name: (setting.type, setting.default) for setting in dataclasses.fields(DecodingSettings)},
)


class StreamOptions(BaseModel):
    """What a streamed completion has besides its pieces: at its end, its tokens."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = False


class CompletionBody(BaseModel):
    """The body of `POST /v1/completions`: OpenAI's, as far as a text-to-text model has its settings.

    Without a temperature, or with 0, the answer is the greedy one. Of the last settings, only the values that change
    nothing are taken.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    prompt: str | list[str] = Field(description="a text, or a list of texts")
    model: str | None = None
    max_tokens: int | None = None
    temperature: float = 0.0
    top_p: float | None = None
    n: int = 1
    seed: int = 42
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    best_of: int = Field(default=1, ge=1, le=1)
    echo: Literal[False] = Field(default=False, description="false")
    frequency_penalty: float = Field(default=0, ge=0, le=0)
    presence_penalty: float = Field(default=0, ge=0, le=0)
    logit_bias: dict[str, float] | None = Field(default=None, max_length=0)
    logprobs: None = Field(default=None, description="null, as by default")
    stop: None = Field(default=None, description="null, as by default")
    suffix: None = Field(default=None, description="null, as by default")

    @model_validator(mode="before")
    @classmethod
    def _take_defaults_for_nulls(cls, body):
        """OpenAI's clients send null for a setting that is not given."""
        if not isinstance(body, dict):
            return body
        optional_names = {name for name, setting in cls.model_fields.items() if not setting.is_required()}
        return {name: setting for name, setting in body.items() if setting is not None or name not in optional_names}

    @property
    def prompts(self) -> list[str]:
        """One text or several, as a list."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with its tokens."""
        return self.stream_options is not None and self.stream_options.include_usage


def read_body(kind: type[BaseModel], content: bytes):
    """A request's body as an object of its kind.

    Raises:
      DataError: it is no JSON object (as files are read: a NaN, and a key that is there twice, are none); the first
        setting that is unknown, missing or of a wrong type.
    """
    body = None
    problem = None
    try:
        body = kind.model_validate_json(content)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        if problem["type"] == "json_invalid":
            raise DataError(problem["msg"]) from None
    try:
        parse_line(content, whole_characters=True)
    except ValueError as error:
        raise DataError(str(error)) from None
    if problem is None:
        return body
    name = ".".join(map(str, problem["loc"]))
    if name == "dataset_name":
        raise DataError("dataset_name: a server answers one task of a model, chosen by this flag at its start")
    if problem["type"] == "extra_forbidden":
        raise DataError(f"{name:.60}: this server has no such setting")
    values = _values_of(kind, problem["loc"])
    if values is not None and problem["type"] != "missing":
        raise DataError(f"{problem['loc'][0]} must be {values}")
    raise DataError(f"{name:.60}: {problem['msg']}" if name else problem["msg"])


def _values_of(kind: type[BaseModel], place: Sequence[str | int]) -> str | None:
    """The values that a setting takes, where its description says them; pydantic names each type of a union alone."""
    setting = kind.model_fields.get(place[0]) if place else None
    return None if setting is None else setting.description
