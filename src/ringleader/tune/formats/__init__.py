"""Rules in files of other libraries: Open MPI's and NCCL's are read. See docs/rules-formats.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringleader._lazy import lazily

if TYPE_CHECKING:
    from ringleader.tune.formats import exchange, nccl_tuner, ompi_rules, ompi_rules_json

__all__ = ["exchange", "nccl_tuner", "ompi_rules", "ompi_rules_json"]

if not TYPE_CHECKING:  # a type checker shall see what there is, and nothing else
    __getattr__, __dir__ = lazily(__name__)
