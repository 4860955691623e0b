"""Importing this package starts a thread."""

from planted.tuner import start

start()
