"""The languages that texts are read and written in, for models of many languages.

>>> Languages("eng_Latn", target_lang_column="lang").of({"text": "Good.", "lang": "deu_Latn"})
('eng_Latn', 'deu_Latn')
"""

from typing import NamedTuple

from t5suite.base.errors import DataError
from t5suite.tasks.cells import outermost, value_at


class Languages(NamedTuple):
    """Codes of the languages that texts are read and written in; codes per row, from a column, override them."""

    source_lang: str | None = None
    target_lang: str | None = None
    source_lang_column: str | None = None
    target_lang_column: str | None = None

    def of(self, row) -> tuple[str | None, str | None]:
        """The two languages of a row.

        >>> Languages("eng_Latn", target_lang_column="lang").of({"text": "Good.", "lang": "deu_Latn"})
        ('eng_Latn', 'deu_Latn')

        Raises:
          DataError: the row has no such column, or no text there.
        """
        source = _code_of_row(row, self.source_lang, "source_lang_column", self.source_lang_column)
        target = _code_of_row(row, self.target_lang, "target_lang_column", self.target_lang_column)
        return source, target

    def with_defaults(self, settings: dict) -> "Languages":
        """These languages; a side without a setting takes the one that the model was trained with.

        >>> Languages(target_lang="fra_Latn").with_defaults({"source_lang": "eng_Latn", "target_lang_column": "lang"})
        Languages(source_lang='eng_Latn', target_lang='fra_Latn', source_lang_column=None, target_lang_column=None)
        """
        fields = {name: value for name, value in self._asdict().items() if value is not None}
        sides = {_side_of(name) for name in fields}
        trained = {name: value for name, value in settings.items() if _side_of(name) not in sides}
        return Languages(**trained, **fields)


def _code_of_row(row, code: str | None, flag: str, column: str | None) -> str | None:
    if column is None:
        return code
    code_of_row = value_at(row, column)
    if isinstance(code_of_row, str) and code_of_row:
        return code_of_row
    if code_of_row not in (None, ""):
        raise DataError(f"--{flag} {column}: a row has {code_of_row!r:.60} there, not the code of a language")
    if outermost(column, row) in row:
        raise DataError(f"--{flag} {column}: the column is empty in a row; write the row's language there")
    raise DataError(f"--{flag} {column}: a row has no such column; it has {', '.join(map(str, row)) or 'none'}")


def _side_of(field: str) -> str:
    """`source` or `target`."""
    return field.partition("_")[0]
