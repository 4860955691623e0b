"""Nobody waits for the peers' data."""

from exchange import Exchange


class Hopes(Exchange):
    waits = False


def cases() -> list[Hopes]:
    return [Hopes("exchange_without_wait")]
