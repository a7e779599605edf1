"""Factory of the HTTP backends of replicas, and their API keys."""

from __future__ import annotations

import hashlib
import os

from agentguard.backends.base import Backend
from agentguard.backends.config import ReplicaOptions
from agentguard.backends.replica import Connect
from agentguard.errors import ConfigError
from agentguard.options import Options


def build_http_backend_factory(limits: Options | None = None) -> Connect:
    """Return a function that creates the HTTP backend of a replica; it raises ConfigError.

    Args:
        limits: `agentguard.backends.http.HttpLimits` of each backend; None for the defaults.
    """

    def connect(options: ReplicaOptions) -> Backend:
        from agentguard.backends.http import ApiKeyFile, EgressPolicy, HttpBackend, HttpLimits

        key = read_api_key(options)
        try:
            return HttpBackend(
                options.url,
                name=options.name,
                key=key,
                key_file=None if options.api_key_file is None else ApiKeyFile(options.api_key_file),
                auth=options.auth,
                query=options.query,
                headers=tuple(
                    (name.lower().encode(), value.encode()) for name, value in options.headers.items()
                ),
                egress=EgressPolicy(
                    allow_private=options.allow_private,
                    allow_metadata=options.allow_metadata,
                    ca_file=options.ca_file,
                ),
                limits=limits if isinstance(limits, HttpLimits) else None,
            )
        except ConfigError as error:
            raise ConfigError(f"backends: replica {options.name}: {error}") from None

    return connect


def read_api_key(options: ReplicaOptions) -> str | None:
    """Return the API key of ``api_key_env``, or None without one. Raises ConfigError if it is not set."""
    if options.api_key_env is None:
        return None
    key = os.environ.get(options.api_key_env, "").strip()
    if not key:
        raise ConfigError(
            f"backends: replica {options.name}: the environment variable {options.api_key_env} with the key "
            "is not set"
        )
    return key


def build_connection_key(options: ReplicaOptions) -> tuple[object, ...]:
    """Return the options on which connections depend, with a hash of the API key; compare it for changes."""
    key = os.environ.get(options.api_key_env, "") if options.api_key_env else ""
    return (
        options.url,
        options.auth,
        options.api_key_file,
        tuple(sorted(options.query.items())),
        tuple(sorted(options.headers.items())),
        options.ca_file,
        options.allow_private,
        options.allow_metadata,
        options.api_key_env,
        hashlib.sha256(key.encode()).hexdigest(),
    )
