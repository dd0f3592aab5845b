"""Specs that exercise every parameter of an algorithm, for any number of ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ringleader.algorithms import Algorithm, Parameter, check, names
from ringleader.algorithms.parameter import nested
from ringleader.errors import InvalidArgument

INTEGERS = {"segments": (1, 2, 5), "radix": (2, 3, 5), "aggregation": (1, 3)}


def divisors(n: int) -> list[tuple[int, ...]]:
    """Ways to write n as a product of two or three sides, a few of them."""
    pairs = [(a, n // a) for a in range(2, n) if n % a == 0]
    triples = [(a, b, c) for a, rest in pairs for b, c in ((k, rest // k) for k in range(2, rest) if rest % k == 0)]
    return [*pairs[:1], *pairs[-1:], *triples[:1]]


def layouts(n: int) -> list[tuple[int, ...]]:
    """Sizes of hosts: even and uneven, one host, hosts of one rank."""
    found = [(n,), (1,) * n]
    if n > 2:
        found += [(n - 1, 1), (1, n - 1), (n // 2, n - n // 2)]
    if n > 5:
        found += [(n // 2, n // 3, n - n // 2 - n // 3), (2, n - 4, 2)]
    return found


def values(parameter: Parameter, n: int) -> Iterator[str]:
    """Values of a parameter, as text; not all are possible for every n."""
    if parameter.choices:
        yield from parameter.choices
    elif parameter.of:  # a few, others for each n
        known = names(parameter.of)
        yield from (known[(3 * n + 5 * k) % len(known)] for k in range(3))
        yield from (nested(spec) for spec in ("ring:segments=2",) if "ring" in known)
    elif parameter.name == "hosts":
        yield from map(parameter.text, layouts(n))
    elif parameter.name == "dims":
        yield from map(parameter.text, [(n,), *divisors(n)])
    elif parameter.name == "order":
        stride = next(k for k in (3, 5, 7, 2, 1) if math.gcd(k, n) == 1)
        yield parameter.text(tuple(k * stride % n for k in range(n)))
    elif parameter.name == "shares":
        yield parameter.text(tuple((5 * k + 1) % 4 for k in range(n)))
    else:
        few = (parameter.low, parameter.low + 1, parameter.low + 4)
        yield from map(str, INTEGERS.get(parameter.name, [k for k in few if k <= parameter.high]))


def variants(entry: Algorithm, n: int) -> list[str]:
    """The entry with its defaults, and with each parameter at other values, as far as they are possible for n ranks."""
    found = [entry.name]
    for parameter in entry.parameters:
        for text in values(parameter, n):
            spec = f"{entry.name}:{parameter.name}={text}"
            try:
                check(entry.collective, spec, n)
            except InvalidArgument:
                continue
            found.append(spec)
    return list(dict.fromkeys(found))
