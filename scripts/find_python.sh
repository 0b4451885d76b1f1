#!/bin/sh
# find_python.sh [CANDIDATE]: prints the path of a Python 3.12 that can make virtual environments, wherever it is;
# else says what to do. With a candidate, only that one is tried.
# A name on PATH is not enough: a pyenv shim exists for versions that are not active, so each candidate is run.

incomplete=""

try() {
    [ -n "$1" ] || return 0
    found=$("$1" -c 'import sys; print(sys.executable if sys.version_info[:2] == (3, 12) else "")' 2>/dev/null) || return 0
    [ -n "$found" ] || return 0
    if "$found" -c 'import ensurepip, venv' 2>/dev/null; then
        echo "$found"
        exit 0
    fi
    incomplete="$found"
}

on_path() { command -v "$1" 2>/dev/null; }

if [ $# -gt 0 ]; then
    try "$1"
    echo "$1 is not a Python 3.12 that can make virtual environments: leave PYTHON= out to search for one." >&2
    exit 1
fi

for name in python3.12 python3 python; do try "$(on_path "$name")"; done

if on_path pyenv >/dev/null; then
    root=$(pyenv root 2>/dev/null)
    for version in $(pyenv versions --bare 2>/dev/null | grep '^3\.12'); do try "$root/versions/$version/bin/python"; done
fi
for python in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python "$HOME"/.local/share/uv/python/cpython-3.12*/bin/python3.12 \
    /usr/local/bin/python3.12 /opt/homebrew/bin/python3.12; do
    [ -x "$python" ] && try "$python"
done
if on_path uv >/dev/null; then try "$(uv python find 3.12 2>/dev/null)"; fi

if [ -n "$incomplete" ]; then
    echo "Python 3.12 at $incomplete cannot make virtual environments: install its venv module (Debian: python3.12-venv)." >&2
else
    echo "Python 3.12 was not found on PATH, in pyenv or in uv: install it, for example with 'pyenv install 3.12' or 'uv python install 3.12'." >&2
fi
exit 1
