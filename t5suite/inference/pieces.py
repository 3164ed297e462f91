"""The pieces of an answer, as a model writes them.

>>> streamer = PieceStreamer(print, lambda ids: tokenizer.decode(ids))
>>> model.generate(**inputs, streamer=streamer)
"""

from collections.abc import Callable

from transformers.generation.streamers import BaseStreamer

# What a decoder shows of a character whose last bytes are still to come.
UNFINISHED_CHARACTER = "\ufffd"


class PieceStreamer(BaseStreamer):
    """Hands on what every further token adds to the text of one answer.

    Args:
      on_text: called with each piece, which is not empty; an exception that it raises ends the generation.
      text_of: the text of all ids so far.
    """

    def __init__(self, on_text: Callable[[str], None], text_of: Callable[[list[int]], str]):
        self.on_text = on_text
        self.text_of = text_of
        self.ids: list[int] = []
        self.sent_text = ""
        self.has_begun = False

    def put(self, value) -> None:
        """Called by `generate`: first with the prompt or the decoder's first tokens, then with each token."""
        if not self.has_begun:
            self.has_begun = True
            return
        self.ids += value.reshape(-1).tolist()
        text = self.text_of(self.ids)
        if not text.endswith(UNFINISHED_CHARACTER):
            self._send(text)

    def end(self) -> None:
        """Called by `generate` after the last token."""

    def send_rest(self, text: str) -> None:
        """Hands on what the whole answer has beyond the pieces so far."""
        self._send(text)

    def _send(self, text: str) -> None:
        if len(text) > len(self.sent_text) and text.startswith(self.sent_text):
            piece = text[len(self.sent_text) :]
            self.sent_text = text
            self.on_text(piece)
