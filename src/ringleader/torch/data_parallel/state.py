"""State dictionaries: those of the wrapped model, without a prefix; "module." in front of names is understood too."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from ringleader import errors
from ringleader.torch.data_parallel.planning import FixedBuckets, PlannedBuckets
from ringleader.torch.data_parallel.reducer import Reducer

__all__ = ["PREFIX", "StateMixin", "accept_plain_names", "without_prefix"]

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


class StateMixin:
    """What a model saves and loads."""

    module: nn.Module
    _buckets: FixedBuckets | PlannedBuckets | None

    @property
    def reducer(self) -> Reducer:
        """What reduces the gradients."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait for what is on its way."""
        raise NotImplementedError

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped model's."""
        self.synchronize()
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state dictionary with or without "module." in front of all names.

        Parameters
        ----------
        assign
            Not possible: the parameters are those whose gradients are in the buckets.
        """
        if assign:
            raise errors.InvalidArgument(
                "assign=True would replace the parameters; load into the model before it is wrapped"
            )
        self.synchronize()
        return self.module.load_state_dict(without_prefix(state_dict, self.module.state_dict()), strict)

    def communication_state_dict(self) -> dict[str, Any]:
        """What the compressors remember on this rank, and of which buckets; empty without compression.

        Save it on every rank beside the model's state, which is the same on all.
        """
        compression = self.reducer.compression
        return {} if compression is None else compression.state_dict()

    def load_communication_state_dict(self, communication: Mapping[str, Any]) -> None:
        """Go on from `communication_state_dict`, on every rank, with the same buckets, which then stay as they are."""
        reducer = self.reducer
        if not communication or reducer.compression is None or self._buckets is None:
            raise errors.InvalidArgument("there is no state of compression, or this model has no compression")
        index_of = {slot.name: slot.index for slot in reducer.slots}
        unknown = [name for names in communication["layout"] for name in names if name not in index_of]
        if unknown or sum(map(len, communication["layout"])) != len(index_of):
            raise errors.InvalidArgument(
                f"the state is of other parameters than this model's {len(index_of)}: {unknown[:3]} unknown"
            )
        reducer.compression.load_state_dict(communication)
        reducer.install([[index_of[name] for name in names] for names in communication["layout"]])
        self._buckets.frozen = True
