"""Horovod's interface over Ringleader: ``import ringleader.horovod.torch as hvd`` where a script imports Horovod.

`ringleader.horovod.torch` has the functions; see docs/horovod.md for what is the same and what is not.
"""
