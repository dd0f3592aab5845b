"""Names that users give: which of them mean the same, and what is said about one that is not known.

Every argument, setting and option that takes one of several names goes through here, so that each of them accepts the
same spellings and suggests the nearest name for one that it does not know.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Final

__all__ = ["FLOATS", "did_you_mean", "match", "nearest", "plain", "unknown"]

# One number format, all its names, wherever a name of one is expected (docs/api.md, "Names").
FLOATS: Final[Mapping[str, tuple[str, ...]]] = {
    "f64": ("f64", "fp64", "float64", "double"),
    "f32": ("f32", "fp32", "float32", "float", "single"),
    "f16": ("f16", "fp16", "float16", "half"),
    "bf16": ("bf16", "bfloat16"),
}

# What other libraries call what has another name here: for suggestions, where no similar spelling leads to it.
_SYNONYMS: Final[Mapping[str, tuple[str, ...]]] = {
    "mean": ("avg",), "average": ("avg",), "product": ("prod",), "mul": ("prod",), "multiply": ("prod",),
    "add": ("sum",), "plus": ("sum",), "and": ("band",), "bitwiseand": ("band",), "land": ("band", "min"),
    "or": ("bor",), "bitwiseor": ("bor",), "lor": ("bor", "max"), "xor": ("bxor",), "bitwisexor": ("bxor",),
    "allreducesum": ("all_reduce",), "bcast": ("broadcast",), "allgatherv": ("all_gather",),
    "socket": ("tcp",), "sockets": ("tcp",), "ethernet": ("tcp",), "net": ("tcp",), "network": ("tcp",),
    "ib": ("ucx",), "infiniband": ("ucx",), "rdma": ("ucx",), "verbs": ("ucx",), "roce": ("ucx",),
    "sm": ("shm",), "sharedmemory": ("shm",), "vader": ("shm",), "local": ("shm",),
    "1bit": ("onebit",), "8bit": ("int8",), "4bit": ("int4",), "debug": ("TRACE",), "error": ("WARN",),
    "rhd": ("recursive_halving", "rabenseifner"), "halvingdoubling": ("rabenseifner",),
    "write": ("push",), "read": ("pull",),
}  # fmt: skip


def plain(word: str) -> str:
    """A word without what does not matter: capitals, blanks, ``_`` and ``-``."""
    return re.sub(r"[\s_-]", "", word.lower())


def match(word: object, valid: Iterable[str]) -> str | None:
    """The valid word that `word` means: in whatever capitals, and by any name of a number format (`FLOATS`).

    Examples
    --------
    >>> match("AllReduce", ["all_reduce"]), match("fp16", ["f32", "f16"]), match("f16", ["float32", "float16"])
    ('all_reduce', 'f16', 'float16')
    >>> match("fp8", ["f32", "f16"]) is None
    True
    """
    if not isinstance(word, str):
        return None
    names = {plain(name): name for name in reversed(list(valid))}
    wanted = plain(word)
    if wanted in names:
        return names[wanted]
    same = next((group for group in FLOATS.values() if wanted in group), ())
    return next((names[name] for name in same if name in names), None)


def nearest(word: object, valid: Iterable[str]) -> str:
    """The valid word most like `word`, or one that means the same; empty if there is none.

    Examples
    --------
    >>> nearest("brodcast", ["broadcast", "reduce"]), nearest("mean", ["sum", "avg"]), nearest("xyz", ["sum"])
    ('broadcast', 'avg', '')
    """
    if not isinstance(word, str) or len(word) > 80:
        return ""
    names = {plain(name): name for name in reversed(list(valid))}
    wanted = plain(word)
    for name in (wanted, *(plain(synonym) for synonym in _SYNONYMS.get(wanted, ()))):
        if name in names:
            return names[name]
    near = difflib.get_close_matches(wanted, names, n=1)
    if not near and len(wanted) > 1:
        near = [name for name in names if name.startswith(wanted) or (len(name) > 2 and wanted.startswith(name))]
    return names[near[0]] if near else ""


def did_you_mean(word: object, valid: Iterable[str]) -> str:
    """The question whether the nearest word was meant, for the end of a sentence; empty if none is near.

    Examples
    --------
    >>> did_you_mean("tpc", ["tcp", "shm"])
    "; did you mean 'tcp'?"
    """
    near = nearest(word, valid)
    return f"; did you mean {near!r}?" if near else ""


def unknown(kind: str, word: object, valid: Iterable[str], more: str = "", also: Iterable[str] = ()) -> str:
    """The message for a word that is none of the valid ones, with the nearest of them.

    Parameters
    ----------
    kind
        What the word should name.
    more
        What is valid besides the listed words, as text.
    also
        Words that are valid, and suggested, but not listed.

    Examples
    --------
    >>> unknown("protocol", "psh", ("push", "pull"))
    "unknown protocol 'psh'; did you mean 'push'? Valid: push, pull"
    """
    words = list(valid)
    question = did_you_mean(word, [*words, *also])
    hint = f"{question} Valid" if question else "; valid"
    shown = repr(word) if len(repr(word)) <= 80 else f"{repr(word)[:77]}..."
    return f"unknown {kind} {shown}{hint}: {', '.join(words)}{more}"
