"""The reference of the error codes is complete and up to date."""

from __future__ import annotations

import re

from agentguard import errors
from tools.write_error_reference import PAGE, ROOT, build_page, collect_responses, iter_exceptions


def test_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == build_page(), "run python tools/write_error_reference.py"


def test_iter_exceptions_contains_every_public_exception() -> None:
    defined = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.AgentGuardError)
    }
    assert {error for _, error in iter_exceptions(errors.AgentGuardError)} == defined


def test_exception_codes_are_unique() -> None:
    codes = [error.code for _, error in iter_exceptions(errors.AgentGuardError)]
    assert len(codes) == len(set(codes))


def test_codes_on_the_page_of_the_proxy_are_in_the_reference() -> None:
    section = (ROOT / "docs" / "proxy-api.md").read_text(encoding="utf-8").split("\n## Errors\n")[1]
    rows = [line.split("|")[2] for line in section.split("\n## ")[0].splitlines() if line.startswith("| ")]
    codes = {code for row in rows[1:] for code in re.findall(r"`([a-z_]+)`", row)}
    known = {error.code for _, error in iter_exceptions(errors.AgentGuardError)} | {"no_replica"}
    assert codes
    assert codes <= known | set(collect_responses())
