"""A relay keeps a connection open whose other end is lost, so that a host can say why it ends."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from l2rm_jax.devices import relay
from l2rm_jax.devices.relay import LOST, parse_address
from tests.devices.test_hosts import ROOT, free_port

HOST = """
import sys
import time
from l2rm_jax.devices.hosts import join_hosts
join_hosts(sys.argv[1], 2, int(sys.argv[2]))
print("joined", flush=True)
time.sleep(60)
"""


@contextlib.contextmanager
def started(*command: str) -> Iterator[subprocess.Popen]:
    """Start Python with pipes, and kill it on exit."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen([sys.executable, *command], text=True, cwd=ROOT, **pipes)
    with process:
        yield process
        process.kill()


def test_the_address_of_a_coordinator():
    assert parse_address("10.0.0.1:8476") == ("10.0.0.1", 8476)
    assert parse_address("[::1]:8476") == ("::1", 8476)


def test_a_lost_target_is_reported_and_the_connection_stays_open():
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = f"127.0.0.1:{server.getsockname()[1]}"
        with started(relay.__file__, "127.0.0.1:0", target) as process:
            address = ("127.0.0.1", int(process.stdout.readline()))
            with socket.create_connection(address) as client:
                client.settimeout(30)
                inner, _ = server.accept()
                client.sendall(b"question")
                assert inner.recv(100) == b"question"
                inner.sendall(b"answer")
                assert client.recv(100) == b"answer"
                inner.close()
                assert process.stdout.readline().strip() == LOST
                client.settimeout(0.1)
                with pytest.raises(TimeoutError):
                    client.recv(1)
                print("leaving", file=process.stdin, flush=True)
                client.settimeout(30)
                assert client.recv(1) == b""
            process.stdin.close()  # as when the host ends
            assert process.wait(timeout=30) == 0


def test_a_client_tries_again_while_there_is_no_target():
    target = f"127.0.0.1:{free_port()}"
    with started(relay.__file__, "127.0.0.1:0", target) as process:
        address = ("127.0.0.1", int(process.stdout.readline()))
        with socket.create_connection(address, timeout=30) as client:
            assert client.recv(1) == b""


def test_a_port_that_is_taken_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with started(relay.__file__, f"127.0.0.1:{port}", "127.0.0.1:1") as process:
            assert process.wait(timeout=30) == 1
            assert "address already in use" in process.stderr.read()


@pytest.mark.slow
def test_a_host_ends_with_one_line_when_host_0_is_killed():
    address = f"127.0.0.1:{free_port()}"
    with started("-c", HOST, address, "0") as first, started("-c", HOST, address, "1") as second:
        for process in (first, second):
            assert process.stdout.readline() == "joined\n"
        first.kill()
        assert second.wait(timeout=60) == 1
        [line] = second.stderr.read().splitlines()
    assert line.startswith("error: host 1 stops (another host is lost)")
