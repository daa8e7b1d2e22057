"""Hosts for the processes of a campaign: network namespaces behind a router, or plain loopback.

     here --- router --- redis          one namespace and one /30 of 10.x.y.0/24 each
                |  |  '-- trainer       `here` is where the campaign and its clients run
         service-1 ...

Needs root (CAP_NET_ADMIN, CAP_SYS_ADMIN) and iproute2. Names hold the process that made them and
when it began, so that what a dead run left behind is told from what another is at work with.
"""

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network
from pathlib import Path
from random import Random
from typing import Final, Literal

Mode = Literal["namespaces", "loopback"]
Wanted = Literal["auto", "namespaces", "loopback"]
Shape = Literal["loss", "delay", "narrow"]

PREFIX: Final = "forage-chaos"
NAMESPACES: Final = Path("/var/run/netns")  # where `ip netns` keeps them
CLONE_NEWNET: Final = 0x40000000
REACH_S: Final = 3.0
TRIES: Final = 1_000

SHAPES: Final[Mapping[Shape, Sequence[str]]] = {
    "loss": ("netem", "loss", "20%"),
    "delay": ("netem", "delay", "150ms", "100ms"),  # of the second number more or less: disorder
    "narrow": (
        "tbf",
        "rate",
        "128kbit",
        "burst",
        "4kb",
        "latency",
        "200ms",
    ),  # what waits longer goes
}
"""What `tc` can make of a line, both ways; a kernel need not have all."""


class NetworkError(Exception):
    """No namespaces can be made here, or one can no longer be changed; says why."""


@dataclass(frozen=True)
class Host:
    """Where a process runs: a namespace of its own, or this one."""

    name: str
    address: str = "127.0.0.1"
    namespace: str | None = None

    def command(self, command: Sequence[str]) -> list[str]:
        """The same command on this host; it is executed in place, so its process id stays."""
        if self.namespace is None:
            return [*command]
        return ["ip", "netns", "exec", self.namespace, *command]

    def socket(self) -> socket.socket:
        """A TCP socket of this host, held by this process."""
        if self.namespace is None:
            return socket.socket()
        with ThreadPoolExecutor(1) as thread:  # a thread that has entered does not come back
            return thread.submit(_socket_in, NAMESPACES / self.namespace).result()

    def free_port(self) -> int:
        with self.socket() as free:
            free.bind((self.address, 0))
            port: int = free.getsockname()[1]
            return port


HERE: Final = Host("here")


@dataclass(frozen=True)
class Network:
    """Hosts by name, and what can go wrong between them.

    because   why the hosts are not namespaces; empty where they are
    shapes    those of SHAPES that `tc` and the kernel have
    """

    mode: Mode
    hosts: Mapping[str, Host]
    because: str = ""
    shapes: tuple[Shape, ...] = ()
    router: str = field(default="", repr=False)

    @contextmanager
    def cut_off(self, host: str) -> Iterator[None]:
        """Its line is down: nobody reaches it, nor it anybody."""
        _ip("-n", self.router, "link", "set", host, "down")
        try:
            yield
        finally:
            _ip("-n", self.router, "link", "set", host, "up")

    @contextmanager
    def deaf(self, host: str, speaker: str) -> Iterator[None]:
        """Nothing that `speaker` sends to `host` arrives, and no error says so."""
        rule = ["from", self.hosts[speaker].address, "to", self.hosts[host].address, "blackhole"]
        _ip("-n", self.router, "rule", "add", *rule)
        try:
            yield
        finally:
            _ip("-n", self.router, "rule", "del", *rule)

    @contextmanager
    def parted(self, host: str, others: Iterable[str]) -> Iterator[None]:
        """Neither hears the other; all else does."""
        with ExitStack() as stack:
            for other in others:
                stack.enter_context(self.deaf(host, other))
                stack.enter_context(self.deaf(other, host))
            yield

    @contextmanager
    def shaped(self, host: str, shape: Shape) -> Iterator[None]:
        """Its line is bad, both ways."""
        namespace = self.hosts[host].namespace
        assert namespace is not None
        with ExitStack() as stack:
            for where, line in ((self.router, host), (namespace, "eth0")):
                queue = ["dev", line, "root"]
                _tc("-n", where, "qdisc", "add", *queue, *SHAPES[shape])
                stack.callback(_tc, "-n", where, "qdisc", "del", *queue)
            yield


@contextmanager
def network(names: Sequence[str], wanted: Wanted = "auto") -> Iterator[Network]:
    """Hosts of these names, gone at the end with all that still runs on them; what dead runs left
    behind goes at the beginning. Raises NetworkError where namespaces are wanted and cannot be."""
    run = f"{PREFIX}-{os.getpid()}-{_began(os.getpid())}"
    with ExitStack() as stack:
        made = Network("loopback", {name: Host(name) for name in names}, "as asked for")
        if wanted != "loopback":
            stack.callback(_remove, run)  # also what was half made
            try:
                clear()
                made = _built(run, names)
            except NetworkError as reason:
                if wanted == "namespaces":
                    raise
                _remove(run)
                made = replace(made, because=str(reason))
        yield made


def clear() -> list[str]:
    """Remove what runs that are dead have left behind; their names."""
    dead = {
        match[0]
        for name in _namespaces()
        if (match := re.match(rf"{PREFIX}-(\d+)-(\d+)(?=-)", name))
        and _began(int(match[1])) != match[2]
    }
    for run in dead:
        _remove(run)
    return sorted(dead)


def _namespaces() -> list[str]:
    return [path.name for path in NAMESPACES.iterdir()] if NAMESPACES.exists() else []


def _began(process: int) -> str | None:
    """In ticks since the machine started; None where there is no such process."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    return status.rpartition(")")[2].split()[19]


def _leg(run: str) -> str:
    """The end of our own line to the router of a run; a name of 15 characters at most."""
    return "fc" + run.split("-")[2]


def _remove(run: str) -> None:
    """All of one run, whatever there is of it."""
    with suppress(NetworkError):
        _ip("link", "del", _leg(run))
    for name in _namespaces():
        if name.startswith(f"{run}-"):
            with suppress(NetworkError):  # another run may clear it as well
                for process in _ip("netns", "pids", name).split():
                    with suppress(ProcessLookupError):
                        os.kill(int(process), signal.SIGKILL)
                _ip("netns", "del", name)


def _built(run: str, names: Sequence[str]) -> Network:
    """Raises NetworkError, and may leave a part behind."""
    router, leg, net = f"{run}-router", _leg(run), _free_net()
    pairs = [(str(each[1]), str(each[2])) for each in net.subnets(new_prefix=30)]
    _ip("netns", "add", router)
    _ip("netns", "exec", router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
    _line(router, leg, str(os.getpid()), "here", pairs[0])
    _ip("addr", "add", f"{pairs[0][1]}/30", "dev", leg)
    _ip("link", "set", leg, "up")
    _ip("route", "add", str(net), "via", pairs[0][0])
    hosts = {}
    for name, pair in zip(names, pairs[1:], strict=False):
        namespace = f"{run}-{name}"
        _ip("netns", "add", namespace)
        _line(router, "eth0", namespace, name, pair)
        _ip("-n", namespace, "addr", "add", f"{pair[1]}/30", "dev", "eth0")
        for each in ("lo", "eth0"):
            _ip("-n", namespace, "link", "set", each, "up")
        _ip("-n", namespace, "route", "add", "default", "via", pair[0])
        hosts[name] = Host(name, pair[1], namespace)
    _check(hosts.values())
    shapes = tuple(shape for shape in SHAPES if _takes(router, shape))
    return Network("namespaces", hosts, shapes=shapes, router=router)


def _line(router: str, end: str, namespace: str, name: str, pair: tuple[str, str]) -> None:
    """Between the router, where it has the host's name, and `namespace`."""
    ours = ["type", "veth", "peer", "name", end, "netns", namespace]
    _ip("-n", router, "link", "add", "dev", name, *ours)
    _ip("-n", router, "addr", "add", f"{pair[0]}/30", "dev", name)
    _ip("-n", router, "link", "set", name, "up")


def _free_net() -> IPv4Network:
    """A 10.x.y.0/24 that none of our routes leads to. Raises NetworkError."""
    routes = [each["dst"] for each in json.loads(_ip("-j", "-4", "route", "show") or "[]")]
    taken = [IPv4Network(dst) for dst in routes if dst != "default"]
    rng = Random(os.getpid())
    for _ in range(TRIES):
        net = IPv4Network((f"10.{rng.randrange(64, 256)}.{rng.randrange(256)}.0", 24))
        if not any(net.overlaps(each) for each in taken):
            return net
    raise NetworkError("routes lead to all of 10.64.0.0 and above")


def _check(hosts: Iterable[Host]) -> None:
    """Every host is reached from here and from every other. Raises NetworkError."""
    for host in hosts:
        with host.socket() as listener:
            listener.bind((host.address, 0))
            listener.listen()
            for other in (HERE, *hosts):
                with other.socket() as caller:
                    caller.settimeout(REACH_S)
                    try:
                        caller.connect(listener.getsockname())
                    except OSError as fault:
                        text = f"{host.name} is not reached from {other.name}: {fault}"
                        raise NetworkError(text) from fault


def _takes(router: str, shape: Shape) -> bool:
    queue = ["dev", "here", "root"]
    try:
        _tc("-n", router, "qdisc", "add", *queue, *SHAPES[shape])
        _tc("-n", router, "qdisc", "del", *queue)
    except NetworkError:
        return False
    return True


def _socket_in(namespace: Path) -> socket.socket:
    libc = ctypes.CDLL(None, use_errno=True)
    with namespace.open("rb") as entered:
        if libc.setns(entered.fileno(), CLONE_NEWNET):
            raise NetworkError(f"setns {namespace.name}: {os.strerror(ctypes.get_errno())}")
    return socket.socket()


def _ip(*words: str) -> str:
    return _told(["ip", *words])


def _tc(*words: str) -> str:
    return _told(["tc", *words])


def _told(command: Sequence[str]) -> str:
    """What it prints. Raises NetworkError with what is wrong."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise NetworkError(f"there is no program {command[0]}") from None
    if done.returncode:
        raise NetworkError(f"{' '.join(command[:4])}: {done.stderr.strip()}")
    return done.stdout
