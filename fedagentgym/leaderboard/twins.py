"""Secret twins: the same generators under a seed that only the maintainers know until it is published.

Every generated environment takes a seed, so a suite can be played again on tasks that nobody has seen or tuned on. The package
contains a digest of the twin's seed with a long random salt, so that the seed can neither be guessed nor chosen after results are
known. The next version of the suite publishes both, and everybody can check the digest.

A twin's tasks are new in every split, so a method trains there again; a model plays tasks that were in no training set.
"""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from typing import NamedTuple

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import read_json
from fedagentgym.leaderboard.suite import Suite, Twin

SALT_BYTES = 32
SEED_BITS = 48


class Secret(NamedTuple):
    """The maintainers' secret."""

    suite: str
    salt: str
    seed: int

    @property
    def digest(self) -> str:
        """The part that is published in advance."""
        text = f"fedagentgym twin\n{self.suite}\n{self.salt}\n{self.seed}\n"
        return "sha256:" + hashlib.sha256(text.encode("utf-8")).hexdigest()


def draw_secret(suite: Suite) -> Secret:
    """A new secret, from the operating system's randomness."""
    return Secret(suite.name, secrets.token_hex(SALT_BYTES), secrets.randbits(SEED_BITS))


def read_secret(path: Path) -> Secret:
    """A secret from the maintainers' file."""
    plain = read_json(path)
    if not isinstance(plain, dict) or set(plain) != {"suite", "salt", "seed"}:
        raise DataError(f"{path} holds no secret of a suite")
    suite, salt, seed = plain["suite"], plain["salt"], plain["seed"]
    if not (isinstance(suite, str) and isinstance(salt, str) and isinstance(seed, int) and 0 <= seed < 1 << SEED_BITS):
        raise DataError(f"{path} holds no secret of a suite")
    return Secret(suite, salt, seed)


def name_twin(suite: str) -> str:
    """The name of a suite's secret twin."""
    return f"{suite}-secret"


def make_twin(suite: Suite, secret: Secret) -> Suite:
    """The suite under the secret's seed, if it matches the published digest."""
    if suite.secret is None:
        raise OptionError(f"{suite.name} has no secret twin")
    if secret.suite != suite.name or secret.digest != suite.secret.digest:
        raise DataError(f"this is not the secret whose digest {suite.name} holds")
    plain = suite.model_dump(mode="json", exclude_unset=True)
    plain |= {"name": name_twin(suite.name), "title": f"{suite.title}, on tasks that nobody knew"}
    del plain["secret"]
    for scenario in plain["scenarios"].values():
        for key in ("pool", "task_ids", "client_split"):
            scenario.pop(key, None)
        if suite.track == "agents":
            scenario["options"] = {**scenario.get("options", {}), "seed": secret.seed}
        else:
            scenario["changes"] = [*scenario.get("changes", []), f"env.options.seed={secret.seed}"]
    return Suite.load(plain)


def check_disclosure(suite: Suite, twin: Twin) -> Secret:
    """The secret of a twin that a later version publishes, if it matches the digest."""
    if twin.disclosed_salt is None or twin.disclosed_seed is None:
        raise OptionError(f"the twin of {suite.name} has not been disclosed yet")
    told = Secret(suite.name, twin.disclosed_salt, twin.disclosed_seed)
    if told.digest != twin.digest:
        raise DataError(
            f"what is disclosed of the twin of {suite.name} is not what was promised: {told.digest} != {twin.digest}"
        )
    return told
