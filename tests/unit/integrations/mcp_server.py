"""MCP server of the tests; it writes the calls that it ran to the file in its first argument."""

from __future__ import annotations

import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

LOG = Path(sys.argv[1])
server = MCPServer("seats")


def _record(text: str) -> None:
    with LOG.open("a") as log:
        log.write(text + "\n")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def find(where: str) -> str:
    """Find a seat."""
    _record(f"find {where}")
    return "nothing found"


@server.tool(annotations=ToolAnnotations(read_only_hint=False, destructive_hint=True))
def charge(amount: int) -> str:
    """Charge the card."""
    _record(f"charge {amount}")
    raise ToolError("the request timed out")


@server.tool()
def book(seat: int) -> str:
    """Book a seat."""
    _record(f"book {seat}")
    return f"seat {seat} is yours"


if __name__ == "__main__":
    server.run("stdio")
