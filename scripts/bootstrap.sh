#!/usr/bin/env bash
# Set up all that this checkout needs, then run a command with it:
#
#     scripts/bootstrap.sh                  # set up only
#     scripts/bootstrap.sh sparkring demo   # set up, then run the command: .venv first on PATH, JAVA_HOME a Java that fits
#     scripts/bootstrap.sh --browser ...    # the same, and for some tests a browser and libfuse
#
# Takes Python 3.11 and a package index for granted. What else is missing (uv, Java 17 or 21, a C++ compiler) is installed
# where this script may do that (root on Debian or Ubuntu), and otherwise named with the command that installs it.
# Safe to repeat: a stamp in .venv says that nothing changed since, and then there is nothing to do.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

UV_VERSION=0.13.8   # what is installed where there is none
UV_OLDEST=0.7.0     # what is good enough on PATH; pyproject.toml says the same (tool.uv.required-version)

say() { printf '[setup] %s\n' "$*" >&2; }
die() { printf '[setup] cannot continue: %s\n' "$*" >&2; exit 2; }

# ---- What the system must have: all checks first, then one installation or one message --------------------------------

missing=() on_debian=() on_rhel=()
lacks() { missing+=("$1"); on_debian+=("$2"); on_rhel+=("$3"); }  # WORDS PACKAGE-ON-DEBIAN PACKAGE-ON-RHEL

java_home_of() {  # JAVA: the home of that program if it is version 17 or 21, else nothing
    "$1" -XshowSettings:properties -version 2>&1 | awk -F ' = ' '
        / java.specification.version = / { version = $2 }
        / java.home = /                  { home = $2 }
        END { if (version == 17 || version == 21) print home }'
}

find_java() {  # set JAVA_HOME to a Java that the locked Spark runs on; 1 if there is none
    local java home
    for java in "${JAVA_HOME:-/nonexistent}/bin/java" "$(command -v java || true)" /usr/lib/jvm/*/bin/java; do
        if [ -x "$java" ]; then
            home=$(java_home_of "$java" || true)
            if [ -n "$home" ]; then
                export JAVA_HOME="$home"
                return 0
            fi
        fi
    done
    return 1
}

new_enough() { [ "$(printf '%s\n' "$UV_OLDEST" "$1" | sort -V | head -n 1)" = "$UV_OLDEST" ]; }

find_uv() {  # set uv to a program that can read the lock; 1 if there is none
    if uv=$(command -v uv) && new_enough "$("$uv" --version | awk '{ print $2 }')"; then return 0; fi
    uv=$PWD/.uv/bin/uv
    [ -x "$uv" ]
}

check_python() {  # can it make the environment that uv goes to, and compile an extension?
    local python
    if find_uv; then
        python=$("$uv" python find --no-project --no-python-downloads 3.11 2>/dev/null || true)
    else
        python=$(command -v python3.11 || command -v python3 || true)
        if [ -z "$python" ]; then
            lacks "Python" python3 python3.11
            lacks "Python's venv" python3-venv python3.11
        elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
            lacks "Python's venv" python3-venv python3.11
        fi
    fi
    # A Python other than 3.11 is not used further: uv fetches one, which has its headers.
    if [ -n "$python" ] && ! "$python" -c 'import pathlib, sys, sysconfig
sys.exit(sys.version_info[:2] == (3, 11) and not pathlib.Path(sysconfig.get_path("include"), "Python.h").is_file())'; then
        lacks "the headers of $python" python3.11-dev python3.11-devel
    fi
}

check_tools() {  # Horovod is built from source
    command -v "${CXX:-g++}" >/dev/null || lacks "a C++ compiler" g++ gcc-c++
    command -v make >/dev/null || lacks "make" make make
}

apt_install() {  # PACKAGE...: 0 if they are installed now; says why where apt-get fails
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
    local log package packages=()
    log=$(mktemp)
    say "installing $* with apt-get ..."
    apt-get update -qq >"$log" 2>&1 || true  # one broken list is no reason to stop: the installation decides
    for package in "$@"; do  # Debian 13 has Java 21 only
        if [ "$package" = openjdk-17-jre-headless ] && ! apt-cache show "$package" >/dev/null 2>&1; then package=openjdk-21-jre-headless; fi
        packages+=("$package")
    done
    if DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 "${packages[@]}" \
            >>"$log" 2>&1 </dev/null; then
        rm -f "$log"
    else
        tail -n 5 "$log" >&2
        rm -f "$log"
        return 1
    fi
}

install_missing() {
    apt_install "${on_debian[@]}" && return
    local words
    words=$(printf '%s, ' "${missing[@]}")
    die "this machine lacks ${words%, }; install it (Debian, Ubuntu: sudo apt-get install ${on_debian[*]};" \
        "RHEL: sudo dnf install ${on_rhel[*]}) and run this again."
}

offer_browser() {  # a test opens the report in it; without one that test is skipped and says so
    local name
    for name in chromium chromium-browser google-chrome; do
        command -v "$name" >/dev/null && return
    done
    # Ubuntu's package of that name is an installer for a snap, which a container cannot run.
    if grep -qs '^ID=debian' /etc/os-release && apt_install chromium; then return; fi
    say "no browser (chromium) here: the test that looks at the report in one will be skipped"
}

offer_fuse() {  # tests mount a volume with it; without it they are skipped and say so
    command -v fusermount3 >/dev/null || apt_install fuse3 ||
        say "no libfuse here (Debian, Ubuntu: apt-get install fuse3): the tests on a mounted volume will be skipped"
}

offer_images() {  # a nightly test trains on them; without them it is skipped and says so
    [ -d /usr/share/datasets/fashion-mnist ] || apt_install dataset-fashion-mnist ||
        say "no Fashion-MNIST here (Debian, Ubuntu: apt-get install dataset-fashion-mnist): the test on it will be skipped"
}

offer_hosts() {  # tests make several hosts of namespaces with it; without it they are skipped and say so
    if command -v ip >/dev/null && command -v tc >/dev/null; then return; fi
    apt_install iproute2 || say "no iproute2 here (Debian, Ubuntu: apt-get install iproute2): the tests on several hosts will be skipped"
}

make_cells() {  # environments of other versions, with which tests run a job
    say "environments of the oldest and the newest versions: the first time this downloads 6 GB and builds Horovod twice"
    with_signs_of_life python -m harness.cell_tests ||
        die "they could not be made (the reason stands above); \`make test CELLS=\` leaves the tests in them out."
}

# ---- The Python side --------------------------------------------------------------------------------------------------

install_uv() {
    local python
    python=$(command -v python3.11 || command -v python3)
    say "installing uv $UV_VERSION into .uv/ ..."
    if ! { "$python" -m venv .uv && .uv/bin/python -m pip install --quiet --disable-pip-version-check "uv==$UV_VERSION"; } >&2; then
        rm -rf .uv
        die "pip could not install uv (its reason stands above); see that a package index can be reached, and run this again."
    fi
    find_uv
}

share_index() {  # pip and uv do not read each other's settings: what is set for one holds for both
    local from_pip
    from_pip=${PIP_INDEX_URL:-$(python3 -m pip config get global.index-url 2>/dev/null || true)}
    if [ -n "${UV_DEFAULT_INDEX:-${UV_INDEX_URL:-}}" ]; then
        export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$UV_INDEX_URL}"
        export PIP_INDEX_URL="${PIP_INDEX_URL:-$UV_DEFAULT_INDEX}"
    elif [ -n "$from_pip" ]; then
        export PIP_INDEX_URL="$from_pip" UV_DEFAULT_INDEX="$from_pip"
    fi
}

with_signs_of_life() {  # COMMAND...: uv draws bars on a terminal; elsewhere say every half minute that it still runs
    if [ -t 2 ]; then
        "$@"
        return
    fi
    ( while sleep 30 >/dev/null 2>&1; do say "... $SECONDS s"; done ) &
    local ticker=$! result=0
    "$@" 2>&1 | sed -u -E '/^( [-+~]| ?Download)/d' >&2 || result=$?
    kill "$ticker" 2>/dev/null || true
    return "$result"
}

install_locked() {  # the locked set of packages into .venv
    export UV_COMPILE_BYTECODE=1  # once here, not once in each of a job's many processes where Python may not keep what it compiled
    if [ -z "${UV_DEFAULT_INDEX:-}" ]; then
        "$uv" sync --locked --python 3.11
    else  # the lock names PyPI's addresses; from another index come the same versions, checked by the same hashes
        "$uv" venv --quiet --allow-existing --python 3.11 .venv &&
            mkdir -p build &&
            "$uv" export --quiet --frozen --no-emit-project --output-file build/locked.txt &&
            "$uv" pip sync --python .venv/bin/python build/locked.txt &&
            "$uv" pip install --python .venv/bin/python --no-deps --editable .
    fi
}

compile_own() {  # what Python would keep by itself where it may; files that have not changed cost nothing
    [ -z "${PYTHONDONTWRITEBYTECODE:-}" ] || .venv/bin/python -m compileall -q conf models pipelines spark_jobs sparkring harness tests
}

setup_key() {  # changes with all that the contents of .venv depend on
    { cat uv.lock pyproject.toml third_party/*/*.py third_party/*/*.toml scripts/bootstrap.sh
      printf '%s\n' "$PWD" "${SPARKRING_HOROVOD_CPU:-}" "${SPARKRING_HOROVOD_TORCH:-}"; } | sha256sum | cut -d ' ' -f 1
}

# ---- The whole ---------------------------------------------------------------------------------------------------------

browser='' images='' hosts='' cells=''
while [ $# != 0 ]; do
    case $1 in
        --browser) browser=yes ;;
        --images) images=yes ;;
        --hosts) hosts=yes ;;
        --cells) cells=yes ;;
        --*) die "unknown option $1; the options are --browser, --images, --hosts and --cells." ;;
        *) break ;;
    esac
    shift
done

export UV_PROJECT_ENVIRONMENT=.venv
unset VIRTUAL_ENV  # of another project, perhaps; uv would warn of it
stamp=.venv/.setup-key key=$(setup_key)
ready=
if [ -x .venv/bin/python ] && [ "$(cat "$stamp" 2>/dev/null)" = "$key" ]; then ready=yes; fi

find_java || lacks "Java 17 or 21 (for Spark)" openjdk-17-jre-headless java-17-openjdk-headless
[ -n "$ready" ] || { check_tools; check_python; }
if [ ${#missing[@]} != 0 ]; then
    install_missing
    find_java || die "Java was installed and still no Java 17 or 21 is found on PATH, in JAVA_HOME or in /usr/lib/jvm."
fi

if [ -z "$ready" ]; then
    say "setting up .venv: the first time this downloads about 3 GB and builds Horovod (3 minutes on 2 cores)"
    find_uv || install_uv
    share_index
    with_signs_of_life install_locked || die "the packages could not be installed (the reason stands above)."
    printf '%s\n' "$key" >"$stamp"
    say "ready after $SECONDS s"
fi
[ -z "$browser" ] || { offer_browser; offer_fuse; }
[ -z "$images" ] || offer_images
[ -z "$hosts" ] || offer_hosts
compile_own
export PATH="$PWD/.venv/bin:$PATH:$PWD/.uv/bin"
[ -z "$cells" ] || { share_index; make_cells; }
[ $# = 0 ] || exec "$@"
