"""Executors of schedules other than the native engine."""

from ringleader.executors.reference import run

__all__ = ["run"]
