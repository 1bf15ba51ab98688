"""Tasks from data: published data sets, read from files or installed copies, and rows of your own."""

from __future__ import annotations

from fedagentgym.envs.reasoning.sources.catalogue import SOURCES, Source, find_source
from fedagentgym.envs.reasoning.sources.loading import Loaded, Request, load

__all__ = ["SOURCES", "Loaded", "Request", "Source", "find_source", "load"]
