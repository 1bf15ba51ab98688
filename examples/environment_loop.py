"""The usual loop of Gymnasium, with an environment whose observations and actions are texts."""

from __future__ import annotations

import gymnasium as gym

import fedagentgym  # noqa: F401 - registers the ids


def main() -> None:
    env = gym.make("fedagentgym/Guess-v0", render_mode="human")  # prints observations and actions
    observation, info = env.reset(seed=7)
    low, high, over = 1, len(info["admissible"]), False
    while not over:
        guess = (low + high) // 2
        observation, reward, terminated, truncated, info = env.step(f"guess {guess}")
        low, high = (guess + 1, high) if "higher" in observation else (low, guess - 1)
        over = terminated or truncated
    print(f"{info['turn']} turns of at most {env.spec.max_episode_steps}, success: {info['success']}")  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
