"""Rows of data files and their fields: JSON lines, JSON, CSV or parquet, compressed or not, in one file or a folder.

Every error message names the file, the line (or record) and the field. Names of files, columns and configurations are
recognised in upper and lower case.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from fedagentgym.base.encoding import file_digest
from fedagentgym.base.errors import DataError, FedAgentGymError, join_names
from fedagentgym.base.files import MAX_LINE, MAX_TEXT, check_line, open_plain, parse_json
from fedagentgym.base.imports import require

MAX_BYTES = 1 << 32
"""Maximum size of a data file, unpacked."""
MIN_LIMIT, MAX_EXPANSION = 1 << 26, 50
"""A file may unpack to 64 MiB or to 50 times its size, whichever is more. Text compresses to a fifth or a tenth; a
decompression bomb, to a thousandth."""
MAX_COLUMNS = 10_000
"""Maximum number of columns of a table."""
MAX_ROWS = 1 << 22
"""Maximum number of lines or records of a data file: all of them are held in memory."""
SUFFIXES = (
    *(".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet", ".ndjson", ".ndjson.gz"),
    *(".csv", ".csv.gz", ".tsv", ".tsv.gz"),
)
NOT_DATA = ("dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json")
"""Files without rows that publishers add to a data set."""
SPLIT_WORDS = {"train": "train", "test": "test", "val": "val", "valid": "val", "validation": "val", "dev": "val"}


class Row(NamedTuple):
    """A record of a file: its place for messages, the split that the file's path names (if any), and its fields."""

    where: str
    split: str | None
    fields: Mapping[str, Any]

    @classmethod
    def make(cls, where: str, split: str | None, record: object) -> Row:
        """The row of a record. A column whose name has capitals is also found in lower case."""
        if not isinstance(record, Mapping):
            raise DataError(f"{where}: a record must be a JSON object, not {type(record).__name__}")
        if None in record:
            raise DataError(f"{where}: the row is longer than the line of column names")
        if all(isinstance(name, str) and name == name.lower() for name in record):
            return cls(where, split, record)
        return cls(where, split, {**{str(name).lower(): value for name, value in record.items()}, **record})

    def get_text(self, *names: str) -> str:
        """The first of these fields that the row has, as text; `DataError` if it is blank or no text."""
        value = self.get_value(*names)
        if isinstance(value, int | float) and not isinstance(value, bool) and not is_missing(value):
            return format_plain_number(value)
        if not isinstance(value, str) or not value.strip():
            found = next(name for name in names if name in self.fields)
            raise self.make_error(found, f"is not a text, but {str(value)[:60]!r}")
        return value

    def get_value(self, *names: str) -> Any:
        for name in names:
            if name in self.fields:
                return self.fields[name]
        raise DataError(f"{self.where}: there is no field {names[0]!r}, only {join_names(sorted(self.fields))}")

    def get(self, *names: str) -> Any:
        return next((self.fields[name] for name in names if self.fields.get(name) is not None), None)

    def make_error(self, name: str, why: str) -> DataError:
        return DataError(f"{self.where}: the field {name!r} {why}")


def is_missing(value: Any) -> bool:
    """True for a value that stands for a missing one: null, and what tables have in its place (NaN, infinity, pandas' NA)."""
    if isinstance(value, float):
        return not math.isfinite(value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def format_plain_number(value: float) -> str:
    """A number as people write it: 27.0 is 27."""
    return str(int(value)) if float(value).is_integer() else str(value)


def list_data_files(data: str | Path) -> list[Path]:
    """The data files of a path, sorted."""
    path = Path(data)
    if path.is_file():
        if not path.name.lower().endswith(SUFFIXES):
            raise DataError(f"cannot read {path}: data files end in {', '.join(SUFFIXES)}")
        return [path]
    if not path.is_dir():
        raise DataError(f"cannot read {path}: there is no such file or folder")
    files = []
    for file in sorted(path.rglob("*")):
        name, hidden = file.name.lower(), any(part.startswith(".") for part in file.relative_to(path).parts)
        if name.endswith(SUFFIXES) and name not in NOT_DATA and not hidden and file.is_file():
            files.append(file)
    if not files:
        raise DataError(f"cannot read {path}: the folder holds no file that ends in {', '.join(SUFFIXES)}")
    return files


def choose_subset(root: Path, files: Sequence[Path], subsets: Mapping[str, Sequence[str]], chosen: str) -> list[Path]:
    """The files in the folders of the chosen configuration; all files if no configuration has a folder.

    `subsets` names the folders of every configuration.
    """
    words = {folder: name for name, folders in subsets.items() for folder in folders}
    found: dict[str, list[Path]] = {}
    for file in files:
        parents = file.relative_to(root).parts[:-1] if root.is_dir() else ()
        name = next((words[part.lower()] for part in parents if part.lower() in words), "")
        found.setdefault(name, []).append(file)
    present = [name for name in found if name]
    if not present:
        return list(files)
    if chosen not in found:
        raise DataError(
            f"{root} holds the configurations {join_names(sorted(present))}, and not {chosen!r}: choose one with subset="
        )
    return found[chosen]


def digest_files(root: Path, files: Sequence[Path]) -> dict[str, str]:
    """The digest of every data file, by its path inside the folder."""
    return {name_file(root, file).as_posix(): file_digest(file) for file in files}


def name_file(root: Path, file: Path) -> Path:
    """The name of a data file: its path inside the folder `root`, or its own name if `root` is this file."""
    return file.relative_to(root) if root.is_dir() else Path(file.name)


def read_records(root: Path, files: Sequence[Path]) -> Iterator[tuple[str, str | None, object]]:
    """Every record of the files, unchanged: its place, the split that the file's path names, and the value."""
    for file in files:
        named = name_file(root, file)
        split = infer_split(named)
        for where, value in _read_records(file, named.as_posix()):
            yield where, split, value


def infer_split(named: Path) -> str | None:
    """The split that a path names by one of its words: `gsm8k/test.jsonl` is test."""
    for part in reversed(named.parts):
        words = "".join(character if character.isalnum() else " " for character in part.lower()).split()
        for word in words:
            if word in SPLIT_WORDS:
                return SPLIT_WORDS[word]
    return None


def _read_records(file: Path, name: str) -> Iterator[tuple[str, Any]]:
    stem = file.name.lower().removesuffix(".gz")
    with open_plain(file) as packed:
        limit = min(MAX_BYTES, max(MIN_LIMIT, MAX_EXPANSION * file.stat().st_size))
        try:
            if stem.endswith(".parquet"):
                yield from _read_parquet(file, packed, name, limit)
                return
            content = gzip.GzipFile(fileobj=packed) if file.name.lower().endswith(".gz") else packed
            if stem.endswith(".json"):
                limit = min(limit, MAX_TEXT)
                data = content.read(limit + 1)
                if len(data) > limit:
                    raise DataError(f"cannot read {file}: more than {limit:,} bytes of JSON: use JSON lines")
                yield from _read_json_records(name, data.decode("utf-8").removeprefix("\ufeff"))
                return
            is_table = stem.endswith((".csv", ".tsv"))
            text = io.TextIOWrapper(content, "utf-8-sig", newline="" if is_table else "\n")
            lines = _limit_lines(name, text, limit)
            if is_table:
                yield from _read_table(name, lines, "\t" if stem.endswith(".tsv") else ",")
            else:
                yield from _read_lines(name, lines)
        except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
            raise DataError(f"cannot read {file}: {error}") from None


def _read_parquet(file: Path, opened: IO[bytes], name: str, limit: int) -> Iterator[tuple[str, Any]]:
    """The records of a parquet file. Texts stay dictionary-encoded until their size is known, because a file of a kilobyte
    can hold one text of a megabyte a thousand times."""
    parquet = require("pyarrow.parquet", "data")
    number, total = 0, 0
    try:
        about = parquet.read_metadata(opened)
        if about.num_rows > MAX_ROWS:
            raise DataError(f"{name}: the file holds more than the {MAX_ROWS:,} records that are read")
        groups = [about.row_group(place) for place in range(about.num_row_groups)]
        if (
            sum(group.column(place).total_uncompressed_size for group in groups for place in range(about.num_columns))
            > limit
        ):
            raise DataError(f"{name}: the file unpacks to more than the {limit:,} bytes that are read")
        leaves = [about.schema.column(place) for place in range(about.num_columns)]
        texts = [
            leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY" and leaf.logical_type.type == "STRING"
        ]
        for batch in parquet.ParquetFile(opened, read_dictionary=texts).iter_batches(batch_size=1000):
            total += sum(map(_count_unpacked, batch.columns))
            if total > limit:
                raise DataError(
                    f"{name}, record {number + 1}: the file unpacks to more than the {limit:,} bytes that are read"
                )
            for fields in batch.to_pylist():
                number += 1
                yield f"{name}, record {number}", fields
    except FedAgentGymError:
        raise
    except Exception as error:
        raise DataError(f"cannot read {file}: {error}") from None


def _count_unpacked(column: Any) -> int:
    """The size of an Arrow array in bytes, with its dictionary-encoded texts expanded."""
    arrow, compute = require("pyarrow", "data"), require("pyarrow.compute", "data")
    if arrow.types.is_dictionary(column.type):
        lengths = compute.binary_length(column.dictionary).cast("int64")
        return int(compute.sum(lengths.take(column.indices)).as_py() or 0)
    if arrow.types.is_struct(column.type) or arrow.types.is_map(column.type):
        parts = column.flatten() if arrow.types.is_struct(column.type) else (column.keys, column.items)
        return sum(map(_count_unpacked, parts))
    if arrow.types.is_list(column.type) or arrow.types.is_large_list(column.type):
        return _count_unpacked(column.flatten())
    return int(column.nbytes)


def _limit_lines(name: str, file: io.TextIOBase, limit: int = MAX_BYTES) -> Iterator[str]:
    """The lines of a file one by one, up to the limits: a small compressed file may expand to more than fits in memory."""
    total = 0
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), ""), start=1):
        total += len(line)
        if len(line) > MAX_LINE:
            raise DataError(f"{name}, line {number}: longer than the {MAX_LINE:,} characters that a line may have")
        if total > limit:
            raise DataError(f"{name}, line {number}: the file holds more than the {limit:,} characters that are read")
        if number > MAX_ROWS:
            raise DataError(f"{name}: the file holds more than the {MAX_ROWS:,} lines that are read")
        yield line


def _read_lines(name: str, lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{name}, line {number}"
            check_line(line.encode(), where)
            yield where, parse_json(line, where)


def _read_table(name: str, lines: Iterator[str], delimiter: str) -> Iterator[tuple[str, Any]]:
    """The rows under a line of column names; an empty cell is None."""
    rows = csv.DictReader(lines, delimiter=delimiter, strict=True)
    usual = csv.field_size_limit(MAX_LINE)  # the default is 131,072 characters
    try:
        columns = [column.strip() for column in rows.fieldnames or ()]
        if len(columns) > MAX_COLUMNS:
            raise DataError(f"{name}: the first line names {len(columns):,} columns, at most {MAX_COLUMNS:,} are read")
        if len(set(columns)) < len(columns) or not all(columns):
            raise DataError(f"{name}: the first line must name every column, each differently: {join_names(columns)}")
        rows.fieldnames = columns
        first = rows.line_num + 1
        for row in rows:
            yield f"{name}, line {first}", {column: cell or None for column, cell in row.items()}
            first = rows.line_num + 1
    except csv.Error as error:
        raise DataError(f"{name}, line {rows.line_num}: not valid CSV: {error}") from None
    finally:
        csv.field_size_limit(usual)


def _read_json_records(name: str, text: str) -> Iterator[tuple[str, Any]]:
    if not text.strip():
        raise DataError(f"{name}: the file is empty")
    try:
        value = parse_json(text, name)
    except DataError:
        if text.lstrip().startswith("{") and "\n{" in text:
            yield from _read_lines(name, _limit_lines(name, io.StringIO(text, newline="\n")))
            return
        raise
    if isinstance(value, Mapping) and isinstance(value.get("data"), list):
        value = value["data"]
    if isinstance(value, Mapping):
        yield name, value
    elif isinstance(value, list):
        for number, fields in enumerate(value, start=1):
            yield f"{name}, record {number}", fields
    else:
        raise DataError(f"{name}: a list of records is expected, not {type(value).__name__}")
