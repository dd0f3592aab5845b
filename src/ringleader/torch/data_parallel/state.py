"""State dictionaries: those of the wrapped model, without a prefix; "module." in front of names is understood too."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

__all__ = ["PREFIX", "accept_plain_names", "without_prefix"]

PREFIX = "module."


def without_prefix(state: Mapping[str, Any], own: Iterable[str]) -> OrderedDict[str, Any]:
    """`state` with the names that the wrapped model gives its entries.

    Parameters
    ----------
    own
        These names. A model that has a child "module" itself is told from a prefix by them.

    Examples
    --------
    >>> without_prefix({"module.weight": 1, "bias": 2}, ["weight", "bias"])
    OrderedDict([('weight', 1), ('bias', 2)])
    """
    known = set(own)

    def name_of(key: str) -> str:
        return key if key in known or not key.startswith(PREFIX) else key[len(PREFIX) :]

    plain = OrderedDict((name_of(key), value) for key, value in state.items())
    metadata = getattr(state, "_metadata", None)
    if metadata is not None:
        prefixed = any(key not in known and key.startswith(PREFIX) for key in state)
        if prefixed:  # versions of the model's parts, "module" being the model itself
            metadata = {key[len(PREFIX) :]: value for key, value in metadata.items() if f"{key}.".startswith(PREFIX)}
        plain._metadata = metadata  # type: ignore[attr-defined]
    return plain


def accept_plain_names(wrapper: nn.Module) -> None:
    """Let a wrapper that is a part of another model load names without the prefix, as it saves them."""

    def rename(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
        own: set[str] = set(module.get_submodule("module").state_dict())
        for key in [key for key in state if key.startswith(prefix)]:
            rest = key[len(prefix) :]
            if rest in own or not rest.startswith(PREFIX):
                state[f"{prefix}{PREFIX}{rest}"] = state.pop(key)

    wrapper.register_load_state_dict_pre_hook(rename)  # type: ignore[no-untyped-call]
