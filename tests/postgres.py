"""Private PostgreSQL server for tests, on loopback: started on first use, stopped by its process id.

Import the fixtures in a conftest.py: ``from tests.postgres import postgres, postgres_url``. If PostgreSQL is
not installed, the tests are skipped; with ``CI=true`` they fail, since CI must provide it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

PASSWORD = "p@ss/w:rd"
_HOW = "PostgreSQL is not installed: apt-get install -y postgresql"
_START_S = 60.0


def programs() -> Path | None:
    """Return the folder with initdb and postgres; None if they are not installed."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    return None


class Postgres:
    """One server and its folder."""

    def __init__(self, folder: Path, bin: Path) -> None:
        self.folder, self._bin = folder, bin
        self._data = folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._free: list[str] = []
        self.port = _free_port()
        secret = folder / "password"
        secret.write_text(PASSWORD)
        self._user = _unprivileged()
        if self._user is not None:
            for path in (folder, secret):
                os.chown(path, self._user.pw_uid, self._user.pw_gid)
        self._run(
            "initdb", "-D", str(self._data), "-U", "tester", "--auth=scram-sha-256", f"--pwfile={secret}",
            "--no-sync", "--encoding=UTF8", "--locale=C",
        )  # fmt: skip

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": 60,
            "shared_buffers": "16MB",
            "fsync": "off",  # tests do not need durability after a power failure
        }
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen(
            [self._bin / "postgres", "-D", self._data, *options], stdout=log, stderr=log, **self._as_user()
        )
        log.close()
        self._wait()

    def stop(self) -> None:
        """Stop the server at once, as ``pg_ctl stop -m fast`` does: clients lose their connections."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(10)
        self._process = None

    def url(self, database: str) -> str:
        """Return the URL of a database, as a user writes it."""
        return f"postgresql://tester:p%40ss%2Fw%3Ard@127.0.0.1:{self.port}/{database}"

    def create(self) -> str:
        """Return the name of an empty database: a reused one, or a new one."""
        if self._free:
            return self._free.pop()
        name = f"t_{secrets.token_hex(6)}"
        with self._connect() as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return name

    def give_back(self, name: str) -> None:
        """Empty a database for reuse: faster than a new one, which has a thousand files."""
        with self._connect(name) as connection:
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        self._free.append(name)

    def _connect(self, name: str = "postgres") -> psycopg.Connection:
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="tester", password=PASSWORD, dbname=name,
            autocommit=True, connect_timeout=30,
        )  # fmt: skip

    def _wait(self) -> None:
        until = time.monotonic() + _START_S
        while True:
            try:
                self._connect().close()
                return
            except psycopg.OperationalError:
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError((self.folder / "log").read_text()[-2000:]) from None
                time.sleep(0.05)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._bin / program, *arguments], capture_output=True, text=True, check=False, **self._as_user()
        )
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stdout[-1000:]}{done.stderr[-1000:]}")

    def _as_user(self) -> dict[str, object]:
        """Return the subprocess options for another user, since PostgreSQL refuses to run as root."""
        if self._user is None:
            return {"cwd": self.folder}
        return {
            "cwd": self.folder, "user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []
        }  # fmt: skip


_STARTED = pytest.StashKey[Postgres]()


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest) -> Postgres:
    """Run one server per session. A test that stops it must start it again."""
    config = request.config
    if _STARTED not in config.stash:  # modules import separate fixtures, but share one server
        config.stash[_STARTED] = _started(config)
    return config.stash[_STARTED]


def _started(config: pytest.Config) -> Postgres:
    bin = programs()
    if bin is None:
        if os.environ.get("CI") == "true":
            pytest.fail(_HOW)
        pytest.skip(_HOW)
    # Not tmp_path, since another user needs access; in memory, since a server has a thousand files.
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2**29
    folder = Path(tempfile.mkdtemp(prefix="agentguard-pg-", dir=memory if roomy else None))
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    server = Postgres(folder, bin)
    config.add_cleanup(server.stop)
    server.start()
    return server


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """Return the URL of an empty database."""
    name = postgres.create()
    yield postgres.url(name)
    postgres.give_back(name)


def _unprivileged() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise RuntimeError("PostgreSQL does not run as root, and there is no user postgres or nobody")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
