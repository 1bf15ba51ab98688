"""Wrappers of gymnasium for environments of text."""

from __future__ import annotations

from typing import Any

import gymnasium


class ShowInstructions(gymnasium.Wrapper[str, str, str, str]):
    """Puts `info["instructions"]` in front of the first observation of every episode, for agents that read observations alone.

    Args:
        env: An environment of this package, wrapped or not.

    Examples:
        >>> import fedagentgym
        >>> env = ShowInstructions(gymnasium.make("fedagentgym/Math-v0", size="tiny"))
        >>> print(env.reset(seed=0)[0].partition("\\n")[0])
        You solve mathematical problems.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Seed of the episode.
            options: `{"task": id}` plays this task.

        Returns:
            The instructions and the observation, and `info`.
        """
        observation, info = self.env.reset(seed=seed, options=options)
        return f"{info['instructions']}\n\n{observation}", info
