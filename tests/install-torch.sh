#!/bin/sh
# Installs torch with the pip of an environment and says in one line which build it took, and why.
# usage: install-torch.sh PIP auto|cpu|cuda|REQUIREMENT
# auto is cuda where an NVIDIA GPU is seen and cpu elsewhere. cpu keeps what is installed, or takes the CPU build of torch's
# own index, or, where that cannot be reached, what pip finds. A REQUIREMENT (torch==2.12.0, a wheel, a URL) is for pip.
set -eu
pip=$1
wanted=${2:-auto}
torch=$(sed -n 's/^torch==\([^ ;+]*\).*/torch==\1/p' constraints.txt)
index=https://download.pytorch.org/whl/cpu
say() { echo "fedagentgym: $1"; }

sees_gpu() {
    for device in ${NVIDIA_DEVICES:-/dev/nvidia[0-9]*}; do
        [ -e "$device" ] && return 0
    done
    command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1
}

reaches_index() { # within five seconds
    command -v curl >/dev/null 2>&1 && curl -sfL -m 5 -o /dev/null "$index/torch/"
}

seen="as TORCH=$wanted asks"
if [ "$wanted" = auto ]; then
    if sees_gpu; then wanted=cuda seen="a GPU is seen; TORCH=cpu takes the small build"
    else wanted=cpu seen="no GPU is seen; TORCH=cuda takes the large build"; fi
fi
installed=$($pip show torch 2>/dev/null | sed -n 's/^Version: //p')

case $wanted in
cpu)
    if [ "torch==${installed%%+*}" = "$torch" ]; then
        say "torch $installed is installed already and stays"
    elif [ "$(uname -s)" = Linux ] && reaches_index; then
        say "$torch+cpu from $index ($seen)"
        $pip install -q -c constraints.txt --extra-index-url "$index" "$torch+cpu"
    else
        say "$torch as pip finds it ($seen)"
        $pip install -q -c constraints.txt "$torch"
    fi ;;
cuda)
    say "$torch as pip finds it, with CUDA on Linux ($seen)"
    case $installed in
    *+cpu) $pip install -q -c constraints.txt --force-reinstall "$torch" ;;
    *) $pip install -q -c constraints.txt "$torch" ;;
    esac ;;
*)
    say "$wanted ($seen)"
    $pip install -q "$wanted" ;;
esac
