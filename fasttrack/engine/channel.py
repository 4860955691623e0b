"""Framed messages between the harness and a child that runs code under test.

A frame is an 8-byte length, a JSON header and raw blobs. Both sides put the run's nonce in every
header; the child learns it from the first frame, so neither its command line nor its environment
holds it. The channel is a socket of its own: whatever the child prints cannot reach it.

Owns: framing, limits, time-outs, process life. Does not know what is asked of the child.
Read by: engine sessions and the kernel referee (parent side), `serve` loops (child side).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from fasttrack.errors import EnvironmentUnmet, FasttrackError, RunError, UsageError

MAX_HEADER = 64 * 2**20
MAX_BLOBS = 2**30
MAX_MARKS = 2
LOG_TAIL_LINES = 12
LAST_BREATH_S = 10.0
"""How long a child that closed its channel may take to end, so that its status can be told."""
_LENGTH = struct.Struct(">II")


class ChannelClosed(Exception):
    """The other side is gone."""


class Channel:
    """One end of a framed socket. Not thread-safe."""

    def __init__(self, sock: socket.socket, nonce: str | None = None) -> None:
        self._sock = sock
        self.nonce = nonce

    def send(
        self,
        message: Mapping[str, Any],
        blobs: Sequence[bytes] = (),
        deadline: float | None = None,
    ) -> None:
        """Send one frame.

        Raises `ChannelClosed` when the other side is gone and `TimeoutError` when it has not taken
        the frame by the deadline (monotonic seconds).
        """
        header = json.dumps(
            {"nonce": self.nonce, "blobs": [len(b) for b in blobs], "message": message}
        ).encode()
        try:
            for part in (_LENGTH.pack(len(header), sum(map(len, blobs))) + header, *blobs):
                if deadline is not None:
                    self._sock.settimeout(max(1e-3, deadline - time.monotonic()))
                self._sock.sendall(part)
            self._sock.settimeout(None)
        except TimeoutError:
            raise
        except OSError as error:
            raise ChannelClosed from error

    def receive(self, deadline: float | None = None) -> tuple[dict[str, Any], list[bytes]]:
        """Next frame.

        Raises `ChannelClosed` at end of file, `TimeoutError` past the deadline (monotonic seconds)
        and `ValueError` for a frame that breaks the protocol.
        """
        header_size, blob_size = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
        if header_size > MAX_HEADER or blob_size > MAX_BLOBS:
            raise ValueError(f"frame of {header_size} + {blob_size} bytes is beyond the limit")
        try:
            frame = json.loads(self._read(header_size, deadline))
        except RecursionError as error:
            raise ValueError("header is nested too deeply") from error
        if not isinstance(frame, dict) or set(frame) != {"nonce", "blobs", "message"}:
            raise ValueError("header is not a frame's")
        if self.nonce is None:
            self.nonce = frame["nonce"]
        if frame["nonce"] != self.nonce:
            raise ValueError("frame without this run's nonce")
        sizes, message = frame["blobs"], frame["message"]
        if not isinstance(message, dict) or not isinstance(sizes, list):
            raise ValueError("header is not a frame's")
        if any(type(size) is not int or size < 0 for size in sizes) or sum(sizes) != blob_size:
            raise ValueError("blob sizes disagree")
        return message, [self._read(size, deadline) for size in sizes]

    def close(self) -> None:
        """Close the socket; the other side sees end of file."""
        self._sock.close()

    def _read(self, count: int, deadline: float | None) -> bytes:
        parts = []
        while count:
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([self._sock], [], [], left)[0]:
                    raise TimeoutError
            try:
                part = self._sock.recv(min(count, 2**20))
            except OSError as error:
                raise ChannelClosed from error
            if not part:
                raise ChannelClosed
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


ERRORS: dict[str, type[FasttrackError]] = {
    "CLM-006": UsageError,
    "ENV-001": EnvironmentUnmet,
    "ENV-005": EnvironmentUnmet,
}


@dataclass(frozen=True)
class Asked:
    """A question to a child that has not answered it yet."""

    call: str
    timeout_s: float
    deadline: float
    """Monotonic seconds."""


def launch(
    module: str, end: socket.socket, sink: IO[bytes], env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """``python -m module FD`` in a session of its own, with its `end` of a channel."""
    return subprocess.Popen(
        [sys.executable, "-m", module, str(end.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=sink,
        stderr=sink,
        pass_fds=(end.fileno(),),
        start_new_session=True,
        env=env,
    )


class Child:
    """A child process with a channel, a log file and a bounded life."""

    def __init__(
        self, module: str, *, log: Path, env: Mapping[str, str] | None = None, cell: str = ""
    ) -> None:
        """Start ``python -m module FD``; its stdout and stderr go to `log`."""
        ours, theirs = socket.socketpair()
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self.cell = cell
        with log.open("ab") as sink:
            self._process = launch(module, theirs, sink, {**os.environ, **(env or {})})
        theirs.close()
        self._channel = Channel(ours, nonce=secrets.token_hex(16))

    def call(
        self,
        call: str,
        timeout_s: float,
        blobs: Sequence[bytes] = (),
        marks: list[tuple[int, float]] | None = None,
        **arguments: Any,
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Ask the child for `call` and wait for the answer: `ask`, then `wait`."""
        return self.wait(self.ask(call, timeout_s, blobs, **arguments), marks)

    def ask(
        self, call: str, timeout_s: float, blobs: Sequence[bytes] = (), **arguments: Any
    ) -> Asked:
        """Ask the child for `call`. One question at a time. Raises as `wait` does."""
        asked = Asked(call, timeout_s, time.monotonic() + timeout_s)
        with self._broken(asked):
            self._channel.send({"call": call, "arguments": arguments}, blobs, asked.deadline)
        return asked

    def wait(
        self, asked: Asked, marks: list[tuple[int, float]] | None = None
    ) -> tuple[dict[str, Any], list[bytes]]:
        """The child's answer.

        Into `marks` go the numbers that the child sends before its answer, each with this
        process's monotonic clock when it came.

        Raises `RunError` ENG-003 (killed), ENG-004 (no answer in time), ENG-005 (protocol)
        or the coded error the child reported. The child is dead after the first three.
        """
        with self._broken(asked):
            answer, data = self._channel.receive(asked.deadline)
            while set(answer) == {"mark"} and marks is not None and len(marks) < MAX_MARKS:
                marks.append((int(answer["mark"]), time.monotonic()))
                answer, data = self._channel.receive(asked.deadline)
        fault = answer.get("error")
        if fault is None:
            return answer, data
        if not isinstance(fault, dict) or not {"code", "message"} <= set(fault):
            raise self.malformed(asked.call, "an error without code or message")
        code = str(fault["code"])
        raise ERRORS.get(code, RunError)(
            code,
            str(fault["message"]),
            cell=self.cell or None,
            next_step=f"read {self.log}",
            detail=fault.get("traceback"),
        )

    @contextlib.contextmanager
    def _broken(self, asked: Asked) -> Iterator[None]:
        """A channel that fails while it is used, as the error that says how."""
        try:
            yield
        except TimeoutError:
            self.kill()
            raise self._error(
                "ENG-004", f"no answer to {asked.call!r} within {asked.timeout_s:.0f} s; stopped"
            ) from None
        except ChannelClosed:
            raise self._died(asked.call) from None
        except (ValueError, TypeError) as error:
            raise self.malformed(asked.call, error) from None

    def malformed(self, call: str, why: object) -> RunError:
        """ENG-005 for an answer nobody can use; the child that gave it is stopped."""
        self.kill()
        told = " ".join(str(why).split())[:300]
        return self._error("ENG-005", f"answer to {call!r} broke the protocol: {told}")

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def close(self, grace_s: float = 5.0) -> None:
        """Let the child end by itself (it sees end of file), then make sure."""
        self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        self.kill()

    def kill(self) -> None:
        """Kill the child and everything it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._channel.close()

    def _died(self, op: str) -> RunError:
        try:
            status = self._process.wait(LAST_BREATH_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._error("ENG-005", f"closed its channel while asked for {op!r}")
        self.kill()
        if status < 0:
            name = signal.Signals(-status).name
            return self._error("ENG-003", f"killed by {name} while asked for {op!r}")
        return self._error("ENG-003", f"ended with status {status} while asked for {op!r}")

    def _error(self, code: str, cause: str) -> RunError:
        return RunError(
            code,
            cause,
            cell=self.cell or None,
            next_step=f"read {self.log}",
            detail=tail(self.log),
        )


def tail(log: Path, lines: int = LOG_TAIL_LINES) -> str:
    """Last lines of a log, bounded to 4 kB; empty when there is none."""
    try:
        with log.open("rb") as source:
            source.seek(0, os.SEEK_END)
            source.seek(max(0, source.tell() - 4096))
            text = source.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def connect() -> Channel:
    """Child side: the channel whose descriptor is the first argument; not inherited further."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(sock.fileno(), False)
    return Channel(sock)
