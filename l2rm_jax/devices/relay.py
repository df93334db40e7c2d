"""Relay between a host and the coordinator, in a process of its own: `relay.py LISTEN TARGET`.

JAX aborts a host, with a stack trace, as soon as its connection to the coordinator closes. Behind a
relay this connection stays open, and the host itself can say why it ends. The file imports only the
standard library, to start at once. A thread would not do: JAX's heartbeats must pass even while the
host's interpreter is busy.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading

# A machine that does not answer counts as lost after 10 + 3 * 5 s, before JAX notices.
KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
LOST = "lost"  # the line that is printed when a connection in use closes


def parse_address(address: str) -> tuple[str, int]:
    """Split `ADDRESS:PORT`, where an IPv6 address may be in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


async def relay(listen: tuple[str, int], target: tuple[str, int]) -> None:
    """Pass connections on to `target`, as long as this process lives.

    Prints the port that it listens to, and `LOST` when an end of a connection closes that `target`
    has answered. The other end then stays open, until a line on the standard input says that this
    host leaves in order.

    Args:
      listen: address, empty for all addresses of this machine, and port, 0 for any free one.
      target: address and port.
    """
    leaving = asyncio.Event()
    parent = (asyncio.get_running_loop(), leaving)
    threading.Thread(target=_follow_parent, args=parent, daemon=True).start()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, requests = await asyncio.open_connection(*target)
        except OSError:  # the target is not up yet: JAX tries again
            writer.close()
            return
        answered = asyncio.Event()
        for end in (writer, requests):
            _keep_alive(end.get_extra_info("socket"))
        copies = [_copy(reader, requests), _copy(answers, writer, answered)]
        tasks = [asyncio.ensure_future(copy) for copy in copies]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if answered.is_set():
            print(LOST, flush=True)
            await leaving.wait()  # keeps the other end open
        for end in (writer, requests):
            end.close()

    server = await asyncio.start_server(serve, listen[0] or None, listen[1])
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _copy(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    answered: asyncio.Event | None = None,
) -> None:
    """Copy until an end closes; set `answered` at the first data."""
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            if answered is not None:
                answered.set()
            writer.write(data)
            await writer.drain()


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if (option := getattr(socket, name, None)) is not None:  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _follow_parent(loop: asyncio.AbstractEventLoop, leaving: asyncio.Event) -> None:
    """Set `leaving` at a line from the parent, and end this process with the parent."""
    sys.stdin.readline()
    loop.call_soon_threadsafe(leaving.set)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # which may be sent to all processes of a job
        signal.signal(number, signal.SIG_IGN)
    try:
        asyncio.run(relay(*map(parse_address, sys.argv[1:])))
    except OSError as error:
        sys.exit(str(error))
