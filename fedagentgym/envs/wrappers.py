"""Wrappers of gymnasium for environments of text."""

from __future__ import annotations

from typing import Any

import gymnasium


class ShowPrompt(gymnasium.Wrapper[str, str, str, str]):
    """Shows `info["prompt"]` in place of every observation, for agents that read only observations.

    Args:
        env: An environment of this package, wrapped or not.

    Examples:
        >>> import fedagentgym
        >>> env = ShowPrompt(gymnasium.make("fedagentgym/Math-v0", size="tiny"))
        >>> print(env.reset(seed=0)[0].partition("\\n")[0])
        You solve mathematical problems.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Seed of the episode.
            options: `{"task": id}` plays this task.

        Returns:
            The prompt, and `info`.
        """
        _, info = self.env.reset(seed=seed, options=options)
        return info["prompt"], info

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """Play one action.

        Args:
            action: Any text.

        Returns:
            The next message to a chat model, and the other values as the environment returns them.
        """
        _, reward, terminated, truncated, info = self.env.step(action)
        return info["prompt"], reward, terminated, truncated, info
