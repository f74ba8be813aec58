#!/usr/bin/env bash
# Prints the path of a Python >= 3.11, or says what to do when there is none. PYTHON names one to try first.
set -euo pipefail

for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11; do
    if path=$(command -v "$candidate") &&
        "$path" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        echo "$path"
        exit
    fi
done

found=$(python3 --version 2>/dev/null || echo "no python3")
{
    echo "error: Python 3.11 or newer is needed; this machine has: $found."
    echo "Install one (on Debian 12, Ubuntu 24.04 and later: apt-get install python3 python3-venv),"
    echo "or name one that lies elsewhere: make PYTHON=/path/to/python3.12 ..."
} >&2
exit 1
