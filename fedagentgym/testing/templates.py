"""A check for prompt templates of your own."""

from __future__ import annotations

import pickle

from fedagentgym.agents.text.prompts import PastTurn, Template
from fedagentgym.envs.core import open_env


def check_template(name: str, env: str = "fedagentgym/Guess-v0") -> None:
    """Check that a registered prompt template renders every prompt of an episode, the same each time and with what is seen now.

    Args:
        name: The name under which it is registered.
        env: The environment whose episodes are rendered.

    Raises:
        AssertionError: What is wrong, in one sentence.
    """
    with open_env(env) as opened:
        for think in (False, True):
            template = Template(name, think)
            assert pickle.loads(pickle.dumps(template)) == template, (
                f"template {name!r} cannot be sent to a worker process"
            )
            (episode,), expert = opened.reset_many([opened.pool.ids[0]], [0]), opened.expert()
            start, past = episode.view.observation, list[PastTurn]()
            while not episode.over:
                view, goal = episode.view, opened.goal(episode.task)
                prompts = [
                    template.render_next(opened, view, goal) if past else template.render_first(opened, view),
                    template.render_window(opened, start, past[-2:], episode.turn, view, goal),
                ]
                for prompt in prompts:
                    shown = view.observation in prompt
                    assert isinstance(prompt, str) and shown, (
                        f"template {name!r} hides the observation of turn {episode.turn}"
                    )
                again = template.render_window(opened, start, past[-2:], episode.turn, view, goal)
                assert again == prompts[1], f"template {name!r} renders one turn in two ways"
                action = expert.act(episode)
                assert action in template.render_reply(opened, action), f"template {name!r} loses the action of a reply"
                past.append(PastTurn(view.observation, action))
                (episode,) = opened.step_many([episode], [action])
