"""Protects the harness from the code it runs: whatever a child does to the channel becomes a coded
error in bounded time, the child and all it started are gone, and stray output harms nothing.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fasttrack.engine import channel
from fasttrack.engine.channel import Channel, ChannelClosed, Child, tail
from fasttrack.errors import FasttrackError

# A child without the harness's own code: it can break every rule, and starts in no time.
NAUGHTY = """
import json, os, signal, socket, struct, subprocess, sys, time

sock = socket.socket(fileno=int(sys.argv[1]))

def read(count):
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            sys.exit(0)
        data += part
    return data

def take():
    header, blobs = struct.unpack(">II", read(8))
    frame = json.loads(read(header))
    read(blobs)
    return frame

def frame(message, nonce, blobs=(), sizes=None):
    sizes = [len(b) for b in blobs] if sizes is None else sizes
    header = json.dumps({"nonce": nonce, "blobs": sizes, "message": message}).encode()
    return struct.pack(">II", len(header), sum(map(len, blobs))) + header + b"".join(blobs)

if os.environ["MODE"] == "never_reads":
    time.sleep(600)

while True:
    got = take()
    nonce, call = got["nonce"], got["message"]["call"]
    raw = lambda header, size=0: struct.pack(">II", len(header), size) + header
    answers = {
        "echo": lambda: frame(got["message"]["arguments"], nonce),
        "blobs": lambda: frame({}, nonce, [b"ab", b"", b"cde"]),
        "oversized": lambda: struct.pack(">II", 2**31, 0),
        "oversized_blobs": lambda: struct.pack(">II", 10, 2**31),
        "wrong_nonce": lambda: frame({}, "0" * 32),
        "no_nonce": lambda: raw(json.dumps({"blobs": [], "message": {}}).encode()),
        "garbage": lambda: os.urandom(4096),
        "text": lambda: b"HTTP/1.1 200 OK\\r\\n\\r\\nhello, hello, hello",
        "not_json": lambda: raw(b"{nonce}"),
        "not_utf8": lambda: raw(b'"\\xff\\xfe"'),
        "list": lambda: raw(b"[1, 2]"),
        "deep": lambda: raw(b"[" * 200000),
        "message_list": lambda: frame([], nonce),
        "message_null": lambda: frame(None, nonce),
        "sizes_disagree": lambda: frame({}, nonce, [b"abc"], [2]),
        "sizes_negative": lambda: frame({}, nonce, [b"abc"], [-1, 4]),
        "sizes_text": lambda: frame({}, nonce, [], "3"),
        "error_text": lambda: frame({"error": "boom"}, nonce),
        "error_without_code": lambda: frame({"error": {"message": "boom"}}, nonce),
        "coded": lambda: frame(
            {"error": {"code": got["message"]["arguments"]["code"], "message": "boom",
                       "traceback": "Traceback (most recent call last): x"}}, nonce),
    }
    if call == "eof":
        sys.exit(0)
    if call == "exit":
        print("last words"); sys.stdout.flush(); os._exit(3)
    if call == "signal":
        os.kill(os.getpid(), got["message"]["arguments"]["number"])
    if call == "close":
        sock.close(); time.sleep(600)
    if call == "hang":
        child = subprocess.Popen(["sleep", "600"])
        print("grandchild", child.pid); sys.stdout.flush(); time.sleep(600)
    if call == "half":
        sock.sendall(frame({"x": "y" * 100}, nonce)[:40]); time.sleep(600)
    if call == "dribble":
        for byte in frame({"x": 1}, nonce):
            sock.sendall(bytes([byte]))
        continue
    if call == "noise":
        for stream in (sys.stdout, sys.stderr):
            stream.write('{"nonce": "%s", "blobs": [], "message": {}}\\n' % nonce * 2000)
            stream.flush()
        os.write(1, b"\\x00\\xff" * 1000)
        call = "echo"
    sock.sendall(answers[call]())
"""


@pytest.fixture
def child(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Child]:
    """A naughty child; never outlives the test."""
    (tmp_path / "naughty.py").write_text(NAUGHTY)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    mode = getattr(request, "param", "")
    env = {"PYTHONPATH": path, "MODE": mode}
    made = Child("naughty", log=tmp_path / "logs" / "child.log", env=env, cell="the-cell")
    yield made
    made.kill()


def fails(child: Child, call: str, expected: str, timeout_s: float = 20.0, **arguments: Any) -> Any:
    """The error of a call, of that code."""
    with pytest.raises(FasttrackError) as caught:
        child.call(call, timeout_s, **arguments)
    assert caught.value.code == expected, caught.value.cause
    assert caught.value.cell == "the-cell"
    assert str(child.log) in caught.value.next_step
    return caught.value


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie nobody has waited for counts as ended)."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_an_honest_child_is_heard(child: Child) -> None:
    assert child.call("echo", 20.0, a=1, b="é\u2028") == ({"a": 1, "b": "é\u2028"}, [])
    assert child.call("blobs", 20.0) == ({}, [b"ab", b"", b"cde"])
    assert child.call("dribble", 20.0) == ({"x": 1}, [])
    assert child.alive


def test_blobs_travel_to_the_child(child: Child) -> None:
    assert child.call("echo", 20.0, [b"x" * 3_000_000, b""], n=2)[0] == {"n": 2}


@pytest.mark.parametrize(
    "call",
    [
        "oversized", "oversized_blobs", "wrong_nonce", "no_nonce", "garbage", "text", "not_json",
        "not_utf8", "list", "deep", "message_list", "message_null", "sizes_disagree",
        "sizes_negative", "sizes_text", "error_text", "error_without_code",
    ],
)  # fmt: skip
def test_a_broken_frame_is_eng_005_and_ends_the_child(child: Child, call: str) -> None:
    error = fails(child, call, "ENG-005")
    assert error.exit_status == 5
    assert len(error.cause) < 500
    assert not child.alive


def test_end_of_file_tells_the_status(child: Child) -> None:
    assert "status 0" in fails(child, "eof", "ENG-003").cause


def test_a_child_that_exits_is_quoted(child: Child) -> None:
    error = fails(child, "exit", "ENG-003")
    assert "status 3" in error.cause
    assert error.detail == "last words"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_child_names_its_signal(child: Child, number: signal.Signals) -> None:
    assert f"killed by {number.name}" in fails(child, "signal", "ENG-003", number=number).cause


def test_a_child_that_only_closes_the_channel_is_stopped(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "LAST_BREATH_S", 0.2)
    assert "closed its channel" in fails(child, "close", "ENG-005").cause
    assert not child.alive


def test_a_hanging_child_is_stopped_with_all_it_started(child: Child) -> None:
    child.call("echo", 20.0)
    error = fails(child, "hang", "ENG-004", timeout_s=2.0)
    assert "no answer to 'hang' within 2 s" in error.cause
    assert not child.alive
    word, pid = child.log.read_text().split()
    assert word == "grandchild"
    assert gone(int(pid))


def test_half_an_answer_is_no_answer(child: Child) -> None:
    fails(child, "half", "ENG-004", timeout_s=0.7)
    assert not child.alive


@pytest.mark.parametrize("child", ["never_reads"], indirect=True)
def test_a_child_that_never_reads_cannot_block_the_harness(child: Child) -> None:
    with pytest.raises(FasttrackError) as caught:
        child.call("echo", 0.7, [b"x" * 8_000_000])
    assert caught.value.code == "ENG-004"
    assert not child.alive


def test_stray_output_goes_to_the_log_and_harms_nothing(child: Child) -> None:
    assert child.call("noise", 20.0, a=1) == ({"a": 1}, [])
    assert child.call("echo", 20.0, a=2) == ({"a": 2}, [])
    assert child.log.stat().st_size > 100_000


@pytest.mark.parametrize(
    ("code", "status"),
    [("ENG-002", 5), ("ENG-006", 5), ("ENG-007", 5), ("CLM-006", 2), ("ENV-001", 4),
     ("ENV-005", 4)],
)  # fmt: skip
def test_an_error_the_child_reports_keeps_its_code(child: Child, code: str, status: int) -> None:
    error = fails(child, "coded", code, code=code)
    assert (error.cause, error.exit_status) == ("boom", status)
    assert error.detail.startswith("Traceback")
    # The child did nothing wrong to the channel: it lives and answers.
    assert child.call("echo", 20.0) == ({}, [])


def test_calls_to_a_dead_child_are_errors_too(child: Child) -> None:
    child.kill()
    fails(child, "echo", "ENG-003")
    fails(child, "echo", "ENG-003")


def test_the_nonce_is_not_in_the_command_line_or_environment(child: Child) -> None:
    nonce = child._channel.nonce
    assert nonce is not None and len(nonce) == 32
    pid = child._process.pid
    child.call("echo", 20.0)
    for name in ("cmdline", "environ"):
        assert nonce.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()


def test_a_closed_child_ends_by_itself(child: Child) -> None:
    child.call("echo", 20.0)
    child.close()
    assert not child.alive
    assert child._process.returncode == 0


# The frame alone


def pair(nonce: str | None = "n") -> tuple[Channel, Channel, socket.socket]:
    """Both ends, and the raw socket of the second."""
    one, other = socket.socketpair()
    return Channel(one, "n"), Channel(other, nonce), other


def test_the_second_side_learns_the_nonce_from_the_first_frame() -> None:
    ours, theirs, _ = pair(None)
    ours.send({"a": 1}, [b"xyz"])
    assert theirs.receive() == ({"a": 1}, [b"xyz"])
    assert theirs.nonce == "n"
    theirs.send({"b": 2})
    assert ours.receive() == ({"b": 2}, [])


def test_large_frames_arrive_whole() -> None:
    ours, theirs, _ = pair()
    blob = secrets.token_bytes(5_000_000)
    sender = threading.Thread(target=ours.send, args=({"a": "b" * 1_000_000}, [blob]))
    sender.start()
    message, blobs = theirs.receive(time.monotonic() + 20)
    sender.join()
    assert (len(message["a"]), blobs) == (1_000_000, [blob])


def test_nothing_to_read_is_a_time_out() -> None:
    ours, theirs, _ = pair()
    with pytest.raises(TimeoutError):
        theirs.receive(time.monotonic() + 0.05)
    with pytest.raises(TimeoutError):
        theirs.receive(time.monotonic() - 1)
    ours.close()


def test_a_closed_end_is_told_to_both_directions() -> None:
    ours, theirs, _ = pair()
    theirs.close()
    with pytest.raises(ChannelClosed):
        ours.receive()
    with pytest.raises(ChannelClosed):
        ours.send({"a": "b" * 1_000_000})


def test_limits_are_those_of_the_header() -> None:
    ours, _, raw = pair()
    raw.sendall(struct.pack(">II", channel.MAX_HEADER + 1, 0))
    with pytest.raises(ValueError, match="beyond the limit"):
        ours.receive()


def test_an_extra_key_in_a_frame_is_refused() -> None:
    ours, _, raw = pair()
    header = json.dumps({"nonce": "n", "blobs": [], "message": {}, "more": 1}).encode()
    raw.sendall(struct.pack(">II", len(header), 0) + header)
    with pytest.raises(ValueError, match="not a frame"):
        ours.receive()


def test_tail_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log) == ""
    log.write_bytes(b"\xff" * 10_000 + b"\n" + b"".join(b"line %d\n" % i for i in range(100)))
    assert tail(log, 2) == "line 98\nline 99"
    assert len(tail(log, 1000)) <= 4096
    assert sys.getsizeof(tail(log)) < 1000
