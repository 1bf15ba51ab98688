"""`fedagentgym openenv init`: write a package that OpenEnv's tools validate, build, run and push."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from string import Template
from typing import Any

import click

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.escape import quote_word
from fedagentgym.base.files import atomic_folder
from fedagentgym.base.progress import print_result
from fedagentgym.cli.completion import complete_environments
from fedagentgym.cli.options import (
    CLIENT,
    CLIENT_SPLIT,
    ENV_SET,
    PATH,
    PLUGINS,
    Group,
    find_named_client,
    open_named_env,
    option,
    parse_env_options,
)
from fedagentgym.envs.core import SUCCESS_REWARD, TextEnv
from fedagentgym.envs.tasks import shorten_env_id
from fedagentgym.version import __version__

SPLIT_FILE = "client_split.json"


@click.group(cls=Group)
def openenv() -> None:
    """Serve environments with OpenEnv's protocol."""


@openenv.command(epilog="Example: fedagentgym openenv init Math --env-set split=val")
@click.argument(
    "env", shell_complete=complete_environments, help="Environment id, for example fedagentgym/Math-v0 (or only Math)."
)
@option("--out", type=PATH, help="Folder to write; by default the environment's name followed by `_env`.")
@option("--wheel", type=PATH, help="A wheel of fedagentgym to install instead of the release on the package index.")
@CLIENT_SPLIT
@CLIENT
@ENV_SET
@PLUGINS
def init(
    env: str,
    out: Path | None,
    wheel: Path | None,
    client_split: Path | None,
    client: int | None,
    env_set: tuple[str, ...],
) -> None:
    """Write the OpenEnv package of an environment: manifest, server, client and Dockerfile."""
    options = parse_env_options(env_set, instead=None)
    named = find_named_client(client, client_split)
    beside = {} if named is None else {"client_split": str(client_split), "client": client}
    opened = open_named_env(env, {**options, **beside})
    folder = Path(f"{_make_name(opened)}_env") if out is None else out
    write_package(opened, options, folder, client_split if named else None, client, wheel)
    place = quote_word(folder)
    start = f"cd {place} && python -m server.app"
    commands = f"try `openenv validate {place} --level static`, then `{start}` (or `uv run server` there)"
    print_result(f"wrote {folder}: {commands}", soft_wrap=True)


def write_package(
    env: TextEnv,
    options: dict[str, Any],
    folder: Path,
    client_split: Path | None = None,
    client: int | None = None,
    wheel: Path | None = None,
) -> None:
    """Write the folder of an OpenEnv package, completely or not at all."""
    if env.options.names_local_data:
        places = ", ".join(name for name, mark in env.options.get_marks().items() if mark == "local")
        raise OptionError(f"{env.id}: the server would need data that is only on this machine: {places}")
    if wheel is not None and not (wheel.is_file() and wheel.name.startswith("fedagentgym-") and wheel.suffix == ".whl"):
        raise DataError(f"{wheel} is no wheel of fedagentgym: `make wheel` or `pip wheel --no-deps .` makes one")
    name = _make_name(env)
    keywords = ", ".join(f"{key}={value!r}" for key, value in sorted(options.items()))
    if client_split is not None:
        keywords += f"{', ' if keywords else ''}client_split=str(FOLDER / {SPLIT_FILE!r}), client={client}"
    source = "" if wheel is None else f'\n[tool.uv.sources]\nfedagentgym = {{ path = "wheels/{wheel.name}" }}\n'
    values = {
        "name": name,
        "title": "".join(part.capitalize() for part in re.split(r"[^a-z0-9]", name)) + "Env",
        "env": env.id,
        "options": f", {keywords}" if keywords else "",
        "version": __version__,
        "source": source,
        "wheel": "" if wheel is None else f" wheels/{wheel.name}",
        "role": " ".join(env.role.split()),
        "whose": "" if client_split is None else f", client {client} of {client_split.name}",
        "highest": json.dumps(1.0 if env.options.reward == "score" else SUCCESS_REWARD),
        "extra": "openenv,alfworld" if "alfworld" in name else "openenv",
    }
    with atomic_folder(folder) as made:
        for path, text in FILES.items():
            (made / path).parent.mkdir(exist_ok=True)
            (made / path).write_text(Template(text).substitute(values), encoding="utf-8")
        if client_split is not None:
            shutil.copyfile(client_split, made / SPLIT_FILE)
        if wheel is not None:
            (made / "wheels").mkdir()
            shutil.copyfile(wheel, made / "wheels" / wheel.name)


def _make_name(env: TextEnv) -> str:
    return re.sub(r"[^a-z0-9]+", "_", shorten_env_id(env.id).lower()).strip("_")


FILES = {
    "openenv.yaml": """\
spec_version: 1
name: ${name}
version: ${version}
type: space
runtime: fastapi
app: server.app:app
port: 8000
validation:
  reward:
    range: [0.0, ${highest}]
    floor_margin: 0.1
  resources:
    cpu: 1.0
    memory_mb: 1024
    disk_mb: 2048
    episode_timeout_s: 600.0
  capabilities:
    verifier:
      kind: reward_channel
  types:
    tags: [text]
""",
    "pyproject.toml": """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "openenv-${name}"
version = "${version}"
description = "${env} for OpenEnv"
requires-python = ">=3.11"
dependencies = ["fedagentgym[${extra}]>=${version}"]

[project.scripts]
server = "${name}_env.server.app:main"

[tool.setuptools]
include-package-data = true
packages = ["${name}_env", "${name}_env.server"]
package-dir = { "${name}_env" = ".", "${name}_env.server" = "server" }

[tool.setuptools.package-data]
"${name}_env" = ["*.json"]
${source}""",
    "README.md": """\
---
title: ${title}
sdk: docker
app_port: 8000
tags: [openenv, fedagentgym]
---

# ${env}${whose}

${role}

    python -m server.app              # the server on port 8000; or: uv run server
    openenv validate --url http://127.0.0.1:8000
    openenv push --repo-id OWNER/NAME --no-interface    # a Space of the Hugging Face Hub

Every observation has a `prompt`, the next message to a chat model. The last observation also has score, success and category.
""",
    "__init__.py": '''\
"""A client of ${env}."""

from .client import ${title}

__all__ = ["${title}"]
''',
    "client.py": '''\
"""A client of this server: `step({"text": action})`."""

from openenv.core.generic_client import GenericEnvClient


class ${title}(GenericEnvClient):
    """Plays ${env} on a server: observations are mappings with the keys `text`, `prompt`, `admissible`."""
''',
    "server/__init__.py": '"""The server."""\n',
    "server/app.py": '''\
"""The server of ${env} with OpenEnv's protocol."""

import os
from pathlib import Path

import uvicorn

from fedagentgym.bridges.openenv import make_app
from fedagentgym.envs import open_env

FOLDER = Path(__file__).resolve().parents[1]
app = make_app(open_env("${env}"${options}), hosts=["*"])


def main() -> None:
    """Serve on the address in HOST, by default on 127.0.0.1."""
    uvicorn.run(app, host=os.environ.get("HOST", "127.0.0.1"), port=8000)


if __name__ == "__main__":
    main()
''',
    "server/Dockerfile": """\
FROM python:3.12-slim
WORKDIR /app/env
COPY . /app/env
RUN pip install --no-cache-dir${wheel} .
EXPOSE 8000
CMD ["uvicorn", "server.app:app", "--host", "0.0.0.0", "--port", "8000"]
""",
}
"""The files of a package, as templates that `write_package` fills."""
