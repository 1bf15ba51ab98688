"""Why the replies of an evaluation are malformed: a success of 0 is more often due to a wrong prompt than to a bad agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fedagentgym.agents.agent import TokenAgent
from fedagentgym.base.errors import show_control_characters
from fedagentgym.learning.rollouts import Player
from fedagentgym.learning.trajectory import Group, Turn

TOLERATED = 0.9
"""Share of malformed replies above which an evaluation reports them."""
_SHOWN = 60


def explain_malformed(groups: Sequence[Group], agent: Player) -> str | None:
    """One sentence about malformed replies, if nearly all are malformed; None otherwise."""
    turns = [turn for group in groups for trajectory in group for turn in trajectory.turns]
    broken = [turn for turn in turns if not turn.format]
    if len(broken) <= TOLERATED * len(turns):
        return None
    reasons = Counter(_find_reason(turn, agent) for turn in broken)
    reason, _ = reasons.most_common(1)[0]
    example = next(turn.reply for turn in broken if _find_reason(turn, agent) == reason)
    shown = " ".join(show_control_characters(example).split())
    shown = f"{shown[:_SHOWN]}..." if len(shown) > _SHOWN else shown
    quoted = f", such as '{shown}'" if shown else ""
    return f"{len(broken) / len(turns):.0%} of replies are malformed: most {reason}{quoted}{_suggest(agent)}"


def _find_reason(turn: Turn, agent: Player) -> str:
    """What is wrong with a reply, according to its parser."""
    template, limit = getattr(agent, "template", None), _get_limit(agent)
    reply = turn.reply.lower()
    if not reply.strip():
        return "are empty"
    if limit is not None and turn.tokens >= limit and "</action>" not in reply:
        return f"are cut off after {limit} tokens (decoding.max_new_tokens)"
    if "<action>" not in reply or "</action>" not in reply:
        return "lack <action>...</action>"
    if getattr(template, "think", False) and ("<think>" not in reply or "</think>" not in reply):
        return "lack the <think>...</think> that the prompt requires"
    return "contain more than one action"


def _get_limit(agent: Player) -> int | None:
    return agent.decoding.max_new_tokens if isinstance(agent, TokenAgent) else None


def _suggest(agent: Player) -> str:
    """A hint about the prompt that the model was given."""
    if not isinstance(agent, TokenAgent):
        return ""
    given = f"template {agent.template.name}, think {str(agent.template.think).lower()}, context {agent.context}"
    return f"; was the model trained with this prompt ({given})? A folder made by `fedagentgym export` keeps its own"
