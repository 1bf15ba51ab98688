"""One episode as chat messages, for your own loop around any library that answers such messages:

chat = Conversation(env, task)
while not chat.reply(client.ask(chat.messages)):
    pass
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedagentgym.agents.text.prompts import Dialogue, Message, Template, parse_strict
from fedagentgym.base.errors import OptionError, show_value

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv


class Conversation:
    """One episode as chat messages, for a loop of your own around any model: send `messages`, give the reply to `reply`.

    Args:
        env: The environment, without gymnasium's wrappers.
        task: The id of its task.
        seed: Seed of the episode.
        template: The prompt template; by default the standard one without thoughts.

    Attributes:
        episode: The present `Episode`; the outcome is in `episode.over`, `episode.view.score` and `episode.view.success`.

    Raises:
        UnknownNameError: If the environment has no such task.

    Examples:
        >>> from fedagentgym.envs import open_env
        >>> env = open_env("fedagentgym/Guess-v0")
        >>> chat = Conversation(env, env.pool.ids[0])
        >>> chat.messages[-1]["role"], chat.reply("guess 4"), len(chat.messages)
        ('user', False, 3)
    """

    def __init__(self, env: TextEnv, task: str, seed: int = 0, template: Template | None = None) -> None:
        self.env, self.template = env, template or Template(think=False)
        (self.episode,) = env.reset_many([task], [seed])
        self._dialogue = Dialogue(env, self.template, "session", 0, self.episode.view.observation)

    @property
    def messages(self) -> list[Message]:
        """The messages that the model answers next, each with `role` and `content`. The last one is the newest observation."""
        return [dict(message) for message in self._dialogue.build_messages(self.episode)]

    def reply(self, text: str) -> bool:
        """Play a reply of the model.

        Args:
            text: The reply. The action is the text between its `<action>` tags, or the whole reply if it has no tags or the
                environment takes whole replies.

        Returns:
            Whether the episode is over.

        Raises:
            OptionError: If the reply is not a text, or the episode was already over.
        """
        if not isinstance(text, str):
            raise OptionError(f"a reply must be a text, got {show_value(text)}")
        if self.episode.over:
            raise OptionError("the episode is over: make a new Conversation")
        action = text
        if self.env.takes != "reply":
            tagged = "<action>" in text
            action = parse_strict(text, self.template.think).action if tagged else text.strip()
        self._dialogue.record_turn(self.episode, self._dialogue.build_messages(self.episode), text, action)
        (self.episode,) = self.env.step_many([self.episode], [action])
        return self.episode.over
