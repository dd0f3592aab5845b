"""The network as it is: measured by the way, shown, and acted upon. See docs/adaptive.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringleader._lazy import lazily
from ringleader.adapt.adaptive import AdaptiveAllReduce, AdaptiveWork
from ringleader.adapt.arrivals import Arrival, Arrivals
from ringleader.adapt.formats import Format, allowed
from ringleader.adapt.policy import Settings
from ringleader.adapt.switch import Switch
from ringleader.runtime.monitor.network import Network, Peer
from ringleader.runtime.monitor.probes import Prober, probe

__all__ = [
    "AdaptiveAllReduce",
    "AdaptiveWork",
    "Arrival",
    "Arrivals",
    "Format",
    "Network",
    "Peer",
    "Prober",
    "Settings",
    "Switch",
    "allowed",
    "probe",
]

if not TYPE_CHECKING:  # a type checker shall see what there is, and nothing else
    __getattr__, __dir__ = lazily(__name__)
