"""Files of other libraries: algorithms, rules and tuner tables, in and out. See docs/formats.md.

The modules are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringleader._lazy import lazily

if TYPE_CHECKING:
    from ringleader.formats import exchange, msccl, mscclpp, nccl_tuner, ompi_export, ompi_import, ompi_rules

__all__ = ["exchange", "msccl", "mscclpp", "nccl_tuner", "ompi_export", "ompi_import", "ompi_rules"]

if not TYPE_CHECKING:  # a type checker shall see what there is, and nothing else
    __getattr__, __dir__ = lazily(__name__)
