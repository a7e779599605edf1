"""The reference of the configuration is complete and up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.write_configuration_reference import PAGES, build_page, iter_sections, read_descriptions

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("path", PAGES)
def test_page_is_up_to_date(path: str) -> None:
    written = (ROOT / path).read_text(encoding="utf-8")
    assert written == build_page(*PAGES[path]), "run python tools/write_configuration_reference.py"


@pytest.mark.parametrize("path", PAGES)
def test_every_option_has_a_description(path: str) -> None:
    missing = [
        f"{place}.{name}"
        for place, section in iter_sections(PAGES[path][2])
        for name in section.model_fields
        if not read_descriptions(section).get(name)
    ]
    assert missing == []
