"""The usage that a response reports, in the words of OpenAI, Anthropic or Google."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# Each provider's names. No provider uses two names of one of these lists in the same record.
_INPUT = ("input_tokens", "prompt_tokens", "promptTokenCount", "prompt_token_count", "inputTokens")
_OUTPUT = (
    "output_tokens",
    "completion_tokens",
    "candidatesTokenCount",
    "candidates_token_count",
    "responseTokenCount",
    "response_token_count",
    "outputTokens",
)
_TOTAL = ("total_tokens", "totalTokenCount", "total_token_count", "totalTokens")
# Input that Anthropic, Amazon and Google count separately, not in the input.
_CACHE_READ_BESIDE = ("cache_read_input_tokens", "cacheReadInputTokens")
_CACHE_WRITTEN_BESIDE = ("cache_creation_input_tokens", "cacheWriteInputTokens")
_TOOLS_BESIDE = ("toolUsePromptTokenCount", "tool_use_prompt_token_count")
# Input that the others include in the input.
_CACHED_WITHIN = ("cachedContentTokenCount", "cached_content_token_count", "prompt_cache_hit_tokens")
_INPUT_DETAILS = ("prompt_tokens_details", "input_tokens_details", "input_token_details")
_CACHED_IN_DETAILS = ("cached_tokens", "cache_read")
# Output that Google counts separately, and OpenAI includes in the output.
_THOUGHTS_BESIDE = ("thoughtsTokenCount", "thoughts_token_count")
_OUTPUT_DETAILS = ("completion_tokens_details", "output_tokens_details", "output_token_details")
_REASONING_IN_DETAILS = ("reasoning_tokens", "thinking_tokens", "reasoning")

# Where a response, or an event of a stream, has its record.
_RECORDS = ("usage", "usageMetadata", "usage_metadata")
_AROUND_RECORDS = ("response", "message", "metadata", "x_groq")


@dataclass(frozen=True)
class Usage:
    """How many tokens a call used.

    Attributes:
        input_tokens: The whole input, including what was read from a cache or written to one.
        output_tokens: The whole output, including the reasoning.
        cached_tokens: Of the input, what was read from a cache.
        cache_written_tokens: Of the input, what was written to a cache.
        reasoning_tokens: Of the output, the reasoning.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_written_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Input and output."""
        return self.input_tokens + self.output_tokens

    @property
    def uncached_tokens(self) -> int:
        """The input that was not read from a cache, which is what Anthropic's limits of input tokens count."""
        return self.input_tokens - self.cached_tokens

    def __add__(self, other: Usage) -> Usage:
        """The usage of two calls together."""
        return Usage(*(mine + its for mine, its in zip(_counts(self), _counts(other), strict=True)))

    def __or__(self, other: Usage) -> Usage:
        """What two reports of one call say together: a later part of a stream repeats or exceeds an earlier one."""
        return Usage(*(max(both) for both in zip(_counts(self), _counts(other), strict=True)))


def _counts(usage: Usage) -> tuple[int, ...]:
    return (
        usage.input_tokens,
        usage.output_tokens,
        usage.cached_tokens,
        usage.cache_written_tokens,
        usage.reasoning_tokens,
    )


def member(of: object, name: str) -> object:
    """An entry of a mapping or an attribute of any other object.

    Args:
        of: The mapping or object, of any library.
        name: The entry or attribute.

    Returns:
        Its value; None if there is none, or if reading it raises, as with the content of a response that was not read.
    """
    try:
        return of.get(name) if isinstance(of, Mapping) else getattr(of, name, None)
    except Exception:
        return None


def reported(response: object) -> Usage | None:
    """Reads the usage that one response, or one part of a stream, reports.

    Args:
        response: A mapping or an object; a record of usage itself is fine, too.

    Returns:
        The usage; None if it reports none.
    """
    found = [read for record in _records(response) if (read := _read(record)) is not None]
    return found[0] if found else _read(response)


def _records(response: object) -> Iterator[object]:
    for holder in (response, *(member(response, name) for name in _AROUND_RECORDS)):
        if holder is not None:
            for name in _RECORDS:
                yield member(holder, name)


def _read(record: object) -> Usage | None:
    given, made = _count(record, _INPUT), _count(record, _OUTPUT)
    if given is None and made is None:
        return None
    read_beside = _count(record, _CACHE_READ_BESIDE) or 0
    written = _count(record, _CACHE_WRITTEN_BESIDE) or 0
    thoughts = _count(record, _THOUGHTS_BESIDE) or 0
    taken = (given or 0) + read_beside + written + (_count(record, _TOOLS_BESIDE) or 0)
    cached = read_beside or _count(record, _CACHED_WITHIN) or _in_details(record, _INPUT_DETAILS, _CACHED_IN_DETAILS)
    # Some services leave the reasoning out of the output, but not out of the total.
    output = max((made or 0) + thoughts, (_count(record, _TOTAL) or 0) - taken)
    return Usage(
        input_tokens=taken,
        output_tokens=output,
        cached_tokens=min(cached, taken),
        cache_written_tokens=written,
        reasoning_tokens=min(thoughts or _in_details(record, _OUTPUT_DETAILS, _REASONING_IN_DETAILS), output),
    )


def _count(record: object, names: tuple[str, ...]) -> int | None:
    for name in names:
        value = member(record, name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


def _in_details(record: object, details: tuple[str, ...], names: tuple[str, ...]) -> int:
    return next((count for name in details if (count := _count(member(record, name), names))), 0)
