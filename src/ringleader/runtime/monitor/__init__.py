"""The network as a communicator sees it: from its traffic, by probing, and for `ringleader monitor`."""
