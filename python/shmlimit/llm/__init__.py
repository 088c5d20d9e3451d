"""Calls to language models under limits on requests, tokens and places: reserve the most, settle what was used.

```python
import shmlimit as sl
from shmlimit import llm

limits = sl.open("/dev/shm/openai.limits", config="limits.toml")["openai"]

async def answer(body):
    bound = llm.estimate(body, body["model"], max_output=1024)
    async with llm.Call(limits.acquire_async({"tokens": bound}, timeout=30)) as call:
        stream = await client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True})
        async for chunk in call.watch(stream):
            yield chunk
```

No client library is needed or imported: responses are told apart by what is in them. `docs/llm.md` is the guide.
"""

from shmlimit.llm._call import Call
from shmlimit.llm._estimate import estimate
from shmlimit.llm._stream import UsageReader, usage
from shmlimit.llm._usage import Usage

__all__ = ["Call", "Usage", "UsageReader", "estimate", "usage"]
