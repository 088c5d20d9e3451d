"""The usage that responses report, in every form in which they report it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import httpx
import pydantic
import pytest

from shmlimit.llm import Usage, UsageReader, usage

CHAT = {
    "choices": [{"message": {"role": "assistant", "content": 'the word "usage"'}}],
    "usage": {
        "prompt_tokens": 100,
        "completion_tokens": 40,
        "total_tokens": 140,
        "prompt_tokens_details": {"cached_tokens": 64},
        "completion_tokens_details": {"reasoning_tokens": 8},
    },
}
RESPONSES = {
    "output": [],
    "usage": {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 64},
        "output_tokens": 40,
        "output_tokens_details": {"reasoning_tokens": 8},
        "total_tokens": 140,
    },
}
MESSAGES = {
    "type": "message",
    "content": [{"type": "text", "text": "Hello"}],
    "usage": {
        "input_tokens": 30,
        "cache_creation_input_tokens": 6,
        "cache_read_input_tokens": 64,
        "output_tokens": 40,
    },
}
GENERATED = {
    "candidates": [{"finishReason": "STOP"}],
    "usageMetadata": {
        "promptTokenCount": 90,
        "toolUsePromptTokenCount": 10,
        "cachedContentTokenCount": 64,
        "candidatesTokenCount": 32,
        "thoughtsTokenCount": 8,
        "totalTokenCount": 140,
    },
}
OF_OPENAI = Usage(100, 40, cached_tokens=64, reasoning_tokens=8)
OF_ANTHROPIC = Usage(100, 40, cached_tokens=64, cache_written_tokens=6)

WHOLE = {
    "chat completions": (CHAT, OF_OPENAI),
    "the responses API": (RESPONSES, OF_OPENAI),
    "messages": (MESSAGES, OF_ANTHROPIC),
    "generateContent": (GENERATED, OF_OPENAI),
    "generateContent in a library's spelling": (
        {"usage_metadata": {"prompt_token_count": 100, "candidates_token_count": 40, "total_token_count": 140}},
        Usage(100, 40),
    ),
    "embeddings": ({"usage": {"prompt_tokens": 100, "total_tokens": 100}}, Usage(100, 0)),
    "a service that leaves reasoning out of the output": (
        {"usage": {"prompt_tokens": 100, "completion_tokens": 32, "total_tokens": 140}},
        Usage(100, 40),
    ),
    "Amazon's converse": (
        {"usage": {"inputTokens": 36, "cacheReadInputTokens": 64, "outputTokens": 40, "totalTokens": 140}},
        Usage(100, 40, cached_tokens=64),
    ),
}

STREAMS: dict[str, tuple[list[dict[str, Any]], Usage]] = {
    "chat completions": (
        [
            {"choices": [{"delta": {"content": "Hel"}}], "usage": None},
            {"choices": [{"delta": {"content": "lo, \u00fcsage"}}], "usage": None},
            {"choices": [], "usage": CHAT["usage"]},
        ],
        OF_OPENAI,
    ),
    "chat completions with a running count": (
        [
            {"choices": [{"delta": {}}], "usage": {"prompt_tokens": 100, "completion_tokens": count}}
            for count in (0, 20, 40)
        ],
        Usage(100, 40),
    ),
    "the responses API": (
        [
            {"type": "response.created", "response": {"usage": None}},
            {"type": "response.output_text.delta", "delta": "usage"},
            {"type": "response.completed", "response": RESPONSES},
        ],
        OF_OPENAI,
    ),
    "messages": (
        [
            {"type": "message_start", "message": {**MESSAGES, "usage": {**MESSAGES["usage"], "output_tokens": 1}}},
            {"type": "content_block_delta", "delta": {"text": "Hello"}},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 40}},
            {"type": "message_stop"},
        ],
        OF_ANTHROPIC,
    ),
    "generateContent": (
        [
            {"candidates": [{"content": {}}], "usageMetadata": {"promptTokenCount": 90, "totalTokenCount": 90}},
            GENERATED,
        ],
        OF_OPENAI,
    ),
    "Groq": ([{"choices": [{"delta": {}}], "x_groq": {"usage": CHAT["usage"]}}], OF_OPENAI),
}


def as_object(document: Any) -> Any:
    if isinstance(document, dict):
        return SimpleNamespace(**{name: as_object(value) for name, value in document.items()})
    return [as_object(each) for each in document] if isinstance(document, list) else document


def as_model(document: Any) -> Any:
    if isinstance(document, dict):
        model = pydantic.create_model("Model", __config__=pydantic.ConfigDict(extra="allow"))
        return model(**{name: as_model(value) for name, value in document.items()})
    return [as_model(each) for each in document] if isinstance(document, list) else document


def as_events(parts: list[dict[str, Any]], line_end: str = "\n", fields: str = "") -> bytes:
    events = [f"{fields}data: {json.dumps(part, ensure_ascii=False)}{line_end * 2}" for part in parts]
    return "".join([*events, f": a comment{line_end}data: [DONE]{line_end * 2}"]).encode()


@pytest.mark.parametrize("shape", WHOLE)
@pytest.mark.parametrize(
    "form",
    [
        lambda document: document,
        as_object,
        as_model,
        json.dumps,
        lambda document: json.dumps(document, indent=2).encode(),
        lambda document: httpx.Response(200, json=document),
        lambda document: [json.dumps(document)[:9], json.dumps(document)[9:]],
    ],
    ids=["dictionary", "object", "model", "text", "bytes", "response", "pieces"],
)
def test_a_response_says_what_it_used_in_every_form(shape: str, form: Any) -> None:
    document, expected = WHOLE[shape]
    assert usage(form(document)) == expected


@pytest.mark.parametrize("form", [lambda record: record, as_object, as_model])
def test_a_record_of_usage_is_read_by_itself(form: Any) -> None:
    assert usage(form(MESSAGES["usage"])) == OF_ANTHROPIC


@pytest.mark.parametrize("shape", STREAMS)
def test_a_stream_says_what_it_used_as_chunks_events_lines_and_pieces(shape: str) -> None:
    parts, expected = STREAMS[shape]
    assert usage(parts) == expected
    assert usage(iter(parts)) == expected
    assert usage([as_object(part) for part in parts]) == expected
    assert usage([as_model(part) for part in parts]) == expected
    assert usage([SimpleNamespace(event="any", data=json.dumps(part)) for part in parts]) == expected
    for line_end in ("\n", "\r\n", "\r"):
        for fields in ("", f"event: some{line_end}id: 7{line_end}"):
            body = as_events(parts, line_end, fields)
            assert usage(body) == expected
            assert usage(body.decode().split(line_end)) == expected
            assert usage([line for line in body.decode().split(line_end) if line]) == expected
            for size in (1, 2, 3, 7, 64, 1000):
                assert usage([body[at : at + size] for at in range(0, len(body), size)]) == expected
    assert usage("\n".join(map(json.dumps, parts))) == expected
    assert usage(json.dumps(parts, indent=1)) == expected


@pytest.mark.parametrize("shape", STREAMS)
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_stream_is_complete_once_its_last_report_has_come(shape: str, cut: int) -> None:
    parts, _ = STREAMS[shape]
    has_mark = shape not in ("chat completions with a running count", "Groq")
    reader = UsageReader()
    for part in parts:
        assert not reader.is_complete or part == {"type": "message_stop"}
        reader.read(part)
    assert reader.is_complete == has_mark
    reader = UsageReader()
    body = as_events(parts)
    for at in range(0, len(body), cut):
        reader.read(body[at : at + cut])
    assert reader.is_complete


def test_an_event_of_several_lines_is_one_document() -> None:
    lines = json.dumps(CHAT, indent=1).splitlines()
    body = "".join(f"data: {line}\n" for line in lines) + "\n"
    assert usage(body) == OF_OPENAI
    assert usage([body[:200], body[200:]]) == OF_OPENAI


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"usage": None},
        {"usage": {"prompt_tokens": None}},
        {"usage": {"prompt_tokens": "12", "completion_tokens": True}},
        {"usage": {"prompt_tokens": -1}},
        {"usage": [1]},
        {"choices": []},
        None,
        "",
        b"",
        "usage",
        "data: {usage",
        b"\xff\xfeusage",
        "[" * 100_000 + "usage",
        [],
        7,
        object(),
        httpx.Response(200, stream=httpx.ByteStream(b"{}")),
    ],
    ids=lambda said: type(said).__name__,
)
def test_what_says_nothing_of_usage_is_nothing(said: Any) -> None:
    assert usage(said) is None


def test_the_numbers_add_up() -> None:
    assert OF_ANTHROPIC.total_tokens == 140
    assert OF_ANTHROPIC.uncached_tokens == 36
    assert Usage(200, 80, 128, 6, 8) == OF_OPENAI + OF_ANTHROPIC


def test_an_asynchronous_stream_is_no_response() -> None:
    async def stream() -> Any:
        yield CHAT

    with pytest.raises(TypeError, match=r"Call\.watch"):
        usage(stream())
