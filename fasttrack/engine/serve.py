"""Child side of the channel: answer calls until the parent goes away.

A handler's error travels to the parent as a code, a bounded message and a traceback; the loop
goes on, so one bad request does not end a session.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fasttrack.engine.channel import ChannelClosed, connect

Answer = Mapping[str, Any] | tuple[Mapping[str, Any], Sequence[bytes]]
Handler = Callable[..., Answer]
MAX_MESSAGE = 4000


class Coded(Exception):
    """An error that already knows its code; raised by handlers."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def serve(
    handlers: Mapping[str, Handler],
    default_code: str,
    marker: Callable[[Callable[[int], None]], None] | None = None,
    left_alone: Callable[[], None] | None = None,
) -> None:
    """Answer calls by name. `default_code` marks errors that carry no code of their own.

    `marker` is given the function that sends a mark to the parent in the middle of a call;
    `left_alone` is called when the parent has gone, before this process ends.
    """
    channel = connect()
    if marker is not None:
        marker(lambda number: channel.send({"mark": number}))
    try:
        while True:
            frame, blobs = channel.receive()
            name, arguments = frame["call"], frame["arguments"]
            try:
                if name not in handlers:
                    raise Coded(default_code, f"unknown call {name!r}")
                if blobs:
                    arguments["blobs"] = blobs
                answer = handlers[name](**arguments)
                message, data = answer if isinstance(answer, tuple) else (answer, ())
                channel.send(message, data)
            except ChannelClosed:
                raise
            except BaseException as error:
                channel.send({"error": describe(error, default_code)})
    except ChannelClosed:
        if left_alone is not None:
            left_alone()
        os._exit(0)


def describe(error: BaseException, default_code: str) -> dict[str, str]:
    """Code, message and traceback of an error, bounded."""
    code = error.code if isinstance(error, Coded) else default_code
    named = "" if isinstance(error, Coded) else f"{type(error).__name__}: "
    return {
        "code": code,
        "message": f"{named}{error}"[:MAX_MESSAGE],
        "traceback": "".join(traceback.format_exception(error))[-MAX_MESSAGE:],
    }
