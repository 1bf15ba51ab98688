"""`fedagentgym/ALFWorld-v0`: household tasks as text, in the native engine or the real one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, model_validator

from fedagentgym.base.errors import DataError, OptionError, check_choice
from fedagentgym.base.streams import derive
from fedagentgym.envs.alfworld.engine import list_admissible_commands, start, step
from fedagentgym.envs.alfworld.expert import HouseholdExpert
from fedagentgym.envs.alfworld.folders import (
    PUBLISHED_GAMES,
    get_folder_index,
    make_folder_pool,
    resolve_games_folder,
)
from fedagentgym.envs.alfworld.game import Game, HouseState
from fedagentgym.envs.alfworld.gamefiles import make_game_content
from fedagentgym.envs.alfworld.houses import TURNS, list_house_words, make_house_pool
from fedagentgym.envs.alfworld.plans import APPLIANCE
from fedagentgym.envs.alfworld.reader import read_json_object
from fedagentgym.envs.alfworld.real import RealEngine
from fedagentgym.envs.alfworld.wording import SENTENCE_TEMPLATES, extract_words, list_game_words
from fedagentgym.envs.misconceptions import MisleadableEnv, Procedures
from fedagentgym.envs.options import INSTALLED, EnvOptions, local, play, task
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.protocols import Expert, Handicap
from fedagentgym.envs.tasks import Task
from fedagentgym.envs.variants import ChosenVariant, ClientVariant, Variant
from fedagentgym.envs.view import View


class OwnRooms(ClientVariant):
    """Three rooms of each kind that no other client and no split has."""

    client: int = Field(ge=0, strict=True)
    seed: int = Field(default=0, ge=0, strict=True)

    @property
    def owner(self) -> str:
        """The owner of the private rooms, as the generator names it."""
        return f"{self.seed}.{self.client}"


def _check_generated(kind: str, games: str | Path | None, pool: TaskPool | None) -> None:
    """Raise if the houses are not generated, so that this kind of variant cannot change them."""
    if games is not None or pool is not None:
        option = "games=FOLDER" if pool is None else "pool="
        raise OptionError(f"the variant {kind} changes generated houses: leave it out with {option}")


class SceneSplit(Variant):
    """The client's errands happen in rooms of its own, which no other client and no evaluation game has."""

    kind = "scene_split"
    client_variant = OwnRooms

    def check_options(self, options: EnvOptions, pool: TaskPool | None) -> None:
        _check_generated(self.kind, getattr(options, "games", None), pool)

    def draw(self, seed: int, client: int) -> OwnRooms:
        return OwnRooms(client=client, seed=derive(seed, "world", self.kind))


class OwnWording(ClientVariant):
    """The wording of a client's games."""

    wording: Literal["move", "put"]


class HouseWording(ChosenVariant):
    """Each client's games use one of ALFWorld's two wordings."""

    kind = "wording"
    client_variant = OwnWording
    possibilities = (OwnWording(wording="move"), OwnWording(wording="put"))

    def check_options(self, options: EnvOptions, pool: TaskPool | None) -> None:
        _check_generated(self.kind, getattr(options, "games", None), pool)


_WON, _NOT_WON = {"accuracy/alfworld": 1.0}, {"accuracy/alfworld": 0.0}
_EXTRA: Mapping[str, Mapping[str, Any]] = {wording: {"wording": wording} for wording in ("move", "put")}


class NativeState(NamedTuple):
    """An episode's state in the native engine."""

    game: Game
    state: HouseState


class ReplayState(NamedTuple):
    """An episode's state in the real engine: the game, the commands so far, and the admissible ones."""

    game: Game
    commands: tuple[str, ...]
    admissible: tuple[str, ...]


def _freeze(formula: Any) -> Any:
    return tuple(map(_freeze, formula)) if isinstance(formula, list | tuple) else formula


def _freeze_goal(game: Game) -> Game:
    """The game with the lists of its goal, which was read from plain values, as tuples again."""
    return replace(game, goal=_freeze(game.goal))


class HouseOptions(EnvOptions):
    """Generated houses or the games of a folder, and the engine that plays them."""

    engine: Literal["native", "textworld"] = play(
        "native",
        description="engine: native, plain Python over small values; textworld, the original one"
        " in a process of its own (extra `[alfworld]`)",
    )
    games: str | Path | None = local(
        None,
        description="folder; every `game.tw-pddl` below it is played; `installed`: the imported data set; null: generated houses",
    )
    size: Literal["tiny", "small", "full"] = task("full", description="size of generated houses")
    seed: int = task(0, ge=0, description="seed of generated houses")
    wording: Literal["move", "put"] = task(
        "move", description="wording of generated games: `move X to Y`, or `put X in/on Y`"
    )
    plan: bool = play(
        False,
        description="with textworld: `info['expert_plan']` has its planner's actions from the current state to the goal",
    )

    @model_validator(mode="after")
    def _check_plan(self) -> Self:
        if self.plan and self.engine != "textworld":
            raise ValueError("plan=True asks the real engine's planner for a plan: it needs engine='textworld'")
        return self

    def count_turns(self, usual: int) -> int:
        """`max_turns`, or the usual number, which is smaller for tiny houses."""
        return self.max_turns or (TURNS.get(self.size, usual) if self.games is None else usual)


class ALFWorldEnv(MisleadableEnv[HouseOptions]):
    """Find, fetch, clean, heat, cool and place things in a house that shows itself only as text.

    **Tasks.** Put an object somewhere (`Pick`), or two of a kind (`Pick2`), or one that has to be cleaned (`Clean`), heated
    (`Heat`) or cooled (`Cool`) first, or look at an object under a lamp (`Look`). By default houses are generated after
    ALFRED's counts, in the sizes `tiny`, `small` and `full`, the last two with ALFWorld's own numbers of games. `games=FOLDER`
    plays every `game.tw-pddl` below a folder, and `games="installed"` the real data set after it was imported.
    **Actions.** The commands listed in `info["admissible"]`, such as `go to fridge 1` or `heat egg 2 with microwave 1`;
    anything else answers `Nothing happens.` and costs a turn.
    **Observations.** ALFWorld's texts. `info["wording"]` names which of the two wordings a game uses: `move X to Y`
    (today's) or `put X in/on Y` (of earlier releases); scores under the two are not comparable.
    **Reward.** 1 when the goal holds after a command, else 0. An episode has at most 50 turns, in tiny houses 20.
    **Versions.** v0: ALFWorld 0.4.2's rules.
    """

    id = "fedagentgym/ALFWorld-v0"
    payload_type = Annotated[Game, AfterValidator(_freeze_goal)]
    role = "You are an agent in a household and have to fulfil a task by giving one text command per turn."
    action_help = (
        "go to PLACE, open PLACE, close PLACE, take THING from PLACE, move THING to PLACE (put THING in/on PLACE in games "
        "that offer it), clean THING with PLACE, heat THING with PLACE, cool THING with PLACE, use THING, slice THING with "
        "KNIFE, examine PLACE or THING, inventory, look, help."
    )
    split_aliases: ClassVar[Mapping[str, str]] = {"valid_seen": "val", "valid_unseen": "test"}
    default_max_turns = 50
    shares_pools = True
    reward_names = ("accuracy/alfworld",)
    variants = (SceneSplit, HouseWording)
    handicap = Handicap(error=0.5, turns=17)

    @staticmethod
    def count_published(options: HouseOptions) -> tuple[Mapping[str, int], ...]:
        """The numbers of games of the real data set, if the options name it."""
        return (PUBLISHED_GAMES,) if options.games == INSTALLED else ()

    def set_up(self) -> None:
        games = self.options.games
        self.folder = None if games is None else resolve_games_folder(games)
        self._real = RealEngine() if self.options.engine == "textworld" else None
        if isinstance(self.variant, OwnRooms | OwnWording):
            kind = SceneSplit.kind if isinstance(self.variant, OwnRooms) else HouseWording.kind
            _check_generated(kind, games, self.given_pool)

    def load_pool(self, split: str) -> TaskPool:
        """Generated houses, or the games of the folder; see `make_house_pool` and `folders`."""
        if self.folder is not None:
            return make_folder_pool(self.folder, split, env=self.id)
        return make_house_pool(
            split,
            env=self.id,
            size=self.options.size,
            seed=self.options.seed,
            wording=self.options.wording,
            owner=self.variant.owner if isinstance(self.variant, OwnRooms) else "",
            own_wording=self.variant.wording if isinstance(self.variant, OwnWording) else None,
        )

    def begin(self, task: Task, seed: int) -> tuple[Any, View]:
        game = task.payload
        if not isinstance(game, Game):
            raise DataError(f"the task {task.id} holds no ALFWorld game but a value of type {type(game).__name__}")
        if self._real is not None:
            return self._replay(game, (), True)
        outcome = start(game)
        return NativeState(game, outcome.state), _make_native_view(game, outcome.state, outcome.feedback, True, False)

    def advance(self, state: Any, action: str) -> tuple[Any, View]:
        if isinstance(state, ReplayState):
            return self._replay(state.game, (*state.commands, action), action.strip() in state.admissible)
        game, before = state
        after, feedback, valid = step(game, before, action)
        return NativeState(game, after), _make_native_view(game, after, feedback, valid, True)

    def goal(self, task: Task) -> str:
        return str(task.payload.task)

    def vocabulary(self) -> Iterable[str]:
        said = list_game_words() | extract_words(self.action_help)
        if self.folder is not None:
            return said | set(get_folder_index(self.folder).words)
        sentences = (text for texts in SENTENCE_TEMPLATES.values() for text in texts)
        tasks = extract_words(" ".join(sentences).replace("{thing}", "").replace("{place}", ""))
        return said | tasks | list_house_words(self.options.size)

    def expert(self) -> Expert:
        return HouseholdExpert()

    def list_procedures(self) -> Mapping[str, Procedures]:
        """The treatments, each of which could be mistaken for another."""
        return {own: Procedures(own, tuple(other for other in APPLIANCE if other != own)) for own in APPLIANCE}

    def misled_expert(self, procedure: str) -> Expert:
        return HouseholdExpert(check_choice("procedure", procedure, tuple(APPLIANCE)))

    def follows(self, task: Task, actions: Sequence[str], procedure: str) -> bool:
        """Return whether the last treatment was this procedure. If nothing was treated in a room without its appliance, return
        whether something was put down."""
        verbs = [action.partition(" ")[0].capitalize() for action in actions]
        treated = [verb for verb in verbs if verb in APPLIANCE]
        if treated or not isinstance(task.payload, Game) or APPLIANCE[procedure] in task.payload.receptacle_kinds:
            return bool(treated) and treated[-1] == procedure
        return "Move" in verbs or "Put" in verbs

    def close(self) -> None:
        """End the real engine's process, if one runs."""
        if self._real is not None:
            self._real.close()
        super().close()

    def _replay(self, game: Game, commands: tuple[str, ...], valid: bool) -> tuple[ReplayState, View]:
        """Return what the real engine shows after these commands."""
        if self._real is None:
            raise OptionError("this snapshot is of an environment with engine='textworld': restore it in one")
        answer = self._real.play(load_game_content(game), commands, self.options.plan)
        extra = _EXTRA[game.wording]
        if answer.plan is not None:
            extra = {**extra, "expert_plan": list(answer.plan)}
        view = _make_view(answer.feedback, answer.admissible, answer.won, valid, bool(commands), extra)
        return ReplayState(game, commands, answer.admissible), view


@lru_cache(maxsize=16)
def load_game_content(game: Game) -> Mapping[str, Any]:
    """The file content that the real engine loads for a game: read from its file, or made if it was generated."""
    return read_json_object(Path(game.origin)) if game.origin else make_game_content(game)


def _make_native_view(game: Game, state: HouseState, feedback: str, valid: bool, played: bool) -> View:
    return _make_view(feedback, list_admissible_commands(game, state), state.won, valid, played, _EXTRA[game.wording])


def _make_view(
    feedback: str, commands: tuple[str, ...], won: bool, valid: bool, played: bool, extra: Mapping[str, Any]
) -> View:
    """A view. In the rare game whose goal holds at the start, it pays only after the first command."""
    # By position: reward, score, success, done, valid, rewards, extra. Keywords would add 2 % or more to a step.
    if won and played:
        return View(feedback, commands, 1.0, 1.0, True, True, valid, _WON, extra)
    return View(feedback, commands, 0.0, 0.0, False, False, valid, _NOT_WON, extra)
