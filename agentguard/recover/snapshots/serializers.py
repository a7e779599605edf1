"""Serialization of states: JSON and bytes by default, pickle on request."""

from __future__ import annotations

from typing import Any, Protocol

import orjson

from agentguard.errors import ConfigError, RecoveryError

_HINT = (
    "let save() return bytes or plain JSON data (dict, list, str, int, float, bool, None), or allow pickle: "
    "snapshots=SnapshotOptions(codec='pickle')"
)
_STRICT_OPTIONS = (
    orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
)


class StateCodec(Protocol):
    """Codec of states; `SnapshotOptions` accepts a custom one."""

    @property
    def name(self) -> str:
        """Name that is stored with each snapshot; a codec reads only snapshots with its own name."""
        ...

    def encode(self, state: Any) -> bytes:
        """Return a state as bytes. Raises ConfigError if the codec cannot encode it."""
        ...

    def decode(self, raw: bytes) -> Any:
        """Return a new object that equals the encoded state."""
        ...


class JsonCodec:
    """Codec of JSON data and bytes; it refuses values that JSON would change: tuples, NaN, dates."""

    name = "json"

    def encode(self, state: Any) -> bytes:
        """Encode a state; see `StateCodec.encode`."""
        if isinstance(state, bytes | bytearray | memoryview):
            return b"b" + bytes(state)
        try:
            raw = orjson.dumps(state, option=_STRICT_OPTIONS)
        except TypeError as error:
            raise ConfigError(f"a state that is not JSON data cannot be saved ({error}): {_HINT}") from None
        if orjson.loads(raw) != state:
            raise ConfigError(f"a state that JSON would change cannot be saved (a tuple, NaN): {_HINT}")
        return b"j" + raw

    def decode(self, raw: bytes) -> Any:
        """Decode a state; see `StateCodec.decode`."""
        return raw[1:] if raw[:1] == b"b" else orjson.loads(raw[1:])


class PickleCodec:
    """Codec of Python objects. To unpickle runs code, so write access to the store permits code execution."""

    name = "pickle"

    def encode(self, state: Any) -> bytes:
        """Encode a state; see `StateCodec.encode`."""
        import pickle

        try:
            return pickle.dumps(state, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # the methods of an object may raise anything
            raise ConfigError(f"a state cannot be pickled: {type(error).__name__}") from None

    def decode(self, raw: bytes) -> Any:
        """Decode a state; see `StateCodec.decode`. Raises RecoveryError if it cannot be unpickled."""
        import pickle

        try:
            return pickle.loads(raw)  # noqa: S301  (only if configured; the class documents the risk)
        except Exception as error:  # the methods of an object may raise anything
            raise RecoveryError(f"a saved state cannot be unpickled: {type(error).__name__}") from None


def get_codec(codec: str | StateCodec) -> StateCodec:
    """Return the built-in codec of a name, or the given codec. Raises ConfigError if the name is unknown."""
    if not isinstance(codec, str):
        return codec
    if codec not in _CODECS:
        raise ConfigError(f"snapshots: codec is {codec!r}, expected one of {', '.join(_CODECS)}")
    return _CODECS[codec]


_CODECS: dict[str, StateCodec] = {"json": JsonCodec(), "pickle": PickleCodec()}
