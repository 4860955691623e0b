"""The watch over a device that does not finish its steps.

Protects: that a step which is never finished ends the process within the limit and with a word, and
that slow steps, idle times and steps nobody told of do not.
"""

from __future__ import annotations

import subprocess
import sys
import time

from kimi_k3.intree.watch import STATUS, Watch

LIMIT_S = 0.3


class Device:
    """Finishes steps when it is told to."""

    def __init__(self) -> None:
        self.done = 0
        self.said: list[str] = []
        self.watch = Watch(lambda: self.done, LIMIT_S, 0.01, self.said.append)


def test_a_step_that_is_never_finished_is_told_within_the_limit() -> None:
    device = Device()
    device.watch.given()
    device.done = 1
    device.watch.given()
    begin = time.monotonic()
    while not device.said and time.monotonic() - begin < 20 * LIMIT_S:
        time.sleep(0.01)
    assert "not finished within" in device.said[0]
    assert time.monotonic() - begin >= LIMIT_S


def test_progress_and_idle_times_are_no_loss() -> None:
    device = Device()
    for _ in range(4):  # two steps in flight, each slower than a look and faster than the limit
        device.watch.given()
        time.sleep(LIMIT_S / 3)
        device.done += 1
    device.done += 100  # replayed by hand
    device.watch.given()
    device.done += 1
    time.sleep(2 * LIMIT_S)  # nothing to do
    assert not device.said


def test_steps_nobody_told_of_do_not_hide_a_loss() -> None:
    device = Device()
    device.watch.given()
    device.done = 500
    device.watch.given()
    time.sleep(3 * LIMIT_S)
    assert device.said


def test_the_process_ends_with_a_word() -> None:
    code = (
        "import time; from kimi_k3.intree.watch import Watch\n"
        "watch = Watch(lambda: 0, 0.1, 0.01); watch.given(); time.sleep(60)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert done.returncode == STATUS
    assert "all must stop" in done.stderr
