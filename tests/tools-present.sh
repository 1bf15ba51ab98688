#!/bin/sh
# Says in one sentence what is missing, before anything is installed. usage: tools-present.sh PYTHON train|dev
python=$1
wanted=$2
say() { echo "fedagentgym: $1" >&2; exit 2; }

command -v "$python" >/dev/null 2>&1 || say "$python was not found: install Python 3.11 or newer, or name one with make PYTHON=/path/to/python"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || say "Python 3.11 or newer is needed, $("$python" --version 2>&1) was found: name another with make PYTHON=/path/to/python"
"$python" -c 'import venv, ensurepip' 2>/dev/null || say "Python's venv module is missing: install it (Debian: apt install python3-venv)"
[ "$wanted" = train ] && exit 0
for tool in gcc g++ make; do
    command -v "$tool" >/dev/null 2>&1 || say "$tool was not found: ALFWorld's engine is compiled for the tests (Debian: apt install build-essential)"
done
exit 0
