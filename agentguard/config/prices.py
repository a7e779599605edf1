"""Price table of models: US dollars per million tokens, from the user's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

_TOKENS_PER_PRICE = 1_000_000

Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class TokenPrice(BaseModel):
    """Price of a model in US dollars per million tokens.

    Attributes:
        input: prompt tokens.
        cached_input: prompt tokens from the provider's cache; null for the price of ``input``.
        output: completion tokens.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: Dollars
    output: Dollars
    cached_input: Dollars | None = None

    def compute_cost(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> float:
        """Return the cost in US dollars; ``cached_tokens`` are part of ``prompt_tokens``."""
        cached = min(cached_tokens, prompt_tokens)
        cached_price = self.input if self.cached_input is None else self.cached_input
        dollars = (prompt_tokens - cached) * self.input + cached * cached_price
        return (dollars + completion_tokens * self.output) / _TOKENS_PER_PRICE


PriceTable = Mapping[str, TokenPrice]
"""Shell pattern of model names (``gpt-4o*``) to price. The first pattern that matches applies."""


def find_price(prices: PriceTable, model: str | None) -> TokenPrice | None:
    """Return the price of a model; None if no pattern matches."""
    if model is None:
        return None
    return next((price for pattern, price in prices.items() if fnmatchcase(model, pattern)), None)
