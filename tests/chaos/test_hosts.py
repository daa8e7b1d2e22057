"""Hosts of chaos: namespaces where the machine allows them, else loopback; nothing is left over.

What needs root asks first whether it is allowed, and checks the loopback form where it is not."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import hosts
from tests.chaos.campaigns import BREAKS, REDIS, SERVICES, RedisHost, broken
from tests.chaos.hosts import HERE, Host, NetworkError, clear, network

SILENCE_S = 0.3
ARRIVES_S = 5.0


@pytest.fixture(scope="module")
def allowed() -> bool:
    """Whether this machine lets us make namespaces with a line between them, asked by hand."""
    if shutil.which("ip") is None:
        return False
    name = f"forage-probe-{os.getpid()}"
    tried = [
        f"ip netns add {name}",
        f"ip -n {name} link add one type veth peer name two",
        f"ip netns exec {name} dd if=/proc/sys/net/ipv4/ip_forward conv=notrunc "
        "of=/proc/sys/net/ipv4/ip_forward",
    ]
    made = [subprocess.run(command.split(), capture_output=True) for command in tried]
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return not any(each.returncode for each in made)


def leftovers(process: int) -> list[str]:
    """Namespaces and lines of a process."""
    names = hosts.NAMESPACES.iterdir() if hosts.NAMESPACES.exists() else ()
    spaces = [path.name for path in names if path.name.startswith(f"{hosts.PREFIX}-{process}-")]
    lines = [name for _, name in socket.if_nameindex() if name == f"fc{process}"]
    return spaces + lines


@contextmanager
def line(host: Host, caller: Host) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection from `caller` to `host`: the host's first."""
    with host.socket() as listener, caller.socket() as ours:
        listener.bind((host.address, 0))
        listener.listen()
        ours.settimeout(ARRIVES_S)
        ours.connect(listener.getsockname())
        theirs, _ = listener.accept()
        with theirs:
            yield theirs, ours


def hears(ear: socket.socket, mouth: socket.socket, within_s: float = ARRIVES_S) -> bool:
    ear.settimeout(within_s)
    mouth.sendall(b".")
    try:
        return ear.recv(100) != b""
    except TimeoutError:
        return False


def test_hosts_are_namespaces_where_the_machine_allows_it_and_only_there(allowed: bool) -> None:
    with network(["one", "two"]) as net:
        assert net.mode == ("namespaces" if allowed else "loopback")
        assert bool(net.because) == (not allowed)
        here = {host.address for host in net.hosts.values()} == {"127.0.0.1"}
        assert here == (not allowed)
        assert bool(leftovers(os.getpid())) == allowed
    assert leftovers(os.getpid()) == []


@pytest.mark.parametrize("wanted", ["auto", "loopback"])
def test_every_host_hears_every_other_and_us(wanted: hosts.Wanted) -> None:
    with network(["one", "two"], wanted) as net:
        one, two = net.hosts["one"], net.hosts["two"]
        for host, caller in ((one, two), (two, one), (one, HERE)):
            with line(host, caller) as (theirs, ours):
                assert hears(theirs, ours)
                assert hears(ours, theirs)


@pytest.mark.parametrize("wanted", ["auto", "loopback"])
def test_a_command_runs_on_its_host_under_its_own_process_id(wanted: hosts.Wanted) -> None:
    with network(["one"], wanted) as net:
        command = net.hosts["one"].command(["readlink", "/proc/self/ns/net"])
        inside = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        outside = str(Path("/proc/self/ns/net").readlink())
        assert (inside != outside) == (net.mode == "namespaces")
        asleep = subprocess.Popen(net.hosts["one"].command(["sleep", "60"]))
        asleep.terminate()
        assert asleep.wait(10) == -signal.SIGTERM


def test_a_host_that_is_cut_off_hears_nobody_until_its_line_is_up_again() -> None:
    with network(["one", "two"]) as net:
        if net.mode == "loopback":
            assert net.because
            return
        one, two = net.hosts["one"], net.hosts["two"]
        with line(one, HERE) as (theirs, ours), line(two, HERE) as (others, mine):
            with net.cut_off("one"):
                assert not hears(theirs, ours, SILENCE_S)
                assert not hears(ours, theirs, SILENCE_S)
                assert hears(others, mine)
            assert hears(theirs, ours)
            assert hears(ours, theirs)
        with line(one, HERE) as (theirs, ours):
            assert hears(theirs, ours)


def test_a_partition_is_silent_and_parts_only_those_named() -> None:
    with network(["one", "two", "three"]) as net:
        if net.mode == "loopback":
            assert net.because
            return
        one, two, three = net.hosts.values()
        with line(one, two) as (to, fro), line(one, three) as (theirs, ours):
            with net.parted("one", ["two"]):
                assert not hears(to, fro, SILENCE_S)
                assert not hears(fro, to, SILENCE_S)
                assert hears(theirs, ours)
                with two.socket() as new:
                    new.settimeout(SILENCE_S)
                    with pytest.raises(TimeoutError):  # no error says so
                        new.connect((one.address, 1))
            assert hears(to, fro)
            assert hears(fro, to)


def test_deaf_one_way_the_other_way_all_arrives() -> None:
    with network(["one", "two"]) as net:
        if net.mode == "loopback":
            assert net.because
            return
        with line(net.hosts["one"], net.hosts["two"]) as (one, two):
            with net.deaf("two", speaker="one"):
                assert hears(one, two)
                assert not hears(two, one, SILENCE_S)
            assert hears(two, one)


def test_a_bad_line_is_of_the_shapes_that_tc_and_the_kernel_have_and_bytes_arrive() -> None:
    with network(["one"]) as net:
        if net.mode == "loopback":
            assert net.shapes == ()
            return
        for shape, words in hosts.SHAPES.items():
            tried = ["tc", "-n", net.router, "qdisc", "replace", "dev", "lo", "root", *words]
            possible = shutil.which("tc") and not subprocess.run(tried).returncode
            assert (shape in net.shapes) == bool(possible)
        for shape in net.shapes:
            with line(net.hosts["one"], HERE) as (theirs, ours), net.shaped("one", shape):
                theirs.settimeout(ARRIVES_S)
                ours.sendall(bytes(4_000))
                missing = 4_000
                while missing:
                    missing -= len(theirs.recv(missing))


@pytest.mark.parametrize("cancelled", [False, True])
def test_each_break_is_over_when_its_time_is(cancelled: bool) -> None:
    with network([REDIS, *SERVICES]) as net:
        if net.mode == "loopback":
            assert net.because
            return
        for kind in (*BREAKS, *net.shapes):
            for host in (SERVICES[0], REDIS):
                asyncio.run(over(broken(net, kind, host, SERVICES[:2], 0.01 + 60 * cancelled)))
                for caller in (net.hosts[SERVICES[0]], HERE):
                    with line(net.hosts[REDIS], caller) as (theirs, ours):
                        assert hears(theirs, ours)
                        assert hears(ours, theirs)
        rules = subprocess.run(["ip", "-n", net.router, "rule"], capture_output=True, text=True)
        assert "blackhole" not in rules.stdout


async def over(work: Coroutine[Any, Any, None]) -> None:
    """After a while at the latest."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            await work


# -- what is left ------------------------------------------------------------------------------


def test_nothing_is_left_of_a_run_that_fails() -> None:
    asleep: list[subprocess.Popen[bytes]] = []

    def fail() -> None:
        with network(["one"]) as net:
            asleep.append(subprocess.Popen(net.hosts["one"].command(["sleep", "60"])))
            if net.mode == "loopback":  # where nothing tells whose it is
                asleep[0].kill()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert asleep[0].wait(10) == -signal.SIGKILL
    assert leftovers(os.getpid()) == []


def test_half_a_network_is_removed_and_loopback_says_why(
    allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreached(_: object) -> None:
        assert leftovers(os.getpid())
        raise NetworkError("two is not reached")

    monkeypatch.setattr(hosts, "_check", unreached)
    with network(["one", "two"]) as net:
        assert net.mode == "loopback"
        assert not allowed or net.because == "two is not reached"
        assert leftovers(os.getpid()) == []
    with pytest.raises(NetworkError), network(["one", "two"], "namespaces"):
        pass
    assert leftovers(os.getpid()) == []


def test_without_the_programs_hosts_are_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with network(["one"]) as net:
        assert (net.mode, net.because) == ("loopback", "there is no program ip")
    with pytest.raises(NetworkError, match="ip"), network(["one"], "namespaces"):
        pass


OTHER_RUN = """
import subprocess, time
from tests.chaos.hosts import network
with network(["one"]) as net:
    asleep = subprocess.Popen(net.hosts["one"].command(["sleep", "60"]), stdout=subprocess.DEVNULL)
    print(net.mode, asleep.pid, flush=True)
    time.sleep(60)
"""


def test_leftovers_of_a_dead_run_are_cleared_and_those_of_a_living_one_are_not() -> None:
    run = subprocess.Popen([sys.executable, "-c", OTHER_RUN], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    mode, asleep = run.stdout.readline().split()
    made = leftovers(run.pid)
    assert bool(made) == (mode == "namespaces")
    clear()
    assert leftovers(run.pid) == made
    run.kill()
    run.communicate()
    assert leftovers(run.pid) == made
    if mode == "loopback":  # where nothing tells whose it is
        os.kill(int(asleep), signal.SIGKILL)
    clear()
    assert leftovers(run.pid) == []
    status = Path(f"/proc/{asleep}/stat")
    assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


# -- Redis on a host ---------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", ["auto", "loopback"])
def test_redis_answers_on_its_host_also_while_its_line_is_down(
    wanted: hosts.Wanted, tmp_path: Path
) -> None:
    with network([REDIS], wanted) as net:
        server = RedisHost(tmp_path, net.hosts[REDIS], {})
        server.start()
        try:
            with HERE.socket() as ours:
                ours.settimeout(ARRIVES_S)
                ours.connect((server.host.address, server.port))
                ours.sendall(b"PING\r\n")
                assert ours.recv(100) == b"+PONG\r\n"
            if net.mode == "namespaces":
                with net.cut_off(REDIS):
                    server.restart()
        finally:
            server.kill()
