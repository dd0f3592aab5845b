"""The network as a communicator sees it: from its traffic, by probing, and for `ringleader monitor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringleader._lazy import lazily

__all__: list[str] = []

if not TYPE_CHECKING:  # a type checker shall see what there is, and nothing else
    __getattr__, __dir__ = lazily(__name__)
