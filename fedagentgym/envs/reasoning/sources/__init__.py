"""Published task data: from files in their published form, from installed copies, or from the Hugging Face hub."""

from __future__ import annotations

from fedagentgym.envs.reasoning.sources.catalogue import SOURCES, Source, find_source
from fedagentgym.envs.reasoning.sources.loading import Loaded, Request, load

__all__ = ["SOURCES", "Loaded", "Request", "Source", "find_source", "load"]
