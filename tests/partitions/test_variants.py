"""Variants: declared by environments or registered, fixed by (seed, client), understood where they are played, gone in
evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

import fedagentgym
from fedagentgym.base.errors import FedAgentGymError, OptionError, UnknownNameError
from fedagentgym.base.streams import stream
from fedagentgym.envs import ENVIRONMENTS, open_env, variants
from fedagentgym.envs.guess import GuessEnv
from fedagentgym.envs.variants import ClientVariant, Variant, assign_variants, complete_request
from fedagentgym.envs.view import View
from fedagentgym.partitions.client_split import federate, load_client_split
from fedagentgym.testing import check_env, check_variant

OURS = [env_id for env_id in ENVIRONMENTS.names() if env_id.startswith("fedagentgym/")]
PAIRS = [(variant.kind, env_id) for env_id in OURS for variant in ENVIRONMENTS.get(env_id).variants]
WEBSHOP, ALFWORLD, GUESS = "fedagentgym/WebShop-v0", "fedagentgym/ALFWorld-v0", "fedagentgym/Guess-v0"
SKILLS = "fedagentgym/Skills-v0"
QA, RECORDS = "fedagentgym/QA-v0", "fedagentgym/Records-v0"
SMALL: dict[str, dict[str, Any]] = {SKILLS: {"skills": 4}, QA: {"size": "tiny", "tools": ["search"]}}


def request(variant: Any, env_id: str = WEBSHOP) -> dict[str, Any]:
    return complete_request(env_id, ENVIRONMENTS.get(env_id).variants, variant)


def assign(asked: Any, seed: int, clients: int, env_id: str = WEBSHOP) -> list[dict[str, Any]]:
    drawn = assign_variants(env_id, ENVIRONMENTS.get(env_id).variants, asked, seed, clients)
    return [{} if one is None else dict(one) for one in drawn]


@pytest.mark.by_day(4)
@pytest.mark.parametrize(("kind", "env_id"), PAIRS)
def test_every_variant_that_an_environment_declares_conforms(kind: str, env_id: str) -> None:
    check_variant(env_id, kind, env=SMALL.get(env_id, {"size": "tiny"}))


def test_declared_variants() -> None:
    assert Counter(env_id for _, env_id in PAIRS) == {
        WEBSHOP: 5,
        ALFWORLD: 2,
        SKILLS: 1,
        "fedagentgym/Records-v0": 3,
        **dict.fromkeys(("fedagentgym/Math-v0", "fedagentgym/Code-v0"), 1),
        "fedagentgym/QA-v0": 2,
    }


@pytest.mark.parametrize(("kind", "env_id"), PAIRS)
def test_a_variant_depends_on_seed_and_client_only(kind: str, env_id: str) -> None:
    asked = request(kind, env_id)
    few, many = assign(asked, 5, 4, env_id), assign(asked, 5, 40, env_id)
    assert few == many[:4]
    assert assign(asked, 6, 40, env_id) != many


@pytest.mark.parametrize(
    ("kind", "count"), [("index_fields", 8), ("bm25_weights", 8), ("lookalikes", 4), ("rank_wrapper", 4)]
)
def test_variants_are_drawn_evenly(kind: str, count: int) -> None:
    own = {"client", "seed"}
    seen = Counter(str({k: v for k, v in one.items() if k not in own}) for one in assign(request(kind), 0, 800))
    assert len(seen) == count and min(seen.values()) > 0.6 * 800 / count


def test_fewer_choices() -> None:
    asked = request({"kind": "bm25_weights", "choices": 2})
    assert asked == {"kind": "bm25_weights", "choices": 2}
    assert {(one["k1"], one["b"]) for one in assign(asked, 0, 50)} == {(1.2, 0.75), (1.2, 0.0)}


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ({"kind": "bm25_weights", "choices": 9}, "has 8 possibilities to choose from, 9 are asked for"),
        ({"kind": "catalog_split", "env_div": 1.5}, "env_div"),
        ({"kind": "catalog_split", "envdiv": 0.5}, "did you mean 'env_div'"),
        ("scene_split", "known are catalog_split, index_fields"),
        ("catalogue_split", "did you mean 'catalog_split'"),
        ({"env_div": 0.5}, "the key 'kind' .known are catalog_split, index_fields"),
    ],
)
def test_bad_requests(variant: Any, message: str) -> None:
    with pytest.raises(FedAgentGymError, match=message):
        request(variant)


@pytest.mark.parametrize(
    ("env_id", "variant", "options", "said"),
    [
        (QA, "corpus_split", {}, "changes the pages that search finds: add tools="),
        (SKILLS, {"kind": "swapped_procedures", "worlds": 100}, {}, "worlds must be at most 2, .* got 100"),
        (SKILLS, {"kind": "swapped_procedures", "worlds": 5}, {"procedures": 2}, "worlds must be at most 4"),
        *(
            (name, {"kind": "wording", "choices": 9}, {}, "choices must be at most 8")
            for name in ("Math", "QA", "Code")
        ),
        (ALFWORLD, "scene_split", {"games": "nowhere"}, "changes generated houses: leave it out with games=FOLDER"),
        (ALFWORLD, "wording", {"games": "nowhere"}, "changes generated houses"),
        *((RECORDS, kind, {"data": "nowhere"}, "are for generated databases") for kind in ("schema", "rows", "rules")),
    ],
)
def test_a_variant_that_the_options_make_impossible(env_id: str, variant: Any, options: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        federate(env_id, clients=30, tasks_per_client=5, variant=variant, env=options)


def test_a_variant_that_a_pool_makes_impossible() -> None:
    pool = open_env(ALFWORLD, size="tiny").pool
    with pytest.raises(OptionError, match="the variant scene_split changes generated houses: leave it out with pool="):
        federate(ALFWORLD, clients=2, variant="scene_split", env={"size": "tiny"}, pool=pool)


@pytest.mark.parametrize(("kind", "env_id"), PAIRS)
def test_a_degree_changes_none_some_or_all(kind: str, env_id: str) -> None:
    """Degree 1 is how it was before there were degrees, and clients that are changed stay so at higher degrees."""
    assert request({"kind": kind, "degree": 1.0}, env_id) == request(kind, env_id)
    full = assign(request(kind, env_id), 3, 60, env_id)
    if env_id == SKILLS:
        return
    changed = []
    for degree in (0.0, 0.25, 0.75):
        asked = request({"kind": kind, "degree": degree}, env_id)
        drawn = assign(asked, 3, 60, env_id)
        assert all(one in ({}, same) for one, same in zip(drawn, full, strict=True))
        changed.append({client for client, one in enumerate(drawn) if one})
    assert not changed[0] and 5 < len(changed[1]) < 26 and 34 < len(changed[2]) < 56
    assert changed[1] < changed[2]


def open_worlds(degree: float, worlds: int, clients: int, **options: Any) -> list[Any]:
    variant = {"kind": "swapped_procedures", "degree": degree, "worlds": worlds}
    made = federate(SKILLS, clients=clients, tasks_per_client=4, variant=variant, env=options)
    return [client.open_env(split="val") for client in made]


@pytest.mark.parametrize(
    ("degree", "worlds", "options"),
    [(0.0, 2, {}), (0.5, 2, {}), (1.0, 2, {}), (1.0, 2, {"skills": 16}), (1.0, 4, {"procedures": 2})],
)
def test_the_ceiling_of_a_policy_that_all_clients_share(degree: float, worlds: int, options: dict[str, Any]) -> None:
    """A reply depends on the question alone, so at best it follows in each category the procedure of most clients."""
    envs = open_worlds(degree, worlds, 8, **options)
    own = [{town: procedures.own for town, procedures in env.list_procedures().items()} for env in envs]
    most = [max(Counter(world[town] for world in own).values()) / len(own) for town in own[0]]
    assert sum(most) / len(most) == (1 - degree) + degree / worlds
    plain = open_env(SKILLS, split="val", **options)
    rewards = []
    for env in envs:
        assert env.pool.digest == plain.pool.digest
        for task in env.pool.ids[: len(own[0])]:
            (here,), (there,) = env.reset_many([task], [0]), plain.reset_many([task], [0])
            assert here.view.observation == there.view.observation, "nothing in a question reveals its client"
            (told,) = env.step_many([here], [env.expert().act(here)])
            assert told.view.success, "the expert follows the client's world"
            (told,) = env.step_many([here], [plain.expert().act(there)])
            rewards.append(told.view.reward)
    assert sum(rewards) / len(rewards) == (1 - degree) + degree / worlds


def test_more_worlds_than_procedures_are_refused() -> None:
    with pytest.raises(OptionError, match="worlds must be at most 2, one for each procedure in use, got 3"):
        open_worlds(1.0, 3, 8)


def test_a_held_out_split_is_played_in_the_world_of_a_client() -> None:
    made = federate(ALFWORLD, clients=4, tasks_per_client=8, variant="wording", env={"size": "tiny"})
    spoken = []
    for client in made:
        env = client.make(split="valid_seen")
        _, told = env.reset(seed=0)
        spoken.append(told["wording"])
        assert (told["wording"] == "put") == any(" in/on " in one for one in _list_put_commands(env.unwrapped))
        assert env.unwrapped.pool.digest == open_env(ALFWORLD, size="tiny", split="val").pool.digest  # type: ignore[attr-defined]
        assert len(env.unwrapped.pool) == 200  # type: ignore[attr-defined]
    assert set(spoken) == {"move", "put"} == {str((client.variant or {})["wording"]) for client in made}
    with pytest.raises(OptionError, match="split= is decided by the split"):
        made.client(0).make(split="warmup")


def _list_put_commands(env: Any) -> list[str]:
    episode, expert = env.reset_many([env.pool.ids[0]], [0])[0], env.expert()
    commands: list[str] = []
    while not episode.over:
        commands += [one for one in episode.view.admissible if one.startswith(("move", "put"))]
        (episode,) = env.step_many([episode], [expert.act(episode)])
    assert episode.view.success
    return commands


def test_variants_leave_the_tasks_alone() -> None:
    """A variant composes with any sampler: the division is the same with and without it."""
    keywords: dict[str, Any] = {"partition": "preference", "clients": 4, "tasks_per_client": 9, "omega": 0.9}
    plain = federate(WEBSHOP, env={"size": "tiny"}, **keywords)
    other = federate(WEBSHOP, env={"size": "tiny"}, variant="bm25_weights", **keywords)
    assert [client.tasks for client in plain] == [client.tasks for client in other]
    assert plain.digest != other.digest


def test_scenes_of_clients_are_disjoint() -> None:
    made = federate(ALFWORLD, clients=3, tasks_per_client=8, variant="scene_split", env={"size": "tiny"})
    rooms: list[set[str]] = []
    for client in made:
        env = client.make()
        rooms.append({env.reset(seed=0, options={"task": task})[0] for task in client.tasks})
    assert not rooms[0] & rooms[1] and not rooms[1] & rooms[2]


# ---- variants of one's own --------------------------------------------------------------------------------------


class Volume(ClientVariant):
    loud: bool

    def change_view(self, view: View) -> View:
        return view._replace(observation=view.observation.upper()) if self.loud else view

    def change_action(self, action: str) -> str:
        return action.lower()


class Voices(Variant):
    """Some clients read capitals, and may write them."""

    kind = "voices"
    client_variant = Volume

    share: float = 0.5

    def draw(self, seed: int, client: int) -> Volume:
        return Volume(loud=stream(seed, "voices", client).uniform() < self.share)


class Declared(GuessEnv):
    """A number game that declares what differs between its clients."""

    id = "mine/Declared-v0"
    variants = (Voices,)


@pytest.fixture
def voices() -> Iterator[None]:
    fedagentgym.register_variant(GUESS, Voices)
    yield
    variants._REGISTERED.clear()


@pytest.mark.usefixtures("voices")
def test_a_plugin_adds_a_variant_to_an_environment_that_knows_nothing_of_it(tmp_path: Any) -> None:
    check_variant(GUESS, "voices", share=0.4)
    made = federate(GUESS, clients=12, tasks_per_client=5, variant={"kind": "voices", "share": 0.4})
    again = load_client_split(made.save(tmp_path / "split.json"))
    assert all(check.ok for check in again.verify())
    for client in again:
        env = client.open_env()
        observation, _ = env.reset(seed=0)
        assert client.variant is not None and (observation == observation.upper()) == client.variant["loud"]
        assert env.step("GUESS 1")[4]["valid"]
    assert made.record.to_header()["variant"] == {"kind": "voices", "share": 0.4}
    assert open_env(GUESS, split="val").variant is None


@pytest.mark.usefixtures("voices")
def test_what_cannot_be_registered() -> None:
    with pytest.raises(OptionError, match="registered already"):
        fedagentgym.register_variant(GUESS, Voices)
    fedagentgym.register_variant(GUESS, Voices, replace=True)
    with pytest.raises(UnknownNameError, match="unknown environment"):
        fedagentgym.register_variant("fedagentgym/Gues-v0", Voices)
    with pytest.raises(OptionError, match="derived from"):
        fedagentgym.register_variant(GUESS, Volume)  # type: ignore[arg-type]

    class Second(Voices):
        kind = "catalog_split"

    with pytest.raises(OptionError, match="of its own"):
        fedagentgym.register_variant(WEBSHOP, Second)


def test_an_environment_of_ones_own_declares_its_variants() -> None:
    fedagentgym.register_env("mine/Declared-v0", Declared, replace=True)
    check_env("mine/Declared-v0")
    check_variant("mine/Declared-v0", "voices")
    made = federate("mine/Declared-v0", clients=8, tasks_per_client=5, variant="voices")
    assert {str(client.variant) for client in made} == {
        "{'kind': 'voices', 'loud': True}",
        "{'kind': 'voices', 'loud': False}",
    }
    with pytest.raises(UnknownNameError, match="unknown variant of mine/Declared-v0 'wording': known are voices"):
        federate("mine/Declared-v0", clients=2, tasks_per_client=2, variant="wording")


class Restless(Voices):
    """Draws something else every time."""

    kind = "restless"
    count: ClassVar[int] = 0

    def draw(self, seed: int, client: int) -> Volume:
        type(self).count += 1
        return Volume(loud=type(self).count % 5 == 0)


class Alike(Voices):
    """The same for all clients."""

    kind = "alike"

    def draw(self, seed: int, client: int) -> Volume:
        return Volume(loud=True)


class Broken(Voices):
    """Loses what was seen."""

    kind = "broken"

    class Deaf(Volume):
        def change_view(self, view: View) -> View:
            return view._replace(observation=None) if self.loud else view  # type: ignore[arg-type]

    client_variant = Deaf

    def draw(self, seed: int, client: int) -> Volume:
        return self.Deaf(loud=client % 2 == 0)


@pytest.mark.parametrize(
    "graded",
    [{"reward": 0.5}, {"score": 0.9}, {"success": True}, {"done": True}, {"rewards": {"accuracy/guess": 0.9}}],
    ids=str,
)
@pytest.mark.parametrize("turn", [0, 1])
def test_a_variant_changes_no_grade_of_any_view(graded: dict[str, Any], turn: int) -> None:
    seen: list[View] = []

    class Generous(ClientVariant):
        def change_view(self, view: View) -> View:
            seen.append(view)
            return view._replace(**graded) if len(seen) == turn + 1 else view

    env = open_env(GUESS)
    env.variant = Generous()
    with pytest.raises(OptionError, match=f"Generous.change_view changes the {next(iter(graded))} of a view"):
        env.step_many(env.reset_many([env.pool.ids[0]], [0]), ["not a number"])
    assert len(seen) == turn + 1


@pytest.mark.parametrize(
    ("variant", "message"),
    [(Restless, "draws another variant"), (Alike, "same variant to every client"), (Broken, "string|observation")],
)
@pytest.mark.usefixtures("voices")
def test_check_variant_finds_what_is_wrong(variant: type[Variant], message: str) -> None:
    fedagentgym.register_variant(GUESS, variant)
    with pytest.raises(AssertionError, match=message):
        check_variant(GUESS, variant.kind)


def test_check_variant_tells_of_an_option_or_a_variant_that_there_is_not() -> None:
    with pytest.raises(AssertionError, match=r"unknown variant .*'whispers'"):
        check_variant(GUESS, "whispers")
    kind, env_id = PAIRS[0]
    with pytest.raises(AssertionError, match="loudness"):
        check_variant(env_id, kind, env={"loudness": 3})
