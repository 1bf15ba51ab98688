#!/bin/sh
# Builds the sdist and the wheel of it, installs that into an environment of its own, and runs the command away from the checkout.
# The sdist has every file of the repository but the larger results, and its tests run in an empty folder. Neither is over 60 MB.
set -eu
root=$(pwd)
box=$(mktemp -d)
trap 'rm -rf "$box"' EXIT
"$BIN/python" -m build -q --outdir "$box/dist" .
for file in "$box"/dist/*; do
    size=$(wc -c < "$file")
    test "$size" -le 60000000 || { echo "$(basename "$file") has $size bytes: package indexes refuse large files"; exit 1; }
done
for package in "$box"/dist/*.whl; do
    "$PYTHON" -m venv "$box/venv"
    "$box/venv/bin/pip" install -q -c constraints.txt "$package"
    (cd "$box" && "$box/venv/bin/fedagentgym" envs > "$box/envs.txt")
    grep -q "fedagentgym/Guess-v0" "$box/envs.txt"
    (cd "$box" && "$box/venv/bin/fedagentgym" demo > "$box/demo.txt")
    grep -q "Pick2.*100 %" "$box/demo.txt"
    for agent in expert random; do
        (cd "$box" && "$box/venv/bin/fedagentgym" eval --env Guess --agent $agent --tasks 4 --out $agent.jsonl > /dev/null)
    done
    (cd "$box" && "$box/venv/bin/fedagentgym" compare random.jsonl expert.jsonl --out page.html > /dev/null)
    grep -q 'class="card compared"' "$box/page.html"
    rm -rf "$box/site"
    (cd "$box" && "$box/venv/bin/fedagentgym" leaderboard build "$root/leaderboard/results/agents-tiny-v1" --out site > /dev/null)
    grep -q 'id="data-agents-tiny-v1"' "$box/site/index.html"
    (cd "$box" && "$box/venv/bin/python" - "$root" <<'PYTHON'
import pathlib
import sys

import gymnasium

import fedagentgym

assert not pathlib.Path(fedagentgym.__file__).is_relative_to(sys.argv[1]), "the checkout was imported, not the package"
for name in fedagentgym.registration.ENVIRONMENTS.names():
    gymnasium.make(name).reset(seed=0)

from fedagentgym.agents.model.pretrained import list_shipped

weights = [one.folder / "model.safetensors" for one in list_shipped()]
shipped = [file.parent.name for file in pathlib.Path(sys.argv[1]).glob("fedagentgym/agents/shipped/*/model.safetensors")]
assert sorted(file.parent.name for file in weights) == sorted(shipped) != [], (weights, shipped)
assert all(file.stat().st_size > 400_000 for file in weights), weights
PYTHON
    )
    echo "installed and run: $(basename "$package")"
done

mkdir "$box/unpacked"
tar -xzf "$box"/dist/*.tar.gz -C "$box/unpacked" --strip-components 1
if git rev-parse --verify -q HEAD > /dev/null; then  # without the three links that stand for folders of the package
    git ls-files -s | grep -v '^120000' | cut -f 2 | while read -r file; do
        case $file in
            leaderboard/results/agents-tiny-v1/* | leaderboard/results/methods-small-skills-v1/* | leaderboard/tuning/*.json) ;;
            leaderboard/results/* | leaderboard/tuning/*) continue ;;
        esac
        test -f "$box/unpacked/$file" || { echo "not in the sdist: $file"; exit 1; }
    done
fi
case $BIN in /*) python=$BIN/python ;; *) python=$root/$BIN/python ;; esac
cd "$box/unpacked"
export PYTHONPATH="$box/unpacked"
"$python" -m pytest -q -p no:cacheprovider --collect-only > "$box/collected" || { tail "$box/collected"; exit 1; }
tail -1 "$box/collected"
"$python" -m pytest -q -p no:cacheprovider tests/foundations/test_release.py tests/foundations/test_docs_site.py \
    tests/foundations/test_surface.py tests/envs/test_core.py tests/leaderboard/test_export.py tests/cli/test_json.py
