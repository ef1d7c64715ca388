"""A client that asks a server for agents, over no wire or over standard input and output."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
from mcp import Client, StdioServerParameters

from commtrace.analysis.agents.roots import Roots
from commtrace.analysis.agents.server import mcp_server

MOST_TOKENS = 4_000
LETTERS_IN_A_TOKEN = 3
"""Of JSON with many numbers; of prose it is four."""


class Asked:
    """A client that counts its calls, and checks each answer against the schema of the tool and the most it may be."""

    def __init__(self, *folders: Path, over_wire: bool = False) -> None:
        self.server = None if over_wire else mcp_server(Roots(folders))
        self.folders, self.calls = folders, 0

    def _connected(self) -> Client:
        if self.server is not None:
            return Client(self.server)
        command = ["-m", "commtrace", "mcp", *map(str, self.folders)]
        return Client(StdioServerParameters(command=sys.executable, args=command))

    def all(self, questions: Sequence[tuple[str, dict[str, Any]]]) -> list[Any]:
        """The structure that answers each call; of an error, its text."""
        return asyncio.run(self._all(questions))

    async def _all(self, questions: Sequence[tuple[str, dict[str, Any]]]) -> list[Any]:
        async with self._connected() as client:
            schemas = {tool.name: tool.output_schema for tool in (await client.list_tools()).tools}
            answers = []
            for name, arguments in questions:
                self.calls += 1
                result = await client.call_tool(name, arguments)
                text = "".join(part.text for part in result.content)
                if result.is_error:
                    answers.append(text)
                    continue
                jsonschema.validate(result.structured_content, schemas[name])
                twice = len(json.dumps(result.structured_content)) + len(json.dumps(json.loads(text)))
                assert twice <= LETTERS_IN_A_TOKEN * MOST_TOKENS * 2
                assert len(text) <= LETTERS_IN_A_TOKEN * MOST_TOKENS
                answers.append(result.structured_content)
            return answers

    def one(self, tool: str, /, **arguments: Any) -> Any:
        """The answer to one call."""
        return self.all([(tool, arguments)])[0]

    def tools(self) -> list[str]:
        """The names of its tools."""

        async def listed() -> list[str]:
            async with self._connected() as client:
                return [tool.name for tool in (await client.list_tools()).tools]

        return asyncio.run(listed())

    def read(self, uri: str) -> str:
        """The text of a resource."""

        async def read() -> str:
            async with self._connected() as client:
                return "".join(part.text for part in (await client.read_resource(uri)).contents)

        return asyncio.run(read())
