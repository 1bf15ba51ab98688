"""Folders of game files as pools, the installed data, and the environment over both engines."""

from __future__ import annotations

import json
import pickle
import shutil
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import gymnasium
import pytest

import fedagentgym  # noqa: F401 - registers the environments
from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError
from fedagentgym.envs.alfworld.env import ALFWorldEnv, ReplayState, load_game_content
from fedagentgym.envs.alfworld.folders import (
    DATA_SETS,
    PUBLISHED_GAMES,
    fetch,
    get_folder_index,
    import_data,
    infer_split,
    unpack,
)
from fedagentgym.envs.alfworld.game import Game
from fedagentgym.envs.alfworld.gamefiles import write_game_files
from fedagentgym.envs.alfworld.houses import make_house_pool
from fedagentgym.envs.make import open_env, read_options
from fedagentgym.envs.pool import TaskPool
from fedagentgym.partitions.client_split import federate, load_client_split
from fedagentgym.testing import check_env
from tests.network import stop_server

pytestmark = pytest.mark.skipif(
    find_spec("alfworld") is None, reason="writing game files takes domain and grammar from the extra [alfworld]"
)
ENV = "fedagentgym/ALFWorld-v0"


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Games of all splits, in both wordings."""
    folder = tmp_path_factory.mktemp("games")
    for wording, splits in (("move", ("train", "val")), ("put", ("test",))):
        for split in splits:
            pool = make_house_pool(split, env=ENV, size="tiny", wording=wording)
            write_game_files([pool[index] for index in range(5)], folder)
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAGENTGYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDAGENTGYM_DATA", raising=False)


def test_a_folder_is_a_pool_with_the_splits_of_its_paths(games: Path) -> None:
    sizes = open_env(ALFWorldEnv, games=games).split_sizes()
    assert sizes == {"train": 5, "val": 5, "test": 5, "warmup": 0}
    whole = open_env(ALFWorldEnv, games=games, split="all")
    paths = sorted(path.relative_to(games).as_posix() for path in games.rglob("game.tw-pddl"))
    assert [Path(task.payload.origin).relative_to(games).as_posix() for task in whole.pool] == paths
    assert list(whole.pool.ids[:5]) == [f"alfworld/train/{number:05d}" for number in range(5)]
    assert {task.id.split("/")[1]: task.payload.wording for task in whole.pool} == {
        "train": "move",
        "val": "move",
        "test": "put",
    }


def test_native_split_names_are_aliases(games: Path) -> None:
    assert (
        open_env(ALFWorldEnv, games=games, split="valid_seen").pool.ids
        == open_env(ALFWorldEnv, games=games, split="val").pool.ids
    )
    assert open_env(ALFWorldEnv, games=games / "valid_unseen", split="test").pool.category_names


def test_an_empty_split_names_the_sizes(games: Path) -> None:
    with pytest.raises(DataError, match=r"warmup.*'train': 5"):
        open_env(ALFWorldEnv, games=games, split="warmup")


def test_a_folder_passes_the_conformance_check(games: Path) -> None:
    check_env(open_env(ALFWorldEnv, games=games))


def test_games_read_from_files_are_those_that_were_written(games: Path) -> None:
    written = make_house_pool("train", env=ENV, size="tiny")
    read: list[Game] = [task.payload for task in open_env(ALFWorldEnv, games=games).pool]
    assert sorted(game.objects for game in read) == sorted(written[index].payload.objects for index in range(5))
    assert {game.scene for game in read} <= {written[index].payload.scene for index in range(5)}


def test_the_index_is_kept_and_notices_changes(games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(games, folder)
    first = get_folder_index(folder)
    (kept,) = (tmp_path / "cache" / "alfworld").glob("index-*.json")
    from fedagentgym.envs.alfworld import folders

    folders._load_or_build_index.cache_clear()
    monkeypatch.setattr(folders, "read_game", None)
    assert get_folder_index(folder) == first, "an unchanged folder is not read again"
    monkeypatch.undo()
    monkeypatch.setenv("FEDAGENTGYM_CACHE", str(tmp_path / "cache"))
    shutil.rmtree(next((folder / "train").iterdir()))
    assert len(get_folder_index(folder).entries) == len(first.entries) - 1
    kept.write_text("{")
    folders._load_or_build_index.cache_clear()
    assert len(get_folder_index(folder).entries) == len(first.entries) - 1, "a damaged index is made anew"


def test_the_digest_names_the_content(games: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(games, folder)
    assert open_env(ALFWorldEnv, games=folder).pool.digest == open_env(ALFWorldEnv, games=games).pool.digest
    path = next(folder.rglob("game.tw-pddl"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"walkthrough": []}))
    assert open_env(ALFWorldEnv, games=folder).pool.digest != open_env(ALFWorldEnv, games=games).pool.digest


def test_missing_walkthrough_and_solvable_are_accepted(games: Path, tmp_path: Path) -> None:
    for path in games.glob("train/*/*/game.tw-pddl"):
        content = json.loads(path.read_text())
        target = tmp_path / "bare" / path.parent.name
        target.mkdir(parents=True)
        keys = ("pddl_domain", "grammar", "pddl_problem")
        (target / "game.tw-pddl").write_text(json.dumps({key: content[key] for key in keys}))
        (target / "traj_data.json").write_text('{"task_type": "of no concern"}')
    assert len(open_env(ALFWorldEnv, games=tmp_path / "bare").pool) == 5


def test_bad_folders_are_refused_in_one_sentence(games: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no game\.tw-pddl"):
        open_env(ALFWorldEnv, games=tmp_path / "empty")
    with pytest.raises(DataError, match="not a folder"):
        open_env(ALFWorldEnv, games=tmp_path / "absent")
    with pytest.raises(DataError, match="not installed"):
        open_env(ALFWorldEnv, games="installed")
    lonely = tmp_path / "lonely" / "trial"
    lonely.mkdir(parents=True)
    shutil.copyfile(next(games.rglob("game.tw-pddl")), lonely / "game.tw-pddl")
    with pytest.raises(DataError, match=r"traj_data\.json"):
        open_env(ALFWorldEnv, games=tmp_path / "lonely")


def test_a_split_of_a_folder_holds_no_path(games: Path, tmp_path: Path) -> None:
    made = federate(ENV, clients=2, tasks_per_client=1, env={"games": str(games)})
    path = made.save(tmp_path / "split.json")
    assert made.record.env_options == {} and str(games) not in path.read_text()
    with pytest.raises(DataError, match="if it was made with games= or pool=, give that again"):
        load_client_split(path)
    assert load_client_split(path, env={"games": str(games)}).digest == made.digest
    env = gymnasium.make(ENV, client_split=str(path), client=1, games=str(games))
    assert env.reset(seed=0)[1]["task"] in made.client(1).tasks
    installed = {"games": "installed", "seed": 3}
    assert read_options(ENV, installed).portable == installed


def test_options_that_make_no_sense_are_refused(games: Path) -> None:
    with pytest.raises(FedAgentGymError, match="engine"):
        open_env(ALFWorldEnv, engine="thor")
    with pytest.raises(OptionError, match="plan"):
        open_env(ALFWorldEnv, plan=True)
    with pytest.raises(OptionError, match="variant"):
        open_env(ALFWorldEnv, games=games, variant={"kind": "scene_split", "client": 0})
    for options in (
        {"size": "huge"},
        {"wording": "shove"},
        {"seed": -1},
        {"split": "valid"},
        {"games": 3},
        {"games": ""},
    ):
        with pytest.raises(FedAgentGymError):
            open_env(ALFWorldEnv, **options)


def test_foreign_tasks_and_snapshots_are_refused(games: Path) -> None:
    pool = TaskPool.from_records([{"category": "Pick", "payload": "no game"}], env=ENV)
    with pytest.raises(DataError, match="holds no ALFWorld game"):
        open_env(ALFWorldEnv, pool=pool).reset(seed=0)
    env = open_env(ALFWorldEnv, games=games)
    env.reset(seed=0)
    playing = env.snapshot()
    env.restore(playing._replace(state=ReplayState(playing.task.payload, (), ())))
    with pytest.raises(OptionError, match="textworld"):
        env.step("look")


def test_hardness_is_the_length_of_the_shortest_plan(games: Path) -> None:
    written = make_house_pool("val", env=ENV, size="tiny")
    hardness = sorted(task.hardness or 0.0 for task in open_env(ALFWorldEnv, games=games, split="val").pool)
    assert hardness == sorted(written[number].hardness or 0.0 for number in range(5))


def test_the_vocabulary_knows_every_word_that_is_said(games: Path) -> None:
    from fedagentgym.envs.alfworld.wording import extract_words

    for env in (
        open_env(ALFWorldEnv, games=games, split="all"),
        open_env(ALFWorldEnv),
        open_env(ALFWorldEnv, size="tiny", wording="put"),
    ):
        known = set(env.vocabulary())
        expert, episode = env.expert(), env.reset_many([env.pool.ids[0]], [0])[0]
        for _ in range(20):
            said = extract_words(" ".join((episode.view.observation, *episode.view.admissible)))
            assert said <= known, said - known
            episode = env.step_many([episode], [expert.act(episode)])[0]


# ---- the real engine as an environment ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(games: Path) -> Iterator[ALFWorldEnv]:
    pytest.importorskip("textworld")
    env = open_env(ALFWorldEnv, games=games, split="all", engine="textworld", plan=True)
    yield env
    env.close()


def test_both_engines_are_the_same_environment(games: Path, real: ALFWorldEnv) -> None:
    native = open_env(ALFWorldEnv, games=games, split="all")
    for number in (0, 14):
        identifier = native.pool.ids[number]
        episodes = [env.reset_many([identifier], [0])[0] for env in (native, real)]
        expert = native.expert()
        while not episodes[0].over:
            command = expert.act(episodes[0])
            episodes = [
                env.step_many([episode], [command])[0] for env, episode in zip((native, real), episodes, strict=True)
            ]
            mine, theirs = (episode.view._replace(extra={}) for episode in episodes)
            assert mine == theirs
            assert episodes[0].reward == episodes[1].reward
        assert episodes[0].view.success


def test_the_real_engine_undoes_and_pickles_and_survives_its_death(real: ALFWorldEnv) -> None:
    first = real.reset(seed=0, options={"task": real.pool.ids[0]})
    command = first[1]["expert_plan"][0]
    expected = real.step(command)
    snapshot = pickle.dumps(real.snapshot())
    real.step("look")
    real.close()
    real.restore(pickle.loads(snapshot))
    assert real.step("inventory")[0] == real.step("inventory")[0]
    real.reset(seed=0, options={"task": real.pool.ids[0]})
    assert real.step(command) == expected
    assert not real.step("no such command")[4]["valid"]


def test_the_planner_of_the_real_engine_leads_to_the_goal(real: ALFWorldEnv) -> None:
    _, info = real.reset(seed=0, options={"task": real.pool.ids[3]})
    for _ in range(30):
        _, _, done, _, info = real.step(info["expert_plan"][0])
        if done:
            break
    assert info["success"]


def test_generated_games_go_into_the_real_engine_without_a_file() -> None:
    pytest.importorskip("textworld")
    env = open_env(ALFWorldEnv, size="tiny", engine="textworld")
    native = open_env(ALFWorldEnv, size="tiny")
    assert env.reset(seed=3) == native.reset(seed=3)
    assert load_game_content(native.episode.task.payload)["solvable"]
    env.close()


# ---- the real data --------------------------------------------------------------------------------------------------


@pytest.fixture
def original(games: Path, tmp_path: Path) -> Path:
    """A copy that looks like the published data: with games that the original package leaves out."""
    folder = tmp_path / "download" / "json_2.1.1"
    for split in ("train", "valid_seen", "valid_unseen"):
        shutil.copytree(games / split, folder / split)
    source = next((games / "train").rglob("game.tw-pddl")).parent
    for name in ("pick_and_place_with_movable_recep-A-B-C-1", "pick_and_place_simple-AppleSliced-None-Fridge-1"):
        shutil.copytree(source, folder / "train" / name / "trial_1")
    unsolvable = folder / "train" / "pick_and_place_simple-Mug-None-Shelf-1" / "trial_2"
    shutil.copytree(source, unsolvable)
    content = json.loads((unsolvable / "game.tw-pddl").read_text()) | {"solvable": False}
    (unsolvable / "game.tw-pddl").write_text(json.dumps(content))
    planned = folder / "train" / "pick_and_place_simple-Mug-None-Desk-2" / "trial_3"
    planned.mkdir(parents=True)
    (planned / "traj_data.json").write_text("{}")
    return folder


def test_added_data_is_filtered_and_found_by_name(original: Path, tmp_path: Path) -> None:
    assert import_data(original.parent) == tmp_path / "cache" / "data" / "alfworld"
    env = gymnasium.make(ENV, games="installed")
    assert env.unwrapped.split_sizes() == {"train": 5, "val": 5, "test": 5, "warmup": 0}
    with pytest.raises(DataError, match="there already"):
        import_data(original)


def test_published_numbers_of_games_are_stated_once() -> None:
    (published,) = DATA_SETS["alfworld"].published
    assert published is PUBLISHED_GAMES
    (counted,) = ALFWorldEnv.count_published(ALFWorldEnv.Options.read(ENV, {"games": "installed"}))
    assert counted is PUBLISHED_GAMES


def test_the_split_of_the_folder_in_which_one_is(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside `valid_seen`, `--from .` would make training games of its games."""
    (place,) = original.rglob("valid_seen")
    monkeypatch.chdir(place)
    splits = {entry.split for entry in get_folder_index(Path()).entries}
    assert splits == {entry.split for entry in get_folder_index(place).entries} == {"val"}
    import_data(Path())
    sizes = gymnasium.make(ENV, games="installed", split="val").unwrapped.split_sizes()
    assert sizes == {"train": 0, "val": 5, "test": 0, "warmup": 0}


def test_data_without_a_playable_game_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match="no playable"):
        import_data(tmp_path / "nothing")
    assert not (tmp_path / "cache" / "data" / "alfworld").exists()


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """The address of a server of a folder's files, which answers at first that they are elsewhere."""

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/moved/"):
                super().do_GET()
            else:
                self.send_response(302)
                self.send_header("Location", f"/moved{self.path}")
                self.end_headers()

        def translate_path(self, path: str) -> str:
            return str(folder / Path(path).name)

        def log_message(self, *args: object) -> None:
            """Keep the tests' output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        stop_server(server)


def archives(original: Path, folder: Path) -> list[str]:
    names = []
    for name in ("traj_data.json", "game.tw-pddl"):
        with zipfile.ZipFile(folder / f"{name}.zip", "w") as archive:
            for path in sorted(original.rglob(name)):
                archive.write(path, path.relative_to(original.parent))
            archive.writestr("json_2.1.1/README", "not a game")
            archive.writestr(f"../outside/{name}", "not to be unpacked")
        names.append(f"{name}.zip")
    return names


def test_fetched_archives_are_unpacked_and_added(original: Path, tmp_path: Path) -> None:
    with serve(tmp_path) as address:
        target = fetch([f"{address}/{name}" for name in archives(original, tmp_path)])
    assert len(get_folder_index(target).entries) == 15
    assert not list(tmp_path.rglob("outside"))
    assert not list(target.rglob("README"))


def test_a_failed_download_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04 broken")
    with serve(tmp_path) as address:
        with pytest.raises(DataError, match=r"status 404.*data add alfworld"):
            fetch([f"{address}/absent.zip"])
        with pytest.raises(DataError, match="not a usable zip"):
            fetch([f"{address}/broken.zip"])
    with pytest.raises(DataError, match=r"ConnectionRefusedError.*data add alfworld"):
        fetch([f"{address}/broken.zip"])
    assert not (tmp_path / "cache" / "data" / "alfworld").exists()


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_archive_is_refused_or_harmless(method: int, tmp_path: Path) -> None:
    whole = tmp_path / "whole.zip"
    with zipfile.ZipFile(whole, "w", method) as archive:
        archive.writestr("train/a/game.tw-pddl", bytes(range(256)) * 4)
    data, refused = whole.read_bytes(), 0
    for place in range(0, len(data), 3):
        (tmp_path / "damaged.zip").write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        try:
            unpack(tmp_path / "damaged.zip", tmp_path / "games", "damaged.zip")
        except DataError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > len(data) / 12


def test_split_of_takes_the_last_component_that_names_one() -> None:
    assert infer_split(Path("games"), "train/valid_unseen/x/game.tw-pddl") == "test"
    assert infer_split(Path("valid_seen"), "x/game.tw-pddl") == "val"
    assert infer_split(Path("games"), "warmup/x/game.tw-pddl") == "train"
