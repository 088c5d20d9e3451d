"""The usage that streams and bodies report, read as their parts pass."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

from shmlimit.llm._failures import Failure
from shmlimit.llm._usage import Usage, member, reported

_LINE_END = re.compile(rb"\r\n|\n|\r")
# The events of Anthropic and of the responses API after which a stream's usage is known. OpenAI's chunk with the usage
# has no choices, and Google's says why the stream finished.
_LAST = {"message_delta", "message_stop", "response.completed", "response.incomplete", "response.failed"}
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
# Most events are text of the answer, and need no parsing.
_WORTH_PARSING = re.compile(rb'usage|"error"')


def usage(response: object) -> Usage | None:
    """Reads the usage that a response reports.

    Args:
        response: A response of OpenAI's chat completions or responses API, of Anthropic's messages, of Google's
            `generateContent`, or of a service that answers like one of these: an object of a client library, a
            dictionary, the text or bytes of the body, or an HTTP response that was read. Or the parts of one stream:
            a list or an iterator of chunks, events, lines or bytes, which is read to its end.

    Returns:
        The usage; None if the response reports none.

    Raises:
        TypeError: It is an asynchronous stream: only `Call.watch` can read it.
    """
    reader = UsageReader()
    if hasattr(type(response), "__aiter__"):
        raise TypeError(f"{type(response).__name__!r} is an asynchronous stream: pass it through Call.watch")
    if isinstance(response, (list, tuple, Iterator)):
        for part in response:
            reader.read(part)
    else:
        reader.read(response)
    return reader.usage


class UsageReader:
    """Reads the usage of one response from its parts, in whatever pieces they come.

    Parts are chunks and events of client libraries, dictionaries, and lines or arbitrary pieces of the body, whether
    it has server-sent events, one JSON document, or one in each line.

    Attributes:
        is_complete: Whether the last report has come. A caller that knows that the response has ended may set it.
    """

    def __init__(self) -> None:
        self.is_complete = False
        self._usage: Usage | None = None
        self._failure: Failure | None = None
        self._text = _Text()

    def read(self, part: object) -> None:
        """Reads a part. Parts that say nothing of the usage, or make no sense, are skipped."""
        if isinstance(part, str):
            part = part.encode("utf-8", "surrogatepass")
        if isinstance(part, (bytes, bytearray, memoryview)):
            for document in self._text.documents(bytes(part)):
                self._note(document)
            self.is_complete = self.is_complete or self._text.is_done
        elif isinstance(part, (list, tuple)):
            # Such as the pairs of `iter_chunks` of aiohttp.
            for each in part:
                self.read(each)
        elif part is not None:
            self._note(part)

    @property
    def usage(self) -> Usage | None:
        """What was reported so far; None if nothing was."""
        self._finish()
        return self._usage

    @property
    def failure(self) -> Failure | None:
        """What an error among the parts says; None if there was none. A stream may fail after its status of 200."""
        self._finish()
        return self._failure

    def _finish(self) -> None:
        for document in self._text.unfinished():
            self._note(document)

    def _note(self, document: object) -> None:
        if isinstance(document, list):
            for each in document:
                self._note(each)
            return
        said = reported(document)
        if said is None and not isinstance(document, Mapping):
            body = member(document, "content")
            # An event that a library has split off a stream has its JSON as `data`.
            body = body if isinstance(body, bytes) else member(document, "data")
            if isinstance(body, (bytes, str)):
                said = usage(body)
        if said is not None:
            self._usage = said if self._usage is None else self._usage | said
            self.is_complete = self.is_complete or _is_last(document)
        self._failure = self._failure or Failure.in_body(document)


def _is_last(document: object) -> bool:
    """Whether the usage that this part of a stream reports is complete."""
    if member(document, "type") in _LAST or member(document, "choices") == []:
        return True
    candidates = member(document, "candidates")
    return isinstance(candidates, list) and any(
        member(each, "finishReason") or member(each, "finish_reason") for each in candidates
    )


class _Text:
    """Takes JSON documents out of a body that comes in pieces.

    Attributes:
        is_done: Whether the stream has said that it ends.
    """

    def __init__(self) -> None:
        self.is_done = False
        self._pieces: list[bytes] = []
        """What has come of a line; of the whole body if it has no events."""
        self._has_events: bool | None = None
        self._data: list[bytes] = []
        """The lines of an event's data."""

    def documents(self, piece: bytes) -> Iterator[object]:
        """Takes a piece, and yields the documents that end in it."""
        if self._has_events is None:
            start = b"".join([*self._pieces, piece]).lstrip(b"\xef\xbb\xbf \t\r\n")
            if start:
                self._has_events = not start.startswith((b"{", b"["))
        if not self._has_events:
            self._pieces.append(piece)
            return
        # Lines that were already split come without their line ends.
        if self._pieces and (not piece or piece.startswith(_FIELDS)) and _is_whole(b"".join(self._pieces)):
            piece = b"\n" + piece
        elif not self._pieces and not piece:
            piece = b"\n"
        has_held_back = bool(self._pieces) and self._pieces[-1].endswith(b"\r")
        if not has_held_back and b"\n" not in piece and b"\r" not in piece:
            self._pieces.append(piece)
            return
        text = b"".join([*self._pieces, piece])
        # The second half of this line's end may be in the next piece.
        cut = b"\r" if text.endswith(b"\r") else b""
        *lines, rest = _LINE_END.split(text[: len(text) - len(cut)])
        self._pieces = [rest + cut] if rest + cut else []
        for line in lines:
            yield from self._line(line)

    def unfinished(self) -> Iterator[object]:
        """Yields the documents in what has come but has not ended."""
        text = b"".join(self._pieces)
        if self._has_events:
            line = text.rstrip(b"\r")
            data = [*self._data, line[5:]] if line.startswith(b"data:") else self._data
            yield from _parsed(data)
        else:
            yield from _parsed(text.splitlines())

    def _line(self, line: bytes) -> Iterator[object]:
        if line.startswith(b"data:"):
            self._data.append(line[5:])
            self.is_done = self.is_done or line[5:].strip() == b"[DONE]"
        elif not line:
            data, self._data = self._data, []
            yield from _parsed(data)


def _is_whole(line: bytes) -> bool:
    """Whether a line of an event is complete, so that nothing more of it can follow."""
    if not line.startswith(b"data:"):
        return line.startswith(_FIELDS)
    data = line[5:].strip()
    return data == b"[DONE]" or isinstance(_json(data), dict)


def _parsed(lines: list[bytes]) -> Iterable[object]:
    """The documents in some lines: one that they make up together, or one in each."""
    text = b"\n".join(lines)
    if not _WORTH_PARSING.search(text):
        return []
    document = _json(text)
    if document is not None:
        return [document]
    return [document for line in lines if (document := _json(line)) is not None]


def _json(text: bytes) -> object:
    try:
        document: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document
