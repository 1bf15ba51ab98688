"""A plan's numbers against what is really made, played and sent."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedagentgym.agents.agent import TokenAgent
from fedagentgym.agents.model.architectures import DecoderConfig
from fedagentgym.agents.model.shapes import KNOWN_SHAPES, LINEAR_LAYERS, ModelShape, find_shape
from fedagentgym.algorithms.base import describe_method
from fedagentgym.algorithms.card import Scale, Work
from fedagentgym.algorithms.runtime import Runtime
from fedagentgym.base.errors import FedAgentGymError, OptionError
from fedagentgym.base.settings import merge
from fedagentgym.cli.main import main
from fedagentgym.cli.train import GPU_NAMES
from fedagentgym.experiment.config import list_presets, list_variants, load_config
from fedagentgym.experiment.estimate.hours import ATTAINED, GPUS, estimate_speeds, make_plain_gpu, plan_gpu
from fedagentgym.experiment.estimate.memory import compute_least, compute_peak, count_pass_tokens
from fedagentgym.experiment.estimate.plan import format_plan, plan_run, plan_work
from fedagentgym.experiment.run import train
from fedagentgym.testing.runs import SMALL_CONFIG
from tests.algorithms.test_inherited_options import METHODS, ONE_CLIENT, run, spec_of
from tests.leaderboard.recount import count_episodes

CONFIGS = {"qwen2": "Qwen2Config", "qwen3": "Qwen3Config", "llama": "LlamaConfig"}


def make_config(shape: ModelShape) -> Any:
    import transformers

    return getattr(transformers, CONFIGS[shape.architecture])(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        head_dim=shape.head_width,
        intermediate_size=shape.inner,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied,
    )


@pytest.mark.by_day(3)
@pytest.mark.parametrize("shape", sorted(set(KNOWN_SHAPES.values()), key=str), ids=str)
def test_parameters_are_those_of_the_architecture(shape: ModelShape) -> None:
    import peft
    import torch
    import transformers

    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(make_config(shape))
        assert sum(weight.numel() for weight in model.parameters()) == shape.count_parameters()
        for targets in ("all-linear", ("q_proj", "v_proj"), LINEAR_LAYERS):
            chosen = targets if isinstance(targets, str) else list(targets)
            adapted = peft.get_peft_model(
                model, peft.LoraConfig(r=8, target_modules=chosen, task_type="CAUSAL_LM"), low_cpu_mem_usage=True
            )
            found = sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)
            assert found == shape.count_adapter_parameters(8, targets)
            model = adapted.unload()


def test_a_folder_shows_its_shape(tmp_path: Path) -> None:
    for shape in set(KNOWN_SHAPES.values()):
        make_config(shape).save_pretrained(tmp_path)
        assert find_shape(str(tmp_path)) == shape


@pytest.mark.parametrize("biases", [{"attention_bias": True}, {"mlp_bias": True}])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_biases_that_a_folder_declares_are_counted(kind: str, biases: dict[str, bool], tmp_path: Path) -> None:
    import torch

    from fedagentgym.agents.model.decoder import Decoder

    config = make_config(ModelShape(kind, 32, 2, 4, 2, 8, 64, 100, tied=True))
    (tmp_path / "config.json").write_text(json.dumps({**config.to_dict(), **biases}))
    read = DecoderConfig.read(json.loads((tmp_path / "config.json").read_text()))
    assert read is not None
    with torch.device("meta"):
        weights = sum(weight.numel() for weight in Decoder(read).parameters())
    assert find_shape(str(tmp_path)).count_parameters() == weights


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{}", "not None"),
        ('{"model_type": "gpt2"}', "not 'gpt2'"),
        ('{"model_type": "llama"}', "hidden_size must be a whole number above 0, not None"),
        ('{"model_type": "llama", "hidden_size": -4}', "not -4"),
        ("[1]", "not None"),
        ("{", "not valid JSON"),
    ],
)
def test_a_folder_that_shows_none_is_refused(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(FedAgentGymError, match=said):
        find_shape(str(tmp_path))


@pytest.mark.by_day(3)
@pytest.mark.parametrize("method", METHODS)
def test_a_round_does_what_was_estimated(method: str, tmp_path: Path) -> None:
    spec = spec_of(method)
    commit = run(tmp_path, spec)
    scale = Scale(spec.learning, clients=3, asked=3, rows_per_episode=1, roles=spec.partition.roles)
    card = describe_method(spec.algorithm, scale)
    work = card.round
    assert work is not None
    assert commit.record["metrics"].get("episodes", 0) == work.episodes
    assert commit.record["metrics"].get("optimizer_steps", 0) <= work.optimizer_steps
    size = sum(value.nbytes for value in commit.state.parameters.values())
    sent = commit.record["bytes"]
    down = work.models_down * size if card.sends_factors else 0
    assert (sent["down"]["weights"], sent["up"]["weights"]) == (down, work.models_up * size)
    assert (work.models_down == 0) == (method in (*ONE_CLIENT, "local-all"))


def test_preparation_and_its_renewals_are_counted(tmp_path: Path) -> None:
    """FedGRPO: its experts practise and answer the auxiliary questions before round 1 and before round 3."""
    changes = {"experts": 1, "neighbours": 3, "expert_steps": 2, "expert_refresh": 2, "answers": "off"}
    config = load_config(
        {
            "name": "counted",
            "env": {"id": "fedagentgym/Skills-v0", "options": {"skills": 4}},
            "partition": {
                "sampler": "uniform",
                "clients": 2,
                "tasks_per_client": 8,
                "disjoint": True,
                "roles": {"auxiliary": 5, "server": 6},
            },
            "agent": "untrained-tiny",
            "learning": {"tasks_per_step": 2, "group_size": 3},
            "algorithm": {"name": "fedgrpo", **changes},
            "federation": {"rounds": 4},
            "output": {"folder": str(tmp_path / "run"), "report": "none"},
        }
    )
    result, plan = train(config, force=True), plan_work(config)
    assert plan is not None
    for until, preparations in enumerate((1, 1, 1, 2, 2)):
        taken, work = count_episodes(tmp_path / "run" / "metrics.jsonl", until), plan.count_until(until)
        assert work.episodes + work.scored == preparations * 2 * (2 * 2 * 3 + 5) + until * (2 * 3 + 2)
        # a question that is drawn twice in a round is answered once
        assert work.episodes + plan.preparation.scored * preparations + until <= taken <= work.episodes + work.scored
    assert result.record["spent"]["episodes"] == taken
    client_split = Runtime(config.spec()).client_split
    untrained = describe_method({**config.algorithm, "expert_steps": 0, "expert_refresh": 0}, Scale())
    assert len(plan.card.list_labelled(client_split)) == 2 * 8 + 5
    assert len(untrained.list_labelled(client_split)) == 5


@pytest.mark.parametrize(
    "changes",
    [
        ["evaluation={tasks: 5, every: 1}"],
        ["evaluation={tasks: 5, every: 2, repeats: 3}", "ranking={tasks: 7, repeats: 2}"],
        [
            "evaluation={sets: [{name: a, split: test, tasks: 3}, {name: b, split: val, repeats: 2}], tasks: 4, every: 3}"
        ],
        ["evaluation={every: 4}", "env.options.size=tiny", "env.id=fedagentgym/Math-v0", "partition.roles={}"],
        ["evaluation=null"],
    ],
)
def test_evaluations_are_counted_as_they_are_played(changes: list[str], tmp_path: Path) -> None:
    plain = merge(SMALL_CONFIG, {"output": {"folder": str(tmp_path / "run")}, "federation": {"rounds": 3}})
    plan = plan_run(load_config(plain, [*changes, "agent=tiny"]))  # the other agent is too small to be planned
    folder = train(plain, changes, force=True).folder / "evaluation"
    curve, ranked = list[str](), list[str]()
    for file in folder.glob("*.jsonl"):
        (ranked if file.stem == "ranked" else curve).extend(file.read_text().splitlines())
    assert (plan.evaluated, plan.ranked) == (len(curve), len(ranked))
    assert plan.evaluated_tokens == (len(curve) + len(ranked)) * plan.agent.generated_tokens


def test_the_bill_of_a_papers_run_has_its_evaluations() -> None:
    """Without the data: 37 evaluations of 1,000 tasks with 2,048 tokens each are 75.8 million tokens."""
    plan = plan_run(load_config("paper-pubswap:deepmath,tau-10"))
    assert plan.evaluated_tokens == 37 * 1000 * 2048
    text = "\n".join(format_plan(plan))
    assert f"{37 * 1000:,}" in text and f"{37 * 1000 * 2048:,}" in text
    found = plan_gpu(plan, GPUS["h100"], tokens_per_second=1000.0, price=2.5)
    _, most = found.hours
    assert most.playing + most.evaluating == pytest.approx((plan.generated_tokens + 37 * 1000 * 2048) / 1000 / 3600)
    assert make_plain_gpu(found)["price"][1] == pytest.approx(2.5 * most.total)


def test_clients_that_pass_over_their_own_tasks_are_counted_by_these() -> None:
    """FedMOA: 348, 182 and 9 steps of 8 tasks with 16 answers, five clients each, without the data."""
    plan = plan_run(load_config("paper-fedmoa:heter-heter"))
    assert plan.round.episodes == 5 * (348 + 182 + 9) * 8 * 16 == 344_960
    assert plan.round.models_down == plan.round.models_up == 15


@pytest.mark.parametrize(("source", "generated"), [("auto", True), ("generator", True), ("model", False)])
def test_candidates_of_a_generator_are_not_counted_as_replies(source: str, generated: bool) -> None:
    """In an environment with a generator, and with loaded tasks."""
    algorithm = {"name": "dpsda-fl", "candidates": 20, "synthetic_tasks": 10, "candidates_from": source}
    plan = plan_work(load_config(merge(SMALL_CONFIG, {"algorithm": algorithm})))
    assert plan is not None and (plan.preparation.scored == 0) == generated


def test_candidates_for_loaded_tasks_are_counted_as_replies(tmp_path: Path) -> None:
    rows = [{"question": f"What is {number} + 1?", "answer": str(number + 1)} for number in range(60)]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = {"id": "fedagentgym/Math-v0", "options": {"data": str(tmp_path / "mine.jsonl")}}
    algorithm = {"name": "dpsda-fl", "candidates": 20, "synthetic_tasks": 10}
    plain = merge(SMALL_CONFIG, {"env": own, "algorithm": algorithm, "partition": {"roles": {}}})
    plan = plan_work(load_config(plain))
    assert plan is not None and plan.preparation.scored == 16 * (20 + 2 * 10)


def test_steps_of_so_many_rows_are_counted() -> None:
    """64 episodes of 15 turns are 960 rows: 15 steps of 64 in each of 3 local epochs of 2 clients."""
    plain, published = (plan_run(load_config(f"paper-webshop{variant}")) for variant in ("", ":published"))
    assert (plain.round.optimizer_steps, published.round.optimizer_steps) == (6, 90)
    scored = plan_run(load_config("paper-fedgrpo:published")).round.scored
    assert scored == 0 < plan_run(load_config("paper-fedgrpo")).round.scored


def test_experts_with_a_model_of_their_own_are_resident_too() -> None:
    """1.5B experts beside a 7B server: their weights last; only trained ones have gradients and moments."""
    told = {"answers": "own", "selection": "competence", "expert_agent": {"name": "qwen2.5-1.5b-instruct"}}
    one, trained = (
        plan_run(load_config("paper-fedgrpo", [f"algorithm.{name}={value}" for name, value in settings.items()]))
        for settings in ({**told, "expert_steps": 0}, {**told, "expert_steps": 3})
    )
    sizes = {part.name: part.size for part in one.memory if part.owner == "experts"}
    assert sizes["weights (experts)"] == 4 * 1_543_714_304
    assert not [name for name in sizes if "moments" in name or "gradients" in name]
    more = {part.name: part.size for part in trained.memory if part.owner == "experts"}
    assert more["moments (experts)"] == 2 * more["gradients (experts)"] == 8 * 1_543_714_304
    assert trained.peak > one.peak > plan_run(load_config("paper-fedgrpo")).peak - sizes["weights (experts)"]
    assert trained.preparation.episodes > 0 == one.preparation.episodes
    assert one.count_bytes_down(one.round) == plan_run(load_config("paper-fedgrpo")).count_bytes_down(one.round)


def test_auxiliary_questions_travel_as_tasks_and_come_back_as_bits() -> None:
    plan = plan_run(load_config("paper-fedgrpo", ["algorithm.expert_refresh=10", "federation.rounds=30"]))
    questions = plan.config.partition.roles["auxiliary"]
    assert (plan.preparation.tasks_down, plan.preparation.answers_down) == (questions * plan.clients, 0)
    assert plan.preparation.scores_up == 0 and plan.preparation.bits_up >= questions * plan.clients
    assert plan.card.count_preparations(30) == 3
    assert plan.total.tasks_down == 3 * plan.preparation.tasks_down + 30 * plan.round.tasks_down
    asked = plan_run(
        load_config(
            "paper-fedgrpo", ["algorithm.answers=all", "algorithm.selection=random", "algorithm.expert_steps=0"]
        )
    )
    assert asked.preparation == Work()


@pytest.mark.parametrize(
    ("config", "role"),
    [
        ("demo", "auxiliary"),
        ("small-math", "auxiliary"),
    ],
)
def test_a_method_without_its_roles_is_refused(config: str, role: str) -> None:
    with pytest.raises(
        OptionError, match=f"needs tasks of the role '{role}': ask for them with partition.roles.{role}"
    ):
        plan_run(load_config(config, ["algorithm=fedgrpo", "partition.roles={}"]))


def test_vllm_takes_its_share_of_the_device() -> None:
    awake = plan_run(load_config("paper-webshop:lora", ["agent.rollouts=vllm", "agent.options={memory: 0.5}"]))
    asleep = plan_run(load_config("paper-webshop:lora,vllm"))
    shares = [next(part for part in plan.memory if part.name == "vLLM's share") for plan in (awake, asleep)]
    assert [(part.phase, part.size) for part in shares] == [("always", 40 * 10**9), ("playing", 48 * 10**9)]
    assert not [part for part in awake.memory if "episodes" in part.name]


def test_a_plan_follows_the_memory_of_the_device() -> None:
    sizes = []
    for device_bytes in (80 * 10**9, 8 * 10**9):
        plan = plan_run(load_config("paper-webshop:lora,vllm"), device_bytes)
        sizes.append({part.name: part.size for part in plan.memory})
    assert sizes[0]["vLLM's share"] == 10 * sizes[1]["vLLM's share"]
    assert sizes[0]["activations"] >= sizes[1]["activations"]
    agent = replace(plan.agent, context_length=256)
    learning = plan.config.learning.model_copy(update={"micro_tokens": "auto", "checkpointing": False})
    tokens = [count_pass_tokens(replace(agent, device_bytes=size), learning)[0] for size in (80 * 10**9, 8 * 10**9)]
    assert tokens[0] > tokens[1] > 256


def test_work_adds_up() -> None:
    assert (Work(episodes=2, scores_up=1) + Work(episodes=1)) * 3 == Work(episodes=9, scores_up=3)


@pytest.mark.parametrize(("row", "batch"), [("paper-fedgrpo:fedpetuning-sft", 8 * 3), ("paper-fedgrpo:dpsda-sft", 24)])
def test_solutions_that_are_imitated_are_learnt_from(row: str, batch: int) -> None:
    plan = plan_run(load_config(row))
    assert plan.total.imitated == 320 * batch and plan.total.episodes == 0
    assert plan.learnt_tokens == 320 * batch * 2560
    found = plan_gpu(plan, GPUS["h100"], reply_tokens=100)
    (expected, most), (least, longest) = found.tokens, found.hours
    assert expected is not None and least is not None
    assert 0 < expected.imitated < most.imitated == plan.learnt_tokens and most.learnt == 0
    assert 0 < least.learning < longest.learning
    assert "demonstrations imitated" in "".join(format_plan(plan))


def test_a_warm_start_is_learnt_from_once() -> None:
    plan, start = (plan_run(load_config("tiny-skills", [change])) for change in ("seed=0", "federation.rounds=0"))
    warm = plan.config.warm_start
    assert warm is not None
    assert start.learnt_tokens == warm.steps * warm.batch_size * start.agent.context_length
    assert plan.learnt_tokens - plan.updated_tokens == start.learnt_tokens
    made = f"demonstrations of the warm start, made once{warm.steps * warm.batch_size:>25,}"
    assert made in list(format_plan(plan)) and made in list(format_plan(start))


def test_the_plan_of_an_untrained_agent_is_that_of_the_agent_that_is_made() -> None:
    config = load_config(SMALL_CONFIG)
    plan, made = plan_run(config), Runtime(config.spec()).agent
    assert config.agent.name == "untrained-tiny" and isinstance(made, TokenAgent)
    weights = made.policy.get_weights()
    assert plan.agent.parameters == plan.agent.trainable == sum(value.size for value in weights.values())
    assert plan.agent.context_length == made.policy.context_length
    assert plan.agent.reply_tokens == made.decoding.max_new_tokens


PLAN_EVERYTHING = """
import json, sys, time
sys.modules["torch"] = None
from fedagentgym.experiment.config import list_presets, list_variants, load_config
from fedagentgym.experiment.estimate.plan import format_plan, make_plain
from fedagentgym.experiment.estimate.plan import plan_run
for preset in list_presets():
    if preset.startswith("paper-"):
        for name in (preset, *(f"{preset}:{variant}" for variant in list_variants(preset))):
            begun = time.process_time()
            plan = plan_run(load_config(name))
            made = make_plain(plan)
            assert list(format_plan(plan)), name
            seconds = time.process_time() - begun
            print(json.dumps([name, made["total"]["episodes"], made["memory"]["peak"], seconds]))
"""


def test_every_paper_preset_is_planned_without_torch_and_data(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PLAN_EVERYTHING],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "FEDAGENTGYM_CACHE": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = [json.loads(line) for line in done.stdout.splitlines()]
    found = {name: (episodes, peak) for name, episodes, peak, _ in told}
    assert max(seconds for *_, seconds in told) < 2  # of the processor's time
    presets = [preset for preset in list_presets() if preset.startswith("paper-")]
    assert set(found) == {
        name for preset in presets for name in (preset, *(f"{preset}:{one}" for one in list_variants(preset)))
    }
    assert found["paper-webshop"][0] == 70 * 2 * 3 * 64
    assert all(peak > 1e9 for _, peak in found.values())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", " ", "nobody/none", "/nowhere"])
def test_a_name_that_is_no_model_has_no_size(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)  # an empty name is not the present folder
    with pytest.raises(OptionError, match=r"the size of the model .* is not known here"):
        find_shape(name)


def test_seven_billion_weights_need_about_150_gigabytes() -> None:
    plan = plan_run(load_config("paper-webshop:qwen2.5-7b"))
    least = compute_least(plan.agent, plan.config.learning, plan.card.kept_copies)
    assert least == 5 * 4 * 7_615_616_512
    assert compute_peak(plan.memory) > least


def test_what_cannot_fit_is_refused_before_anything_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedagentgym.experiment.estimate.plan.find_device_memory", lambda _: 80 * 10**9)
    monkeypatch.setattr("fedagentgym.agents.model.loading.load_model", None)
    assert main(["train", "paper-alfworld:qwen2.5-7b"]) == 2
    said = capsys.readouterr().err
    assert "needs at least 152 GB on one device, which has 80 GB" in said
    assert "LoRA adapter" in said
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    for assumed in ([], ["--device-memory", "80"], ["--gpu", "h200"]):
        assert main(["plan", "paper-webshop:qwen2.5-7b", "--price", "2.5", *assumed]) == 1
        said = capsys.readouterr().out
        size = "141" if "h200" in assumed else "80"
        assert "26,880" in said and f"does not fit into {size} GB: what fits is a LoRA adapter" in said
    assert main(["plan", "demo", "--price", "2.5"]) == 2 and "is for runs on a GPU" in capsys.readouterr().err
    assert main(["plan", "demo", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["total"]["episodes"] == 6 * 16 * 64
    assert plain["memory"]["peak"] > sum(p["bytes"] for p in plain["memory"]["parts"] if p["phase"] == "always")
    minutes = plain["minutes"]
    assert (
        minutes["total"] == pytest.approx(sum(minutes.values()) - minutes["total"])
        and plain["episode_tokens"]["replies"] > 0
    )


def test_agents_without_a_model_have_no_plan() -> None:
    config = load_config("demo", ["agent={name: expert}", "warm_start=null"])
    with pytest.raises(OptionError, match="language model that is trained"):
        plan_run(config)


def test_the_hours_of_a_gpu_follow_its_data_sheet_and_the_model() -> None:
    small, lora = (plan_run(load_config(f"paper-webshop{variant}")) for variant in ("", ":lora"))
    large = plan_run(load_config("paper-webshop:qwen2.5-7b"))
    h100, l4 = GPUS["h100"], GPUS["l4"]
    for plan in (small, lora, large):
        fast, slow = estimate_speeds(plan, h100), estimate_speeds(plan, l4)
        assert fast.generating > slow.generating and fast.learning > slow.learning and fast.reading > slow.reading
        assert fast.reading == ATTAINED * h100.operations / 2 / plan.agent.parameters
    assert estimate_speeds(small, h100).generating > 2 * estimate_speeds(large, h100).generating
    found = plan_gpu(small, h100, reply_tokens=100)
    (expected, most), (least, longest) = found.tokens, found.hours
    assert expected is not None and least is not None
    for name in ("generated", "evaluated", "read", "learnt"):
        assert 0 < getattr(expected, name) < getattr(most, name)
    assert 0 < least.learning < longest.learning and least.total < longest.total
    assert found.stand_in, "the original data are not here"
    double = plan_gpu(small, h100, reply_tokens=200).tokens[0]
    assert double is not None and double.generated == 2 * expected.generated


def test_the_cards_of_the_command_are_those_of_the_table() -> None:
    assert set(GPU_NAMES) == set(GPUS)
