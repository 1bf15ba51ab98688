"""The server: it sends the agent's weights, averages what comes back, and evaluates on tasks that no client holds."""

from fedagentgym.experiment.flower_app import server_app as app

__all__ = ["app"]
