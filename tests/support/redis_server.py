"""A real redis-server with its own folder, killed at the end."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.ports import free_port

START_S = 60.0


class RedisServer:
    """Keep every acknowledged write (appendfsync always), so a test may kill and restart it.

    It listens on a Unix socket in its folder; with `tcp`, on a free port of loopback, where
    another server must reach it.
    """

    def __init__(
        self,
        folder: Path,
        *options: str,
        tcp: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare a server; environment: further variables of its process."""
        program = shutil.which("redis-server")
        if program is None:
            raise RuntimeError("these tests need redis-server: apt-get install redis-server")
        self.port, socket = free_port() if tcp else 0, f"{folder}/redis.sock"
        self.url = self.url_at(self.port) if tcp else f"unix://{socket}?db=0"
        self._client = {"port": self.port} if tcp else {"unix_socket_path": socket}
        self.folder, self._log = folder, folder / "redis.log"
        self._command = [program, "--bind", "127.0.0.1", "--port", str(self.port)]
        self._command += [] if tcp else ["--unixsocket", socket]
        self._command += ["--dir", str(folder), "--logfile", str(self._log), "--save", ""]
        self._command += ["--appendonly", "yes", "--appendfsync", "always", *options]
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def url_at(port: int) -> str:
        """The URL of a server that is reached at this port of loopback."""
        return f"redis://127.0.0.1:{port}/0"

    def start(self) -> Self:
        self._process = subprocess.Popen(
            self._command, env=self._environment, stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"redis-server does not answer: {self._log.read_text()}")
            time.sleep(0.02)
        return self

    def kill(self) -> None:
        """Kill it as `kill -9` and the out-of-memory killer do."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        self.kill()
        self.start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Accept connections and answer nothing until the end of the block."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def command(self, *parts: str | bytes | int) -> object:
        once = Retry(NoBackoff(), 0)
        with redis.Redis(**self._client, socket_timeout=START_S, retry=once) as client:
            return client.execute_command(*parts)

    def _answers(self) -> bool:
        try:
            return bool(self.command("PING"))
        except redis.exceptions.RedisError:
            return False


@contextmanager
def redis_server(folder: Path, *options: str, tcp: bool = False) -> Iterator[RedisServer]:
    """Start a server with command-line `options`. Raises RuntimeError without redis-server."""
    server = RedisServer(folder, *options, tcp=tcp)
    try:
        yield server.start()
    finally:
        server.kill()


class RedisSentinel(RedisServer):
    """A sentinel that alone watches one primary, named `shop`: a quorum of one."""

    def __init__(self, folder: Path, primary: RedisServer) -> None:
        super().__init__(folder, tcp=True)
        settings = folder / "sentinel.conf"  # a sentinel writes its findings there
        settings.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {folder}\nlogfile {self._log}\n"
            f"sentinel monitor shop 127.0.0.1 {primary.port} 1\n"
            "sentinel down-after-milliseconds shop 1000\n"
        )
        self._command = [self._command[0], str(settings), "--sentinel"]


@contextmanager
def redis_sentinel(folder: Path, primary: RedisServer) -> Iterator[RedisSentinel]:
    sentinel = RedisSentinel(folder, primary)
    try:
        sentinel.start()
        yield sentinel
    finally:
        sentinel.kill()
