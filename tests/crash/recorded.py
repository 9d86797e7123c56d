"""One recorded turn, with arguments that are not JSON, as models do it."""

from __future__ import annotations

from typing import Any

from stateroom.hosting.transcripts import Transcript

ITEMS: list[dict[str, Any]] = [
    {"type": "message", "role": "user", "content": "Where is my order?"},
    {"type": "function_call", "call_id": "call_1", "name": "find", "arguments": "{'not': JSON}"},
    {"type": "function_call_output", "call_id": "call_1", "output": "on its way"},
    {"type": "message", "role": "assistant", "content": "It is on its way, and will be there tomorrow."},
]
TAPE = [Transcript(id="one", source="test", items=ITEMS)]
