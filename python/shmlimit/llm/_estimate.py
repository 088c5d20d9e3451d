"""An upper bound on what a request uses."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any

from shmlimit.llm._usage import member

# Tokens around each entry, item and message: the punctuation of JSON, or the marks of a chat template.
_AROUND_ENTRY = 6
_AROUND_CONTAINER = 4
# Tokens that begin and end a prompt.
_AROUND_PROMPT = 16
# What Anthropic's models are told about tools, beyond what the request says.
_WITH_TOOLS = 1000

_MAX_OUTPUT = ("max_completion_tokens", "max_output_tokens", "max_tokens", "maxOutputTokens", "maxTokens")
_CHOICES = ("n", "best_of", "candidateCount", "candidate_count")
_SETTINGS = ("generationConfig", "generation_config", "inferenceConfig", "config")

_IMAGES = {"image", "image_url", "input_image"}
_OF_IMAGES = {"image_url", "url", "data", "bytes", "file_id", "file_uri", "fileUri"}


def estimate(
    request: Any,
    model: str | None = None,
    *,
    max_output: int = 0,
    image_tokens: int = 5000,
    bytes_per_token: float = 1.0,
) -> int:
    """Computes an upper bound on the tokens that a request may use.

    Without a tokenizer, every byte of text counts as a token, because no tokenizer makes more than one token of a byte.
    English text has about four bytes to a token, so most of this is not used: it comes back when the call is settled,
    and until then others cannot have it. If `tiktoken` is installed and knows the model, text is counted exactly; the
    first time, `tiktoken` may have to fetch a vocabulary.

    What is not in the request cannot be counted, such as files and documents that it refers to, and results of the
    provider's own tools. Add what these may take.

    Args:
        request: The prompt, a list of messages or contents, or the whole body of a request: strings, dictionaries,
            lists, or pydantic models. If a body says how long an answer may be, and how many there are, that counts.
        model: The model, for `tiktoken`; by default the one that the body names.
        max_output: The most tokens that an answer may have, if the request does not say.
        image_tokens: The most tokens that an image takes: 48,169 for gpt-4o-mini; other models take less than the
            default.
        bytes_per_token: How many bytes of text count as a token. With more than 1, the result is closer to what is
            used, but no longer a bound.

    Returns:
        The number of tokens.

    Raises:
        TypeError: Something in the request is none of these, so nothing says what it takes.
        ValueError: `bytes_per_token` is not positive.
    """
    if not bytes_per_token > 0:
        raise ValueError(f"bytes_per_token is {bytes_per_token!r}, but must be positive")
    said = member(request, "model") if model is None else model
    tokenizer = _counter(said if isinstance(said, str) else None)
    count = tokenizer or (lambda text: math.ceil(_bytes(text) / bytes_per_token))
    tokens = _AROUND_PROMPT
    left: list[tuple[Any, bool]] = [(request, False)]
    while left:
        part, is_in_image = left.pop()
        if isinstance(part, str):
            tokens += count(part)
        elif isinstance(part, (bytes, bytearray)):
            tokens += len(part)
        elif part is None or isinstance(part, (int, float)):
            tokens += len(str(part))
        elif isinstance(part, (list, tuple)):
            tokens += _AROUND_CONTAINER + len(part)
            left.extend((each, is_in_image) for each in part)
        elif isinstance(part, Mapping):
            begins_image = _is_image(part) and not is_in_image
            tokens += _AROUND_CONTAINER + image_tokens * begins_image
            for name, value in part.items():
                tokens += _AROUND_ENTRY + count(str(name))
                if not ((is_in_image or begins_image) and name in _OF_IMAGES and isinstance(value, (str, bytes))):
                    left.append((value, is_in_image or begins_image))
        elif isinstance(dumped := _dumped(part), Mapping):
            left.append((dumped, is_in_image))
        else:
            raise TypeError(f"{part!r} cannot be counted: give strings, dictionaries and lists")
    return tokens + _output(request, max_output) + _WITH_TOOLS * bool(member(request, "tools"))


def _dumped(part: object) -> object:
    """The fields of a pydantic model."""
    dump = member(part, "model_dump")
    return dump(exclude_none=True) if callable(dump) else None


def _output(request: Any, max_output: int) -> int:
    """The tokens of the longest answers that a request allows."""
    if not isinstance(request, Mapping):
        return max_output
    settings = [request, *(member(request, name) for name in _SETTINGS)]
    said = [length for each in settings for name in _MAX_OUTPUT if (length := _positive(member(each, name)))]
    choices = [number for each in settings for name in _CHOICES if (number := _positive(member(each, name)))]
    return max(said, default=max_output) * max(choices, default=1)


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _is_image(part: Mapping[Any, Any]) -> bool:
    kinds = (part.get("mime_type"), part.get("mimeType"), part.get("media_type"))
    return part.get("type") in _IMAGES or any(isinstance(kind, str) and kind.startswith("image/") for kind in kinds)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


@functools.lru_cache(maxsize=64)
def _counter(model: str | None) -> Callable[[str], int] | None:
    """Counts the tokens of a text, if `tiktoken` is installed and knows the model."""
    if model is None:
        return None
    try:
        tiktoken = importlib.import_module("tiktoken")
        encoding: Any = tiktoken.encoding_for_model(model)
    except Exception:
        # It is not installed, does not know the model, or cannot fetch its vocabulary.
        return None
    return lambda text: len(encoding.encode(text, disallowed_special=()))
