"""Orders of a made-up shop as JSON lines, the same ones every time.

python -m examples.order_events --count 10 | gazctl journals append -l name:prefix=acme/orders/ -f lines
python -m examples.order_events --count 9 --keys | gazctl journals append -l name:prefix=acme/orders/ -f lines -m modulo
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator

PRODUCTS = (
    "anvil",
    "birdseed",
    "catapult",
    "dynamite",
    "earthquake pills",
    "giant magnet",
    "jet skates",
    "tornado kit",
)
FIRST_S = 1_700_000_000


def events(count: int, seed: int = 1) -> Iterator[tuple[str, str]]:
    """The customer, by whom orders are kept together, and the order as JSON."""
    chance = random.Random(seed)
    for number in range(count):
        customer = f"c{chance.randrange(5_000):04}"
        product, amount = PRODUCTS[chance.randrange(len(PRODUCTS))], 1 + chance.randrange(4)
        cents, at_s = amount * (100 + chance.randrange(100_00)), FIRST_S + number // 50
        yield (
            customer,
            f'{{"order":{number},"customer":"{customer}","product":"{product}","amount":{amount},'
            f'"cents":{cents},"at":{at_s}}}',
        )


def main() -> None:
    arguments = argparse.ArgumentParser(description="Print orders as JSON lines.")
    arguments.add_argument("--count", type=int, default=1000)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--keys", action="store_true", help="Before each order, a line with its customer.")
    given = arguments.parse_args()
    for customer, order in events(given.count, given.seed):
        sys.stdout.write(f"{customer}\n{order}\n" if given.keys else f"{order}\n")


if __name__ == "__main__":
    main()
