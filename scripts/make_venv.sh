#!/usr/bin/env bash
# Usage: make_venv.sh FOLDER
# Makes a virtual environment; one that is there and works is kept.
set -euo pipefail
venv=$1

if "$venv/bin/python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    exit
fi

python=$("$(dirname "$0")/find_python.sh")
echo "== Making $venv with $python ($("$python" --version))"

# Debian and Ubuntu keep ensurepip, which puts pip into a new environment, in a package of its own.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    package=$("$python" -c 'import sys; print("python{}.{}-venv".format(*sys.version_info))')
    if ! command -v apt-get >/dev/null; then
        echo "error: $python lacks the modules venv and ensurepip: install them, then call make again." >&2
        exit 1
    elif [ "$(id -u)" = 0 ]; then
        as_root=(env)
    elif sudo -n true 2>/dev/null; then
        as_root=(sudo -n)
    else
        echo "error: $python cannot make virtual environments yet. Run this, then call make again:" >&2
        echo "    sudo apt-get update && sudo apt-get install -y $package" >&2
        exit 1
    fi
    echo "== Installing $package, which $python needs to make virtual environments"
    "${as_root[@]}" apt-get update
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$package"
fi

"$python" -m venv --clear "$venv"
