"""A client: it plays its own tasks with the weights that it was sent, and learns from them by group-relative advantages."""

from fedagentgym.experiment.flower_app import client_app as app

__all__ = ["app"]
