"""Bounds on what requests use."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pydantic
import pytest

from shmlimit.llm import estimate
from shmlimit.llm._estimate import _counter

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "\u00bfCu\u00e1ntos a\u00f1os tiene? \U0001f642"}]},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "age", "arguments": '{"of": 3}'}}]},
]
TOOLS = [{"type": "function", "function": {"name": "age", "parameters": {"type": "object", "required": ["of"]}}}]


@pytest.fixture
def tokenizer(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A stand-in for tiktoken that knows one model and counts each word as a token; it notes what it was asked."""
    asked: list[str] = []

    def encoding_for_model(model: str) -> Any:
        asked.append(model)
        if model != "known":
            raise KeyError(model)
        return SimpleNamespace(encode=lambda text, disallowed_special: text.split())

    monkeypatch.setitem(sys.modules, "tiktoken", SimpleNamespace(encoding_for_model=encoding_for_model))
    _counter.cache_clear()
    yield asked
    _counter.cache_clear()


@pytest.mark.parametrize(
    "request_",
    [
        "a prompt",
        "\u65e5\u672c\u8a9e" * 50,
        "\ud800 alone",
        CHAT,
        {"model": "any", "messages": CHAT, "tools": TOOLS},
        {"system": "Be brief.", "messages": CHAT, "max_tokens": 10},
        {"systemInstruction": {"parts": [{"text": "Be brief."}]}, "contents": [{"parts": [{"text": "Hello"}]}]},
        {"instructions": "Be brief.", "input": "Hello", "temperature": 0.123456789, "store": False},
    ],
    ids=repr,
)
def test_no_tokenizer_makes_more_tokens_than_an_estimate(request_: Any) -> None:
    text = json.dumps(request_, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    assert estimate(request_) >= len(text)
    assert estimate(request_) <= len(text) + 16 * (text.count(b":") + text.count(b"[") + 2) + 1010


def test_requests_far_too_deep_are_counted_all_the_same() -> None:
    deep: Any = "word"
    for _ in range(100_000):
        deep = [deep]
    assert estimate(deep) > 100_000


@pytest.mark.parametrize(
    ("body", "output"),
    [
        ({}, 50),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 7, "n": 3}, 21),
        ({"max_output_tokens": 7}, 7),
        ({"generationConfig": {"maxOutputTokens": 7, "candidateCount": 2}}, 14),
        ({"n": 2}, 100),
        ({"max_tokens": 10**30}, 10**30),
        ({"max_tokens": -7, "n": 0}, 50),
        ({"max_tokens": True, "n": "3"}, 50),
        ({"max_tokens": None}, 50),
    ],
    ids=repr,
)
def test_a_body_says_how_much_may_be_answered(body: dict[str, Any], output: int) -> None:
    without = dict.fromkeys(body) if "generationConfig" not in body else body
    assert estimate(body, max_output=50) - output == pytest.approx(estimate(without), abs=60) or output > 10**6
    assert estimate(body, max_output=50) >= output


IMAGE = "A" * 100_000


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}", "detail": "high"}},
        {"type": "input_image", "image_url": f"data:image/png;base64,{IMAGE}"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE}},
        {"inline_data": {"mime_type": "image/png", "data": IMAGE}},
        {"inlineData": {"mimeType": "image/png", "data": IMAGE}},
    ],
    ids=lambda part: next(iter(part.values())) if "type" in part else next(iter(part)),
)
def test_an_image_counts_as_what_an_image_takes(part: dict[str, Any]) -> None:
    assert 700 <= estimate([{"role": "user", "content": [part]}], image_tokens=700) <= 1000
    assert estimate([{"role": "user", "content": [part, part]}]) >= 10_000


def test_text_that_claims_to_be_an_image_is_counted() -> None:
    assert estimate([{"type": "image", "text": IMAGE}]) > 100_000
    assert estimate([{"type": "file", "data": IMAGE}]) > 100_000


def test_models_of_libraries_are_counted_and_what_nobody_knows_is_refused() -> None:
    class Message(pydantic.BaseModel):
        role: str
        content: str | None = None

    told = estimate([Message(role="user", content="Hello")])
    assert told == estimate([{"role": "user", "content": "Hello"}])
    for unknown in (object(), [object()], SimpleNamespace(model_dump=lambda **_: object())):
        with pytest.raises(TypeError, match="cannot be counted"):
            estimate(unknown)


def test_bytes_to_a_token_are_the_callers_risk() -> None:
    assert estimate("x" * 4000, bytes_per_token=4) == estimate("x" * 4000) - 3000
    for nonsense in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="positive"):
            estimate("x", bytes_per_token=nonsense)


def test_tiktoken_counts_where_it_knows_the_model(tokenizer: list[str]) -> None:
    text = "four words of text"
    assert estimate(text, "unknown") == estimate(text) == 16 + len(text)
    assert estimate(text, "known") == 16 + 4
    assert estimate({"model": "known", "prompt": text}) < estimate({"model": "unknown", "prompt": text})
    # A vocabulary is not fetched, or found to be missing, again with every request.
    assert tokenizer == ["unknown", "known"]


def test_without_tiktoken_bytes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    _counter.cache_clear()
    assert estimate("four words of text", "gpt-4o") == 16 + 18
