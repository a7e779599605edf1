"""Fixtures shared by tests against real servers."""

from tests.postgres import postgres, postgres_url  # noqa: F401
