"""Bounded by nothing but its peers."""

from exchange import Exchange


def cases() -> list[Exchange]:
    return [Exchange("exchange_that_waits")]
