"""Checks of agents and of prompt templates."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import partial

from fedagentgym.agents import AGENTS
from fedagentgym.agents.players.own import Agent
from fedagentgym.agents.presets import make_agent
from fedagentgym.agents.protocols import Move, Player
from fedagentgym.agents.text.prompts import TEMPLATES, PastTurn, Template
from fedagentgym.base.streams import stream
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.make import open_env
from fedagentgym.envs.view import Episode
from fedagentgym.testing.conditions import errors_as_failures, global_generators_untouched

EPISODES = 6
PARALLEL = 3
AGENT_DUTY = "an agent has reply(observation, info), which returns a text"
TEMPLATE_DUTY = "a template is a class derived from Template, whose methods take the same arguments and return texts"


def check_agent(agent: str | Player, *, env: str = "fedagentgym/Guess-v0", **settings: object) -> None:
    """Check an agent by a few episodes.

    The agent must return one move for each episode, with as many log-probabilities as tokens; make the same moves when it draws
    from the same streams; and not use the global random generators. An agent without tokens must also play an episode in the same
    way whichever other episodes are played in parallel. A language model does so only up to floating point.

    Args:
        agent: The agent, or the name under which it is registered.
        env: Id of the environment that it plays.
        **settings: Settings of a registered agent, as in `agent` of a configuration.

    Raises:
        AssertionError: If the check fails; the message is one sentence.

    Examples:
        >>> from fedagentgym.testing import check_agent
        >>> check_agent("random")
    """
    with errors_as_failures(AGENT_DUTY, partial(_find_agent, agent), who="the agent"):
        made = open_env(env)
        assert not settings or isinstance(agent, str), "settings are for an agent that is given by its name"
        player = make_agent({"name": agent, **settings} if isinstance(agent, str) else agent, made, seed=0)
        name = getattr(player, "name", None)
        assert isinstance(name, str) and name, (
            f"{agent if isinstance(agent, str) else type(agent).__name__} has no name"
        )
        assert name == agent or not isinstance(agent, str), (
            f"{agent} calls itself {name}: results would name another agent"
        )
        hint = ": set attributes of an episode in reset()" if isinstance(player, Agent) else ""
        with global_generators_untouched(name):
            first = played_moves(player, made, PARALLEL)
            again = played_moves(player, made, PARALLEL)
        assert first == again, f"{name} makes other moves with the same random streams{hint}"
        if not any(move.token_ids for moves in first for move in moves):
            alone = played_moves(player, made, 1)
            assert first == alone, f"{name} plays an episode differently when others are played in parallel{hint}"
        player.close()


def _find_agent(agent: str | Player) -> object:
    return AGENTS.get(agent) if isinstance(agent, str) else type(agent)


def played_moves(agent: Player, env: TextEnv, parallel: int) -> list[list[Move]]:
    """Play some episodes, `parallel` of them at a time, and return the moves of each. A freed row goes to the next episode."""
    waiting = list(range(EPISODES))
    numbers: dict[int, int] = {}
    episodes: dict[int, Episode] = {}
    moves: list[list[Move]] = [[] for _ in waiting]
    with agent.play(env) as players:
        while waiting or episodes:
            fresh, waiting = waiting[: parallel - len(episodes)], waiting[parallel - len(episodes) :]
            begun = env.reset_many([env.pool[number].id for number in fresh], fresh)
            rows = players.enter(begun, [stream(0, "check agent", number) for number in fresh])
            assert len(rows) == len(fresh), f"{agent.name}: enter gives {len(rows)} rows for {len(fresh)} episodes"
            assert len({*rows, *episodes}) == len(rows) + len(episodes), f"{agent.name}: enter gives a row away twice"
            numbers.update(zip(rows, fresh, strict=True))
            episodes.update(zip(rows, begun, strict=True))
            order = list(episodes)
            found = players.act(order, [episodes[row] for row in order])
            check_moves(agent.name, found, order)
            for row, move in zip(order, found, strict=True):
                moves[numbers[row]].append(move)
                if move.finish != "context":
                    (episodes[row],) = env.step_many([episodes[row]], [move.action])
            over = [
                row for row, move in zip(order, found, strict=True) if move.finish == "context" or episodes[row].over
            ]
            players.leave(over)
            for row in over:
                del episodes[row]
    return moves


def check_moves(name: str, moves: Sequence[Move], rows: Sequence[int]) -> None:
    """Check that `moves` has one well-formed move per row."""
    assert len(moves) == len(rows), f"{name}: act gives {len(moves)} moves for {len(rows)} rows"
    for move in moves:
        assert isinstance(move, Move), f"{name}: act gives a {type(move).__name__} in place of a Move"
        assert isinstance(move.action, str) and isinstance(move.reply, str), f"{name}: an action or reply is no string"
        tokens, logprobs, allowed = len(move.token_ids), len(move.logprobs), len(move.allowed)
        assert logprobs == tokens, f"{name}: a move has {tokens} tokens and {logprobs} log-probs"
        assert allowed in (0, tokens), (
            f"{name}: a move has {tokens} tokens, and the tokens that were allowed at {allowed} places"
        )


def check_template(name: str, env: str = "fedagentgym/Guess-v0") -> None:
    """Check a registered prompt template by the prompts of an episode.

    The template must render a text for every turn, the same each time, which contains the present observation.

    Args:
        name: The name under which it is registered.
        env: Id of the environment whose episode is rendered.

    Raises:
        AssertionError: If the check fails; the message is one sentence.

    Examples:
        >>> from fedagentgym.testing import check_template
        >>> check_template("compact")
    """
    known = errors_as_failures(TEMPLATE_DUTY, partial(TEMPLATES.get, name), who=f"the template {name!r}")
    with known, open_env(env) as opened:
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
                    assert isinstance(prompt, str), f"template {name!r} renders a {type(prompt).__name__}, no string"
                    assert view.observation in prompt, f"template {name!r} hides the observation of turn {episode.turn}"
                again = template.render_window(opened, start, past[-2:], episode.turn, view, goal)
                assert again == prompts[1], f"template {name!r} renders one turn in two ways"
                action = expert.act(episode)
                reply = template.render_reply(opened, action)
                assert isinstance(reply, str), f"template {name!r} renders a {type(reply).__name__}, no string"
                assert action in reply, f"template {name!r} loses the action of a reply"
                past.append(PastTurn(view.observation, action))
                (episode,) = opened.step_many([episode], [action])
