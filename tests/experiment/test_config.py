from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.paper_tables import TABLE1
from fedagentgym.agents import make_agent
from fedagentgym.algorithms.runtime import ExperimentSpec
from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError
from fedagentgym.cli.main import main
from fedagentgym.experiment.config import RunConfig, list_presets, list_variants, load_config
from fedagentgym.experiment.opened import open_data
from fedagentgym.partitions import federate

MINIMAL: dict[str, Any] = {"env": {"id": "fedagentgym/Guess-v0"}, "partition": {"clients": 3}}
EVERY_PRESET = [*list_presets()] + [f"{p}:{v}" for p in list_presets() for v in list_variants(p)]
ROWS = [
    *TABLE1.rows.values(),
    *(
        "tiny-math:fedgrpo,experts-4",
        "tiny-math:lora,pubswap,swap-random,tau-10",
        "tiny-math:lora,fedprox-0.1,short-tau-40",
    ),
    "tiny-mixture:heter-heter,fedmoa,hypergradient-raw",
    "tiny-records:rules,personal-head,degree-0.5",
]
NAMES_OF_THE_BASE = (
    *("qwen2.5-1.5b", "qwen2.5-math-1.5b", "math", "gsm8k", "homo-homo"),
    *("central-grpo", "fedavg-grpo", "fedgrpo", "fedmoa", "pubswap", "tau-90"),
)
"""Variants that name what their preset is without them."""


def load_over_another(name: str) -> RunConfig:
    """A variant over its preset, or over the first other variant whose algorithm knows what it sets."""
    preset, _, variant = name.partition(":")
    try:
        return load_config(name)
    except OptionError as error:
        if "unknown key 'algorithm." not in str(error):
            raise
    for other in list_variants(preset):
        try:
            return load_config(f"{preset}:{other},{variant}")
        except OptionError:
            continue
    raise AssertionError(f"{name} fits no algorithm of its preset")


@pytest.mark.by_day(9)
@pytest.mark.parametrize("name", [*EVERY_PRESET, *ROWS])
def test_every_preset_and_variant_is_a_valid_configuration(name: str) -> None:
    config = load_over_another(name)
    again = load_config(yaml.safe_load(yaml.safe_dump(config.plain())))
    assert again.digest == config.digest
    preset, _, variant = name.partition(":")
    if variant:
        assert config.digest != load_config(preset).digest or variant in NAMES_OF_THE_BASE
        assert config.output.folder.endswith(variant.replace(",", "-"))


@pytest.mark.parametrize("folder", ["experiment/presets", "learning/recipes"])
def test_the_lines_of_presets_and_recipes_are_short_enough_to_read(folder: str, root: Path) -> None:
    files = sorted((root / "fedagentgym" / folder).glob("*.yaml"))
    lines = [(file.name, line) for file in files for line in file.read_text("utf-8").splitlines()]
    assert lines and [(name, line) for name, line in lines if len(line) > 150] == []


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tiny-math:experts-4", "this variant changes what another one sets: tiny-math:fedgrpo,experts-4"),
        ("tiny-skills:swap-random", "tiny-skills:pubswap,swap-random"),
        ("tiny-skills:fixed-weights", "tiny-skills:fedmoa,fixed-weights"),
        ("tiny-skills:iid,fedprox,iid", "tiny-skills names the variant 'iid' twice"),
        ("demo:fedprx", "did you mean the method 'fedprox': --set algorithm=fedprox"),
        ("demo:alon", "did you mean 'alone'"),
        ("fedprox", "it is a method: fedagentgym train PRESET --set algorithm=fedprox"),
    ],
)
def test_a_variant_that_says_nothing_by_itself_names_its_companion(name: str, says: str) -> None:
    with pytest.raises(FedAgentGymError, match=re.escape(says)):
        load_config(name)


@pytest.mark.parametrize("variant", ["iid", "one-procedure"])
def test_divisions_of_many_skills_open_by_themselves(variant: str) -> None:
    config = load_config(f"tiny-skills:{variant}")
    assert len(open_data(config)[0]) == config.partition.clients
    both = load_config(f"tiny-skills:skills-32,{variant}")
    assert config.env == both.env and config.partition.sampler == both.partition.sampler


def test_an_unknown_agent_is_named_before_what_it_lacks() -> None:
    with pytest.raises(FedAgentGymError, match="unknown agent 'tinny': did you mean 'tiny'"):
        load_config("tiny-skills", ["agent=tinny"])


@pytest.mark.parametrize("device", ["cuda", "cuda:9", "gpu", "tpu:0", "cuda:x"])
def test_a_device_that_is_not_here_is_one_sentence(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: device == "cuda:9")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(OptionError, match=f"device '{device}'"):
        open_data(load_config("small-skills", [f"agent.device={device}"]))
    workers = ["federation.workers=2", f"federation.device_per_worker=[cpu, '{device}']"]
    with pytest.raises(OptionError, match=f"device '{device}'"):
        open_data(load_config("tiny-skills", workers))


def test_the_presets_follow_the_papers_protocol() -> None:
    for world in ("webshop", "alfworld"):
        config = load_config(f"paper-{world}")
        assert (config.partition.clients, config.federation.clients_per_round, config.federation.rounds) == (100, 2, 70)
        assert config.algorithm["local_steps"] * config.federation.rounds == 210
        assert config.learning.episodes_per_step == 64
        for variant in ("epochs-1", "epochs-5"):
            other = load_config(f"paper-{world}:{variant}")
            assert other.algorithm["local_steps"] * other.federation.rounds == 210


def test_the_digest_is_about_what_is_computed() -> None:
    config = load_config(MINIMAL)
    same = load_config(
        MINIMAL, ["name=other", "federation.workers=2", "output.folder=elsewhere", "output.keep_rounds=9"]
    )
    assert same.digest == config.digest
    assert load_config(MINIMAL, ["seed=1"]).digest != config.digest
    assert load_config(config).digest == config.digest
    assert load_config(RunConfig.load(MINIMAL)).digest == config.digest


def test_a_whole_configuration_of_the_specification_loads() -> None:
    text = """
    name: houses-preference
    seed: 0
    env: {id: fedagentgym/ALFWorld-v0, split: train, options: {size: tiny}}
    partition: {sampler: preference, clients: 12, tasks_per_client: 64, omega: 0.9, roles: {public: 200}}
    agent: {name: tiny, context: session, adapter: null,
            decoding: {temperature: 1.0, constrained: false, max_new_tokens: 16}}
    learning: {tasks_per_step: 16, group_size: 8, learning_rate: 4.0e-4, clip: [0.2, 0.2], kl: 0.0, gradient_epochs: 1,
               advantage: {name: grpo, std: population}, loss: token, format_penalty: 0.1}
    algorithm: {name: fedagent, local_steps: 4, aggregation: mean}
    federation: {backend: in-process, rounds: 20, clients_per_round: 3, workers: 2, quorum: 0.5, deadline: 600}
    evaluation: {split: val, every: 5, temperature: 0.4}
    output: {folder: runs/houses-preference, keep_rounds: 3}
    """
    config = load_config(yaml.safe_load(text))
    assert config.algorithm["aggregation"] == {"name": "mean"}
    assert config.partition.model_extra == {"tasks_per_client": 64, "omega": 0.9}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("federation.round=3", "did you mean 'rounds'"),
        ("env=WebShop", r"env: settings must be a mapping, such as .* \(got 'WebShop'\)"),
        ("federation=3", "federation: settings must be a mapping"),
        ("evaluation=[3]", "evaluation: settings must be a mapping"),
        ("env.options=tiny", "env.options: settings must be a mapping"),
        ("rounds=3", "did you mean 'federation.rounds'"),
        ("learning_rate=1", "or 'learning.learning_rate'"),
        ("group_sise=4", "did you mean 'learning.group_size'"),
        ("cliens_per_round=1", "did you mean 'federation.clients_per_round'"),
        ("learning.learning_rat=1", "did you mean 'learning_rate'"),
        ("federation.quorum=1.5", "quorum"),
        ("federation.clients_per_round=9", "clients_per_round is 9, but there are 3 clients"),
        ("algorithm=fedagnet", "did you mean 'fedagent'"),
        ("algorithm.tau=3", "algorithm.tau"),
        ("agent=untraind", "did you mean 'untrained-tiny'"),
        ("algorithm={name: hacpo, agents: [tinny, tiny]}", "unknown agent 'tinny': did you mean 'tiny'"),
        ("partition.sampler=dirichlt", "did you mean 'dirichlet'"),
        ("partition={sampler: dirichlet, alfa: 1}", "'dirichlet' has no parameter 'alfa': did you mean 'alpha'"),
        ("partition.sampler=dirichlet", "the sampler 'dirichlet' needs beta"),
        ("partition.tasks_per_clint=4", "did you mean 'tasks_per_client'"),
        ("env.split=trian", "env.split: unknown split of .*: did you mean 'train'"),
        ("evaluation.split=valid", "evaluation.split: unknown split of .*: did you mean 'val'"),
        ("ranking={split: tst}", "ranking.split: unknown split of .*: did you mean 'test'"),
        ("seed=-1", "seed"),
        ("name=a b", "name"),
        ("plugins=[nowhere.py]", "no such file"),
        ("warm_start={steps: 3}", "warm_start"),
        ("agent.threads=0", r"agent\.threads"),
        ("partition.clients=null", "how many clients"),
        ("partition={file: x.json, omega: 3}", "leave out omega, clients"),
    ],
)
def test_what_is_wrong_is_named(change: str, says: str) -> None:
    changes = ["agent=random", change] if change.startswith("warm_start") else [change]
    with pytest.raises(FedAgentGymError, match=says) as caught:
        load_config(MINIMAL, changes)
    assert "\n" not in str(caught.value)


VARIANTS = {
    "long": {"federation": {"rounds": 99}},
    "short": {"algorithm": {"local_steps": 1}},
    "prox": {"algorithm": {"name": "fedprox", "proximal": 0.5}},
}


def test_files_and_variants(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({**MINIMAL, "algorithm": "fedagent", "variants": VARIANTS}))
    assert load_config(file).federation.rounds == 20
    assert load_config(f"{file}:long").federation.rounds == 99
    assert load_config(f"{file}:prox,long").federation.rounds == 99
    assert load_config(f"{file}:prox").algorithm["local_steps"] == 3  # another method begins with its defaults
    with pytest.raises(
        OptionError, match=r"'prox' replaces algorithm\.local_steps of 'short': name them in the order prox,short"
    ):
        load_config(f"{file}:short,prox")
    assert (
        load_config(f"{file}:prox,short").algorithm
        == load_config(f"{file}:prox", ["algorithm.local_steps=1"]).algorithm
    )
    with pytest.raises(FedAgentGymError, match="did you mean 'long'"):
        load_config(f"{file}:longer")
    file.write_text("- a\n- b\n")
    with pytest.raises(DataError, match="mapping of sections"):
        load_config(file)
    file.write_text("a: [")
    with pytest.raises(DataError, match="not YAML"):
        load_config(file)
    with pytest.raises(DataError, match="no such file"):
        load_config(tmp_path / "absent.yaml")
    with pytest.raises(OptionError, match="did you mean 'demo'"):
        load_config("demoo")
    for wrong in ("3", "[a]", "{long: [federation.rounds=99]}"):
        file.write_text(f"variants: {wrong}\nenv: {{}}")
        with pytest.raises(DataError, match="variants maps each name to settings"):
            load_config(file)


PRESET_ORDERS = [
    ("paper-webshop:lora,qwen2.5-7b", "agent.adapter.rank", "qwen2.5-7b,lora"),
    ("paper-webshop:published,qwen2.5-3b", "agent.longest_prompt", "qwen2.5-3b,published"),
    ("paper-webshop:vllm,qwen2.5-7b", "agent.rollouts", "qwen2.5-7b,vllm"),
    ("paper-pubswap:tau-40,fedavg-grpo", "algorithm.local_steps", "fedavg-grpo,tau-40"),
]


@pytest.mark.parametrize(("named", "lost", "order"), PRESET_ORDERS, ids=[named for named, *_ in PRESET_ORDERS])
def test_an_order_of_variants_that_loses_a_setting_is_refused(named: str, lost: str, order: str) -> None:
    with pytest.raises(OptionError) as caught:
        load_config(named)
    assert lost in str(caught.value) and str(caught.value).endswith(f"name them in the order {order}")
    load_config(f"{named.partition(':')[0]}:{order}")


def test_variants_that_exclude_each_other_are_laid_in_order() -> None:
    assert load_config("paper-pubswap:fedavg-grpo,fedprox-0.1").algorithm["name"] == "fedprox"
    assert load_config("paper-pubswap:fedprox-0.1,fedavg-grpo").algorithm["name"] == "fedavg-grpo"


def test_what_was_not_said_of_an_agent_stays_unsaid_on_disk_and_on_the_way_to_workers() -> None:
    config = load_config(MINIMAL, ["agent={name: tiny, decoding: {max_new_tokens: 8}}"])
    stored = load_config(yaml.safe_load(yaml.safe_dump(config.plain())))
    sent = ExperimentSpec.load(config.spec().model_dump(mode="json", exclude_unset=True))
    for agent in (stored.agent, sent.agent):
        assert agent.model_dump(exclude_unset=True) == {"name": "tiny", "decoding": {"max_new_tokens": 8}}
    assert sent == config.spec()


def test_all_cores_are_for_a_single_process() -> None:
    assert load_config(MINIMAL, ["agent.threads=auto", "federation.workers=1"]).agent.threads == "auto"
    assert load_config(MINIMAL, ["agent.threads=2", "federation.workers=4"]).agent.threads == 2
    for elsewhere in ("federation.workers=2", "federation.backend=flower"):
        with pytest.raises(OptionError, match="threads: auto gives one process all cores"):
            load_config(MINIMAL, ["agent.threads=auto", elsewhere])
    assert load_config(MINIMAL, ["agent.threads=2"]).digest != load_config(MINIMAL).digest


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": {"name": "zzz"}},
        {"env": {"id": "zzz"}},
        {"agent": {"name": "tiny", "template": "zzz"}},
        {"learning": {"loss": "zzz"}},
        {"learning": {"advantage": "zzz"}},
        {"algorithm": {"name": "fedagent", "aggregation": "zzz"}},
        {"federation": {"backend": "zzz"}},
    ],
    ids=str,
)
def test_an_unknown_name_may_be_that_of_a_plugin_which_was_not_named(settings: dict[str, Any]) -> None:
    """A forgotten plugin is the usual cause, unless a known name is nearly the same."""
    plain = {"name": "x", "env": {"id": "Guess"}, "partition": {"clients": 2}, "agent": "tiny"}
    with pytest.raises(FedAgentGymError, match=r"'zzz': known are .*; load a file of your own with --plugin FILE"):
        load_config({**plain, **settings})


def test_so_may_an_unknown_agent_or_sampler(capsys: pytest.CaptureFixture[str]) -> None:
    said = "; load a file of your own with --plugin FILE"
    with pytest.raises(FedAgentGymError, match=f"'zzz': known are .*{said}"):
        make_agent("zzz")
    with pytest.raises(FedAgentGymError, match=f"'zzz': known are .*{said}"):
        federate("Guess", partition="zzz")
    assert main(["eval", "--env", "Guess", "--agent", "zzz"]) == 2 and said in capsys.readouterr().err
