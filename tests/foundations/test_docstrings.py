"""Docstrings agree with signatures, and every file or name that a text mentions exists.

Texts are docstrings, comments, messages and pages. A message to users mentions public names only.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.foundations.mentions import NAME, find_missing, find_private, list_classes

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("fedagentgym", "benchmarks", "examples", "papers", "baselines")
SOURCES = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
PAGES = [
    *sorted(file for kind in ("*.md", "*.toml", "*.yml", "*.cff", "*.txt", "*.in") for file in ROOT.glob(kind)),
    *(ROOT / name for name in ("Makefile", "Dockerfile", ".ci/run", "examples/demo.ipynb")),
    *sorted(file for kind in ("md", "tex") for file in (ROOT / "docs").rglob(f"*.{kind}")),
    *sorted(file for folder in ("papers", "baselines", "benchmarks") for file in (ROOT / folder).rglob("*.md")),
    *sorted((ROOT / "leaderboard").glob("*.md")),
    *sorted(file for kind in ("yml", "md") for file in (ROOT / ".github").rglob(f"*.{kind}")),
    *sorted(
        file for folder in ("fedagentgym", "leaderboard", "benchmarks") for file in (ROOT / folder).rglob("*.yaml")
    ),
    *sorted((ROOT / "fedagentgym").rglob("*.html")),
]

SECTION = r"^{}:\n((?:    .*\n|\n)*)"
TITLES = r"^(?:Args|Attributes|Returns|Yields|Raises|Examples):$"
ENTRY = re.compile(r"^    (\S[^:]*):(.*)", re.MULTILINE)
LINE = re.compile(r"^    \S.*", re.MULTILINE)
IS_BOOL = re.compile(r"\bbool\b|Type(?:Guard|Is)\b|\bBool|NDArray\[np\.bool_?\]|\bFlags\b|\bTensor\b")
IS_GENERATOR = re.compile(r"Iterator|Iterable|Generator")
SAYS_BOOL = re.compile(r"(?:\w+ )?(?:whether|true if)\b", re.IGNORECASE)
NOTHING = ("None", "NoReturn", "Never")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def list_documented(nodes: list[ast.AST]) -> Iterator[tuple[Function, str]]:
    for node in nodes:
        if isinstance(node, Function) and (text := ast.get_docstring(node)):
            yield node, text


def list_parameters(function: Function) -> dict[str, str]:
    """The parameters of a function in their order, without `self`, each with its annotation."""
    args = function.args
    every = [*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg]
    found = {one.arg: ast.unparse(one.annotation) if one.annotation else "" for one in every if one}
    return {name: annotation for name, annotation in found.items() if annotation or name not in ("self", "cls")}


def read_section(text: str, title: str) -> str:
    found = re.search(SECTION.format(title), text + "\n", re.MULTILINE)
    return found[1] if found else ""


def read_entries(text: str, title: str) -> list[tuple[str, str]]:
    """The names that a section explains, each with its explanation; a line of another form is a name that nothing has."""
    section = read_section(text, title)
    entries = [(name.lstrip("*"), meaning.strip()) for name, meaning in ENTRY.findall(section)]
    return entries if len(entries) == len(LINE.findall(section)) else [*entries, ("", "")]


def find_faults(nodes: list[ast.AST]) -> Iterator[str]:
    """The docstrings of a module that its signatures contradict, and those that are questions."""
    for function, text in list_documented(nodes):
        for fault in (*find_faults_of_results(function, text), *find_faults_of_arguments(function, text)):
            yield f"line {function.lineno}, {function.name}: {fault}"
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            yield from (f"line {node.lineno}, {node.name}: {fault}" for fault in find_faults_of_class(node))
        if isinstance(node, ast.ClassDef | ast.Module):
            for field, docstring in zip(node.body, node.body[1:], strict=False):
                said = "".join(str(one.value) for one in list_docstrings([docstring]))
                kind = ast.unparse(field.annotation) if isinstance(field, ast.AnnAssign) else "bool"
                if SAYS_BOOL.match(said) and not IS_BOOL.search(kind):
                    yield f"line {field.lineno}: `whether` for {kind}"
    for docstring in list_docstrings(nodes):
        said = str(docstring.value).strip()
        if re.match(r"(?:How|Whether|What)\b", said) or re.match(r"[^.:`]*\?(?:\s|$)", said):
            yield f"line {docstring.lineno}: a docstring says what a thing is or does, it is no question"


def find_faults_of_results(function: Function, text: str) -> Iterator[str]:
    gives = ast.unparse(function.returns).strip("'\"") if function.returns else "None"
    summary = re.split(TITLES, text, flags=re.MULTILINE)[0]
    first = re.split(r"(?<=[.:;]) ", " ".join(text.split()))[0]
    if gives in NOTHING:
        if re.search(r"(?:^|[.;]\s+)(?:Return|Yield)s?\b", summary) or re.search(
            r"^(?:Return|Yield)s:", text, re.MULTILINE
        ):
            yield "nothing is returned"
    else:
        if SAYS_BOOL.match(first) and not IS_BOOL.search(gives):
            yield f"`whether`, and returns {gives}"
        if re.match(r"\s*(?:None|Nothing)\.?\s*$", read_section(text, "Returns")):
            yield f"None in Returns, and returns {gives}"
        if not IS_GENERATOR.search(gives) and (re.match(r"Yields?\b", text) or read_section(text, "Yields")):
            yield f"nothing is yielded, and returns {gives}"
    if SAYS_BOOL.match(read_section(text, "Returns").strip()) and not IS_BOOL.search(gives):
        yield f"`whether` in Returns, and returns {gives}"


def find_faults_of_arguments(function: Function, text: str) -> Iterator[str]:
    parameters, entries = list_parameters(function), read_entries(text, "Args")
    if entries and [name for name, _ in entries] != list(parameters):
        yield f"Args are {list(parameters)}"
    for name, meaning in entries:
        if SAYS_BOOL.match(meaning) and not IS_BOOL.search(parameters.get(name, "bool")):
            yield f"`whether` for {name}: {parameters[name]}"
    for name, _ in read_entries(text, "Raises"):
        if name not in list_classes() and not hasattr(builtins, name) and "." not in name:
            yield f"Raises {name}, which is no error"


def find_faults_of_class(cls: ast.ClassDef) -> Iterator[str]:
    """Faults of the sections of a class: `Args` are those of its constructor, `Attributes` exist, all fields are explained."""
    text = ast.get_docstring(cls) or ""
    arguments, attributes = read_entries(text, "Args"), read_entries(text, "Attributes")
    fields = {
        node.target.id: ast.unparse(node.annotation)
        for node in cls.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    functions = [node for node in cls.body if isinstance(node, Function)]
    own = {*fields, *(function.name for function in functions)}
    own |= {
        one.id
        for node in cls.body
        if isinstance(node, ast.Assign)
        for one in ast.walk(node)
        if isinstance(one, ast.Name)
    }
    own |= {one.attr for function in functions for one in ast.walk(function) if isinstance(one, ast.Attribute)}
    for made in functions:
        if made.name == "__init__" and arguments and [name for name, _ in arguments] != list(list_parameters(made)):
            yield f"Args are {list(list_parameters(made))}"
    is_plain = all(
        ast.unparse(base).partition("[")[0] in ("NamedTuple", "Protocol", "Generic", "ABC") for base in cls.bases
    )
    if is_plain:
        yield from (f"no attribute {name!r}" for name, _ in attributes if name not in own)
    for name, meaning in (*arguments, *attributes):
        if SAYS_BOOL.match(meaning) and not IS_BOOL.search(fields.get(name, "bool")):
            yield f"`whether` for {name}: {fields[name]}"
    decorated = any("dataclass" in ast.unparse(one) for one in cls.decorator_list)
    if (decorated or any(ast.unparse(base) == "NamedTuple" for base in cls.bases)) and (arguments or attributes):
        told = {name for name, _ in (*arguments, *attributes)}
        kept = [one for one, kind in fields.items() if one[0] != "_" and not kind.startswith(("ClassVar", "KW_ONLY"))]
        yield from (f"the field {one!r} is not explained" for one in kept if one not in told)


def list_comments(source: str) -> list[str]:
    return re.findall(r"#.*", source)


def list_texts(nodes: list[ast.AST]) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def list_docstrings(nodes: Iterable[ast.AST]) -> Iterator[ast.Constant]:
    """The texts that stand as a statement of their own."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def list_messages(nodes: list[ast.AST]) -> Iterator[str]:
    """The texts of a module that a user may read: all constants with a space, and those of a raised error."""
    docstrings = {id(text) for text in list_docstrings(nodes)}
    raised = {id(part) for node in nodes if isinstance(node, ast.Raise) for part in ast.walk(node)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_message = id(node) in raised or " " in node.value
            if is_message and id(node) not in docstrings:
                yield node.value


def find_missing_on_page(text: str, folder: Path) -> list[str]:
    """What a page mentions in vain. A file that a page has the reader write stands in one of its blocks of code, without a
    folder; a name in capitals stands for others."""
    blocks = "".join(re.findall(r"^ *```.*?^ *```", text, re.MULTILINE | re.DOTALL))
    return [
        one
        for one in find_missing(text, folder)
        if not (one in blocks and WRITTEN.fullmatch(one)) and "SUITE" not in one
    ]


WRITTEN = re.compile(r"\w+\.py")


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    """All faults of the sources by kind, each with its file."""
    faults: dict[str, list[str]] = {"false": [], "missing": [], "private": []}
    for file in SOURCES:
        source = file.read_text("utf-8")
        nodes = list(ast.walk(ast.parse(source)))
        texts = [*list_comments(source), *list_texts(nodes)]
        faults["false"] += [f"{file}, {fault}" for fault in find_faults(nodes)]
        faults["missing"] += [f"{file}: {name}" for name in find_missing("\n".join(texts), file.parent)]
        if file.is_relative_to(ROOT / "fedagentgym"):
            faults["private"] += [f"{file}: {name}" for one in list_messages(nodes) for name in find_private(one)]
    return faults


def test_docstrings_agree_with_the_signatures(found: dict[str, list[str]]) -> None:
    assert len(SOURCES) > 400 and found["false"] == []


def test_files_and_names_in_docstrings_comments_and_messages_exist(found: dict[str, list[str]]) -> None:
    assert found["missing"] == []


def test_messages_to_users_name_what_is_public(found: dict[str, list[str]]) -> None:
    assert found["private"] == []


def test_files_that_tests_mention_exist() -> None:
    for file in set((ROOT / "tests").rglob("*.py")) - {Path(__file__)}:
        mentioned = re.sub(NAME, "", file.read_text("utf-8"))  # names there are often made up
        assert list(find_missing(mentioned, file.parent)) == [], file


def test_files_and_names_on_pages_exist() -> None:
    assert len(PAGES) > 250
    missing = {page: find_missing_on_page(page.read_text("utf-8"), page.parent) for page in PAGES}
    assert {str(page): found for page, found in missing.items() if found} == {}


def document(head: str, text: str, rest: str = "") -> str:
    """A definition with a docstring, whose sections are written as `Args: a: Where.; b: When.`."""
    indent = " " * (4 + len(head.splitlines()[-1]) - len(head.splitlines()[-1].lstrip()))
    parts = [re.sub(r"^(\w+): (.*)$", r"\1:\n    \2", part).replace("; ", "\n    ") for part in text.split(" | ")]
    body = "\n\n".join(parts).replace("\n", f"\n{indent}").replace(f"\n{indent}\n", "\n\n")
    return f'{head}\n{indent}"""{body}\n{indent}"""\n{rest}'


FALSE = [
    document("def show() -> None:", "Return the rows."),
    document("def show():", "Returns the rows."),
    document("async def show() -> None:", "Return the rows."),
    document("class A:\n    @property\n    def rows(self) -> None:", "Return the rows."),
    document("def show() -> None:", "Print the rows. Returns their number."),
    document("def show() -> None:", "Print the rows. | Returns: The rows."),
    document("async def show() -> None:", "Print the rows. | Returns: None."),
    document("def show() -> 'None':", "Return the rows."),
    document("def show() -> NoReturn:", "Yield the rows."),
    document("def find() -> int:", "Find a reason. | Returns: None."),
    document("def find() -> list[int]:", "Yield the rows."),
    document("def find() -> list[int]:", "Find the rows. | Yields: The rows."),
    document("async def find() -> str | None:", "Return whether there is a reason."),
    document("def find() -> int:", "Tell whether there is a reason."),
    document("def find() -> str:", "True if there is a reason."),
    document("def find() -> int:", "Find a reason. | Returns: Whether there is one."),
    document("def find(a: int) -> int:", "Find a reason. | Args: a: Whether there is one."),
    document("def find(a: int) -> int:", "Find a reason. | Args: b: Where."),
    document("def find(a: int, b: int) -> int:", "Find a reason. | Args: b: Where."),
    document("def find(a: int, b: int) -> int:", "Find a reason. | Args: b: Where.; a: When."),
    document("def find(a: int, b: int) -> int:", "Find a reason. | Args: a: Where.; b: When.; b: Why."),
    document("def find(a: int, *, b: int) -> int:", "Find a reason. | Args: a: Where."),
    document("def find(a: int, **b: int) -> int:", "Find a reason. | Args: a: Where."),
    document("def find(a: int) -> int:", "Find a reason. | Args: b (int): Where."),
    document("def find(a: int) -> int:", "Find a reason. | Args: The place."),
    document("class A:\n    def find(self, *a: int) -> int:", "Find it. | Args: b: Where."),
    document("class A:\n    class B:\n        def find(self, a: int, b: int) -> int:", "Find it. | Args: a: Where."),
    document("@overload\ndef find(a: int) -> int:", "Find it. | Args: b: Where."),
    document("def find(a: int) -> int:", "Find it. | Raises: OptionFault: If there is none."),
    document("class A:", "Whether there is one."),
    document("class A:\n    def find(self) -> bool:", "Is there one?"),
    document("class A:", "A row. | Args: b: Where.", "    def __init__(self, a: int) -> None: ...\n"),
    document("class A:", "A row. | Attributes: b: Where.", "    a: int\n"),
    document("@dataclass\nclass A:", "A row. | Attributes: a: Where.", "    a: int\n    b: int\n"),
    document("@dataclass(frozen=True)\nclass A(B):", "A row. | Attributes: a: Where.", "    a: int\n    b: int = 3\n"),
    document("class A(NamedTuple):", "A row. | Attributes: a: Where.", "    a: int\n    b: int\n"),
    document("@dataclass\nclass A:", "A row. | Attributes: a: Whether.", "    a: int\n"),
    document("class A:", "A row.", '    a: int = 3\n    """True if there is one."""\n'),
    document("class A:", "A row.", '    a: int = 3\n    """How many there are."""\n'),
]


@pytest.mark.parametrize("source", FALSE)
def test_a_false_docstring_is_found(source: str) -> None:
    assert list(find_faults(list(ast.walk(ast.parse(source))))) != []


@pytest.mark.parametrize(
    "source",
    [
        document("def show() -> None:", "Print the rows that `find` returned."),
        document("def find() -> tuple[str, bool]:", "Return whether there is one, and its name."),
        document("def is_one(value: object) -> TypeGuard[int]:", "Return whether it is a number."),
        document(
            "def find(a: bool) -> int | None:", "Find it. | Args: a: Whether to look. | Returns: The number; None: no."
        ),
        document(
            "class A:\n    def find(self, a: bool, *rest: int) -> int:", "Find it. | Args: a: Whether.; *rest: Where."
        ),
        document(
            "class A:\n    @classmethod\n    def find(cls, a: int, **rest: int) -> int:",
            "Find. | Args: a: It.; **rest: Or.",
        ),
        document("def find() -> Iterator[int]:", "Yield the rows. | Yields: A row. | Raises: ValueError: If none."),
        document(
            "@dataclass\nclass A:",
            "A. | Attributes: a: Where.; b: It.",
            "    a: int\n    @property\n    def b(self): ...\n",
        ),
        document("class A(B):", "A row. | Attributes: of_base: Where."),
    ],
)
def test_a_true_docstring_is_not(source: str) -> None:
    assert list(find_faults(list(ast.walk(ast.parse(source))))) == []


@pytest.mark.parametrize(
    "text",
    [
        "see `base/plugins.py`",
        "see `./base/plugins.py`",
        "see ``base/plugins.py``",
        "see `base/plugins.py:3-8`",
        "`nothing_here.py`, line 3",
        "run `python benchmarks/nothing.py --all`",
        "as `tests/envs/test_nothing.py::test_a[case-1]` shows",
        "as tests/envs/test_nothing.py shows",
        "drawn in docs/pictures/nothing.svg",
        "[program](https://github.com/fedagentgym/fedagentgym/blob/main/examples/nothing.py)",
        "```bash\npython examples/nothing.py\n```",
        "```bash\nmake test  # tests/golden/nothing.json\n```",
        "use fedagentgym.trainer",
        "`fedagentgym.envs.variants.Varied` is one",
        "`fedagentgym.envs.Variants`",
        "`fedagentgym.algorithms.bases`",
        "`fedagentgym.leaderboard.Suites`",
        "`fedagentgym.envs.core:Nothing`",
        "```text\nfedagentgym.envs.Nothing\n```",
        "a method: `fedagentgym.envs.TextEnv.nothing()`",
        "an inherited one: `fedagentgym.algorithms.Averaging.nothing`",
        "a field: `fedagentgym.envs.Task.nothing`",
        "a setting: `fedagentgym.learning.LearningSettings.nothing`",
        "a local variable: `fedagentgym.base.errors.guess`",
        "an attribute of a function: `fedagentgym.train.nothing`",
        "python -c 'from fedagentgym.envs import Nothing'",
        ">>> from fedagentgym.envs import (\n...     TextEnv,\n...     Nothing,\n... )",
        "run `python -m fedagentgym.nothing`",
    ],
)
def test_what_does_not_exist_is_found(text: str) -> None:
    assert len(list(find_missing(text, ROOT / "tests"))) == 1 and len(find_missing_on_page(text, ROOT / "docs")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "see `base/errors.py:3`, `fedagentgym/base/errors.py`, `python benchmarks/plan.py`, docs/index.md",
        "[one](https://github.com/fedagentgym/fedagentgym/blob/main/README.md), `/srv/mine.py`, `~/mine.py`, `*.py`",
        "`fedagentgym.envs.TextEnv.reset`, `fedagentgym.envs.core:TextEnv`, `fedagentgym.algorithms.Averaging.client_ids`",
        "`fedagentgym.learning.LearningSettings.kl`, `fedagentgym.envs.Task.payload`, fedagentgym.github.io/fedagentgym",
        "from fedagentgym.envs import TextEnv as Env, open_env  # and more",
        "`fedagentgym.learning.LearningSettings.model_fields`, `fedagentgym.envs.ENVIRONMENTS.get`",
    ],
)
def test_what_exists_is_not(text: str) -> None:
    assert list(find_missing(text, ROOT / "tests")) == []


def test_a_page_may_name_the_files_that_its_reader_writes() -> None:
    block = "```bash\nfedagentgym train demo --plugin mine.py\n```\n"
    assert find_missing_on_page(f"{block}\nWrite `mine.py`, then `other.py`.", ROOT / "docs") == ["other.py"]


def test_the_texts_of_a_module_are_found() -> None:
    source = "'first'\nwith_value = 'a'  # second\ndef f():\n    'third'\n    raise ValueError(f'{f} fourth', 'fifth')"
    nodes = list(ast.walk(ast.parse(source)))
    assert list_comments(source) == ["# second"] and [one.value for one in list_docstrings(nodes)] == ["first", "third"]
    assert sorted(list_messages(nodes)) == [" fourth", "fifth"]
    assert sorted(list_texts(nodes)) == [" fourth", "a", "fifth", "first", "third"]


@pytest.mark.parametrize(
    ("message", "count"),
    [
        ("derive from fedagentgym.algorithms.base.BaseAlgorithm", 1),
        ("derive from fedagentgym.algorithms.BaseAlgorithm", 0),
        ("derive from BaseAlgorithm", 0),
        ("derive from AveragingSteps", 1),
        ("derive from fedagentgym.algorithms.averaging:AveragingSteps", 2),
        ("FedAgent without a ServerApp", 0),
        ("fedagentgym.base is for this package", 1),
        ("made by `python -m fedagentgym.cli.reference`", 0),
        ("from fedagentgym.experiment.flower_app import client_app", 0),
        ("see `base/imports.py` for plugins", 1),
        ("see `imports.py` for plugins", 1),
        ("see fedagentgym/base/imports.py for plugins", 1),
        ("the program my_folder/my_agent.py", 0),
    ],
)
def test_private_names_in_a_message_are_found(message: str, count: int) -> None:
    assert len(list(find_private(message))) == count
