#!/usr/bin/env bash
# Usage: get_chromium.sh PYTHON
# Makes sure that there is a Chromium for WebArena: the one of CHROMIUM_PATH, the system's or Playwright's, else one is
# installed. Where that cannot be done this says so and succeeds: everything else runs without.
set -uo pipefail
python=$1

found() {
    "$python" -c 'import sys; from agentgym_envs.webarena.packages import has_chromium; sys.exit(not has_chromium())'
}

found && exit
with_deps=()
if [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; then
    with_deps=(--with-deps)
    # Ubuntu's package of that name is a snap, which containers cannot run: there Playwright's own is taken.
    if command -v apt-get >/dev/null && ! grep -qs '^ID=ubuntu' /etc/os-release; then
        echo "== Installing chromium-headless-shell, the browser of WebArena"
        as_root=(env DEBIAN_FRONTEND=noninteractive)
        [ "$(id -u)" = 0 ] || as_root=(sudo -n "${as_root[@]}")
        "${as_root[@]}" apt-get update -qq >/dev/null
        for package in chromium-headless-shell chromium; do # the first is in Debian 12 and later
            "${as_root[@]}" apt-get install -qq -y --no-install-recommends "$package" fonts-liberation >/dev/null && break
        done
        found && exit
    fi
fi
echo "== Installing Playwright's Chromium, the browser of WebArena"
"$python" -m playwright install "${with_deps[@]}" --only-shell chromium && found && exit
cat >&2 <<'EOT'
warning: there is no Chromium and none could be installed. WebArena and its tests are left out; all else works.
Install one (on Debian: apt-get install chromium), or name one with CHROMIUM_PATH, then call make again.
EOT
