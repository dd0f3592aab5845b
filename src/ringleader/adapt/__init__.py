"""The network as it is: measured by the way, shown, and acted upon. See docs/adaptive.md."""

from ringleader.adapt.adaptive import AdaptiveAllReduce, AdaptiveWork, Switch
from ringleader.adapt.arrivals import Arrival, Arrivals
from ringleader.adapt.formats import Format, allowed
from ringleader.adapt.network import Network, Peer
from ringleader.adapt.policy import Settings
from ringleader.adapt.probe import Prober, probe

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
