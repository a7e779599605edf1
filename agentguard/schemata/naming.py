"""How a cluster of schemata is called: an id, a title and a definition out of what its members share."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_TITLED: Final = 2
_DEFINED: Final = 8
_PART = re.compile(r"[^a-z0-9]+")
_LONGEST_TITLE: Final = 120
_LONGEST_CODE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """Id, title and definition of a code, as a taxonomy file takes them."""

    code: str
    title: str
    definition: str


def name_of(traits: Sequence[str], sentences: Sequence[str], names: Counter[str]) -> Name:
    """Name by the most telling traits.

    Args:
        traits: names of the traits, the most telling first; may be empty.
        sentences: what they say; else what the most typical schema says.
        names: ids given so far and how often; counted on.
    """
    said = [one.strip() for one in sentences if one.strip()] or ["Failures that resemble each other."]
    base = "_".join(part for name in traits[:_TITLED] if (part := slug(name)))
    if not base:
        base = f"kind_{hashlib.sha256(said[0].encode(errors='replace')).hexdigest()[:8]}"
    names[base] += 1
    code = base[:_LONGEST_CODE] + (f"_{names[base]}" if names[base] > 1 else "")
    return Name(
        code=code,
        title=_title(said[:_TITLED]),
        definition="In these failures the step at fault has this in common. " + " ".join(said[:_DEFINED]),
    )


def slug(text: str) -> str:
    """A text as a part of an id: lower case, letters and digits, beginning with a letter; may be empty."""
    return _PART.sub("_", text.lower()).strip("_").lstrip("0123456789_")


def _title(sentences: Sequence[str]) -> str:
    parts = [re.sub(r"^(?:It|Its|A|The) ", "", one.rstrip(".")) for one in sentences]
    title = "; ".join(parts)
    return (title[:1].upper() + title[1:])[:_LONGEST_TITLE].rstrip("; ")
