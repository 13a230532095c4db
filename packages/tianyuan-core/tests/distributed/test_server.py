"""The key-value server: values that wait for their setter, barriers, and a rendezvous."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading

import pytest
from tianyuan import distributed as dist
from tianyuan.distributed import server as servers
from tianyuan.errors import DistributedError


@pytest.fixture
def server():
    made = dist.Server(host="127.0.0.1")
    yield made
    made.close()


@pytest.fixture
def client(server):
    return dist.Client("localhost", server.py_server_port)


def together(*calls):
    """Run calls in threads of their own and return their results, or what they raised."""
    found = [None] * len(calls)

    def keep(index, call):
        try:
            found[index] = call()
        except DistributedError as error:
            found[index] = error

    threads = [threading.Thread(target=keep, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return found


VALUES = [0, -(2**31), 2.5, True, "text ¤", "", None, b"\x00\xff", [1, ["a", None]], {"k": [1.5]}]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values(client, value):
    client.user_set("key", value)
    assert client.user_get("key") == value
    assert client.user_get("key") == value
    assert client.user_pop("key") == value
    with pytest.raises(DistributedError, match=r"user_get: nobody set the key, got .* 'key'"):
        client.user_get("key", 0.05)


def test_get_waits_for_set(client):
    late = threading.Timer(0.2, client.user_set, ("late", "here"))
    late.start()
    assert client.user_get("late", 10.0) == "here"
    late.join()
    found = together(lambda: client.user_pop("one", 10.0), lambda: client.user_set("one", 1))
    assert found == [1, None]


def test_notes_of_gradients_and_tracers_are_taken_once(client):
    client.set_is_grad("a", True)
    client.set_remote_tracer("a", "tracer")
    assert client.check_is_grad("a") is True
    assert client.check_remote_tracer("a") == "tracer"
    client.set_is_grad("a", False)
    assert client.check_is_grad("a") is False


def test_barrier_lets_all_go_together_and_starts_anew(client):
    order = []

    def arrive(name):
        for number in range(3):
            order.append((number, "come", name))
            client.group_barrier("here", 3, 10.0)
            order.append((number, "gone", name))

    together(*(lambda name=name: arrive(name) for name in "abc"))
    for number in range(3):
        comes = [i for i, step in enumerate(order) if step[:2] == (number, "come")]
        goes = [i for i, step in enumerate(order) if step[:2] == (number, "gone")]
        assert len(comes) == len(goes) == 3
        assert max(comes) < min(goes)


def test_barrier_tells_who_is_missing(client):
    with pytest.raises(DistributedError, match="ranks are missing, got 1 of 2"):
        client.group_barrier("here", 2, 0.05)


def test_bcast_val(client):
    for _ in range(2):
        found = together(
            lambda: client.bcast_val(None, "v", 3),
            lambda: client.bcast_val([1, 2], "v", 3),
            lambda: client.bcast_val(None, "v", 3),
        )
        assert found == [[1, 2]] * 3


def test_join(client):
    found = together(*(lambda r=r: client.join("w", r, 3, f"rank {r}", 10.0) for r in (2, 0, 1)))
    assert found == [["rank 0", "rank 1", "rank 2"]] * 3
    found = together(*(lambda r=r: client.join("w", r, 2, r, 10.0) for r in (0, 1)))
    assert found == [[0, 1]] * 2


def test_join_names_who_is_missing_or_stands_twice(client):
    with pytest.raises(DistributedError, match=r"got none of \[0, 2\], expected 3 ranks"):
        client.join("w", 1, 3, None, 0.05)
    one, other = together(*(lambda: client.join("w", 0, 2, None, 0.5) for _ in range(2)))
    texts = sorted(str(error) for error in (one, other))
    assert "rank 0 stands twice" in texts[0]
    assert "none of [1]" in texts[1]


def test_closing_lets_go_of_those_who_wait_and_of_the_port(server, client):
    closer = threading.Timer(0.2, server.close)
    closer.start()
    with pytest.raises((DistributedError, OSError)):
        client.user_get("never", 30.0)
    closer.join()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", server.py_server_port)) != 0
    dist.Server(server.py_server_port, host="127.0.0.1").close()


def test_ports(server, client):
    assert client.get_mm_server_port() == server.mm_server_port == server.py_server_port
    with pytest.raises(DistributedError, match=f"cannot listen on port {server.py_server_port}"):
        dist.Server(server.py_server_port, host="127.0.0.1")
    methods = servers.Methods(7)
    assert methods.connect() is True
    assert methods.get_mm_server_port() == 7


def test_calls_that_wait_do_not_hold_up_others(server, client):
    assert isinstance(server._server, servers.ThreadXMLRPCServer)
    waiting = threading.Thread(target=client.user_get, args=("later", 20.0))
    waiting.start()
    client.connect()
    client.user_set("later", 1)
    waiting.join(20)
    assert not waiting.is_alive()


def test_a_barrier_that_is_complete_holds_when_the_server_closes():
    for _ in range(100):
        methods, faults = servers.Methods(0), []

        def wait(methods=methods, faults=faults):
            try:
                methods.group_barrier("end", 2, 20.0)
            except DistributedError as error:
                faults.append(error)

        other = threading.Thread(target=wait)
        other.start()
        methods.group_barrier("end", 2, 20.0)
        methods._close()
        other.join(20)
        assert faults == []


def test_no_server():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        port = taken.getsockname()[1]
        with pytest.raises(DistributedError, match=f"no server answers at localhost:{port}"):
            dist.Client("localhost", port, timeout=0.2)


def test_main_serves_until_interrupted():
    # A job that was put in the background ignores SIGINT, and so do its children.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from tianyuan.distributed.server import main; main()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.PIPE) as process:  # fmt: skip
        line = process.stdout.readline()
        client = dist.Client("localhost", int(re.search(r"port (\d+)", line)[1]))
        client.user_set("a", 1)
        assert client.user_get("a") == 1
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(20) != 0
        finally:
            process.kill()
