#!/usr/bin/env bash
# Train networks of the shipped configs on this machine's GPU, compare with its CPU, measure, and write one report:
#
#     gpu_check.sh FOLDER            # all that it writes lies in FOLDER: report.md, report.json, log/, ...
#     gpu_check.sh FOLDER --cpu      # the same with the CPU in place of the GPU
#     gpu_check.sh FOLDER --minutes 20
#
# For a machine with torch, pyarrow, g++, cmake and a CUDA toolkit, and without Spark, Java, Horovod or a network. What else it
# needs is in the folder that `make gpu-kit` fills: this script is in it, and in a checkout it uses build/gpu-kit. A second call
# repeats only what has not passed. Exit code 0: all passed. Another Python than python3: PYTHON=/path/to/python.
set -euo pipefail

die() { printf 'gpu_check: %s\n' "$*" >&2; exit 2; }

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kit=$here
[ -f "$kit/manifest.json" ] || kit=$here/../build/gpu-kit
[ -f "$kit/manifest.json" ] || die "there is no kit beside this script; run \`make gpu-kit\` in a checkout and copy build/gpu-kit here."
case ${1:-} in '' | -*) die "name a folder for all that the check writes: gpu_check.sh FOLDER [--cpu] [--minutes N]" ;; esac

python=${PYTHON:-python3}
wanted=$(sed -n 's/^ "python": "\([0-9.]*\)",$/\1/p' "$kit/manifest.json")
found=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || die "$python does not run; name one with PYTHON=..."
[ "$found" = "$wanted" ] || die "the kit is for Python $wanted, $python is $found; set PYTHON, or fill a kit for it (make gpu-kit GPU_KIT_PYTHON=$found)."

mkdir -p "$1/tmp"
work=$(cd "$1" && pwd)
if [ ! -e "$work/env/ready" ]; then
    # A virtual environment, made by hand: the module venv may be missing (Debian packs it apart), and it would not show the
    # packages of $python if that is of a virtual environment itself.
    base=$("$python" -c 'import sys; print(sys._base_executable)')
    mkdir -p "$work/env/bin" "$work/env/lib/python$found/site-packages"
    ln -sfn "$base" "$work/env/bin/python"
    printf 'home = %s\ninclude-system-site-packages = false\n' "$(dirname "$base")" >"$work/env/pyvenv.cfg"
    "$python" -c 'import sys
for path in sys.path:
    if path.endswith(("site-packages", "dist-packages")):
        print(f"import site; site.addsitedir({path!r})")' >"$work/env/lib/python$found/site-packages/machine.pth"
    touch "$work/env/ready"
fi

# Caches that would go elsewhere: of temporary files, compiled Python, CUDA's and torch's kernels.
export TMPDIR=$work/tmp PYTHONPYCACHEPREFIX=$work/tmp/pyc XDG_CACHE_HOME=$work/cache CUDA_CACHE_PATH=$work/cache/cuda
export TORCHINDUCTOR_CACHE_DIR=$work/cache/inductor TRITON_CACHE_DIR=$work/cache/triton
export PYTHONPATH=$kit/program${PYTHONPATH:+:$PYTHONPATH} PATH=$work/env/bin:$PATH
exec "$work/env/bin/python" -P -m benchmarks.gpu_check "$kit" "$work" "${@:2}"
